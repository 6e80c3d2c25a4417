package follow

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) {
	poll, endGrace = 10*time.Millisecond, time.Minute // which is far above what a loaded machine needs
	stagetest.Main(m)
}

// serve starts an embedded server with one stream on dir, as a stage does: it waits for a
// reader to close the store.
func serve(t *testing.T, cfg *config.Config) *natsconn.Conn {
	t.Helper()
	conn := stagetest.Value(natsconn.StartServer(t.Context(), cfg, cfg.Data.Dir, 0, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(conn.Close)
	js := stagetest.Value(jetstream.New(conn.NC()))(t)
	stagetest.Value(js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}))(t)
	return conn
}

// The store is read through each process that serves it, once more after that has ended,
// and is never kept open.
func TestOneServerAfterTheOtherIsRead(t *testing.T) {
	cfg := stagetest.Config(t, "STAGE_DATA_DIR", filepath.Join(t.TempDir(), "later"))
	ctx, cancel := context.WithCancel(t.Context())
	waits, reads, ended := make(chan bool, 10), make(chan bool), make(chan error, 1)
	go func() {
		ended <- Run(ctx, cfg, slog.New(slog.DiscardHandler), func() { waits <- true }, func(ctx context.Context, js jetstream.JetStream, more bool) error {
			if _, err := js.AccountInfo(ctx); err != nil {
				return err
			}
			reads <- more
			if !more {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	<-waits
	for range 2 {
		srv := serve(t, cfg)
		if more := <-reads; !more {
			t.Fatal("the store was opened beside the server")
		}
		srv.Close()
		if more := <-reads; more {
			t.Fatal("a server was followed that does not run")
		}
	}
	serve(t, cfg)
	if more := <-reads; !more {
		t.Fatal("the store was opened beside the server")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended by %v, want nil", err)
	}
}

// A server that stops answers with errors before its end is seen: the reading goes on
// with the store.
func TestAnErrorOfAServerThatStopsEndsNothing(t *testing.T) {
	cfg := stagetest.Config(t, "STAGE_DATA_DIR", t.TempDir())
	srv := serve(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	read := false
	err := Run(ctx, cfg, slog.New(slog.DiscardHandler), func() {}, func(_ context.Context, _ jetstream.JetStream, more bool) error {
		if more {
			go srv.Close() //nolint:contextcheck // Close has a bound of its own
			return io.ErrUnexpectedEOF
		}
		read = true
		cancel()
		return nil
	})
	if err != nil || !read {
		t.Errorf("ended by %v, want nil; the store was read: %v", err, read)
	}
}

func TestAnErrorOfTheReaderEndsIt(t *testing.T) {
	defer func(before time.Duration) { endGrace = before }(endGrace)
	endGrace = 10 * time.Millisecond
	cfg := stagetest.Config(t, "STAGE_DATA_DIR", t.TempDir())
	serve(t, cfg)
	err := Run(t.Context(), cfg, slog.New(slog.DiscardHandler), func() {},
		func(context.Context, jetstream.JetStream, bool) error { return io.ErrShortWrite })
	if !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("got %v, want %v", err, io.ErrShortWrite)
	}
}

// No process serves the store at the first look, and one does when it is to be opened:
// nothing is read through that one as if it could not end.
func TestAServerThatIsFasterIsNotReadAsAStore(t *testing.T) {
	cfg := stagetest.Config(t, "STAGE_DATA_DIR", t.TempDir())
	serve(t, cfg)
	f := &follower{cfg: cfg, log: slog.New(slog.DiscardHandler), read: func(context.Context, jetstream.JetStream, bool) error {
		t.Error("it was read")
		return nil
	}}
	if err := f.stored(t.Context()); !errors.Is(err, errServed) {
		t.Errorf("got %v, want %v", err, errServed)
	}
}
