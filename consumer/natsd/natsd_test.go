package natsd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func start(t *testing.T, cfg natsd.Config) *natsd.Server {
	t.Helper()
	srv, err := natsd.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	return srv
}

func TestOtherProcessesFindTheServerByItsDirectory(t *testing.T) {
	dir := t.TempDir()
	if _, ok, err := natsd.Discover(dir); ok || err != nil {
		t.Fatalf("empty directory: ok=%v err=%v, want none", ok, err)
	}
	srv := start(t, natsd.Config{Dir: dir, SyncAlways: true})
	addr, ok, err := natsd.Discover(dir)
	if err != nil || !ok {
		t.Fatalf("discover: ok=%v err=%v", ok, err)
	}
	if text := fmt.Sprintf("%v %+v %#v", addr, addr, struct{ A natsd.Address }{addr}); strings.Contains(text, addr.Token) || !strings.Contains(text, addr.URL) {
		t.Errorf("an address prints as %s", text)
	}
	nc, err := nats.Connect(addr.URL, nats.Token(addr.Token))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AccountInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := nats.Connect(addr.URL); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without the token: got %v, want %v", err, nats.ErrAuthorization)
	}
	info, err := os.Stat(filepath.Join(dir, "nats.json"))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("address file mode: got %o, want 600", got)
	}

	srv.Stop()
	if _, ok, err := natsd.Discover(dir); ok || err != nil {
		t.Errorf("after stop: ok=%v err=%v, want none", ok, err)
	}
}

// Another process reads through the server of a command while that one ends.
func TestTheServerOfACommandWaitsForOthers(t *testing.T) {
	dir := t.TempDir()
	srv := start(t, natsd.Config{Dir: dir, Command: true})
	addr, _, err := natsd.Discover(dir)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(addr.URL, nats.Token(addr.Token))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	stopped := make(chan struct{})
	go func() {
		srv.Stop()
		close(stopped)
	}()
	for running := true; running; {
		if _, running, err = natsd.Discover(dir); err != nil {
			t.Fatal(err)
		}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AccountInfo(t.Context()); err != nil {
		t.Errorf("the server has ended before its client: %v", err)
	}
	nc.Close()
	<-stopped
}

func TestTwoServersNeverShareADirectory(t *testing.T) {
	dir := t.TempDir()
	srv := start(t, natsd.Config{Dir: dir})
	if _, err := natsd.Start(natsd.Config{Dir: dir}); !errors.Is(err, natsd.ErrLocked) {
		t.Fatalf("second start: got %v, want %v", err, natsd.ErrLocked)
	}
	srv.Stop()
	start(t, natsd.Config{Dir: dir})
}

func TestAStaleAddressFileIsNotAServer(t *testing.T) {
	dir := t.TempDir()
	stale := []byte(`{"url":"nats://127.0.0.1:1","token":"x","pid":1}`)
	if err := os.WriteFile(filepath.Join(dir, "nats.json"), stale, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := natsd.Discover(dir); ok || err != nil {
		t.Errorf("ok=%v err=%v, want none", ok, err)
	}
}

func TestNoListenServesTheProcessAlone(t *testing.T) {
	srv := start(t, natsd.Config{Dir: t.TempDir(), NoListen: true})
	if got := srv.URL(); got != "" {
		t.Errorf("url: got %q, want none", got)
	}
	nc, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// A process that is killed while it creates a stream or a consumer leaves its description without a checksum.
func TestWhatWasHalfCreatedIsCreatedForGood(t *testing.T) {
	dir := t.TempDir()
	names := func() string {
		srv := start(t, natsd.Config{Dir: dir, NoListen: true})
		defer srv.Stop()
		nc, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		found := ""
		if s, err := js.Stream(t.Context(), "ROWS"); err == nil {
			found = fmt.Sprintf("ROWS with %d messages", s.CachedInfo().State.Msgs)
			if _, err := s.Consumer(t.Context(), "stage"); err == nil {
				found += " and stage"
			}
		}
		if _, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateOrUpdateConsumer(t.Context(), "ROWS", jetstream.ConsumerConfig{Durable: "stage"}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "rows.a", nil); err != nil {
			t.Fatal(err)
		}
		return found
	}
	names()
	sums, err := fs.Glob(os.DirFS(dir), "jetstream/*/streams/ROWS/*.sum")
	more, errMore := fs.Glob(os.DirFS(dir), "jetstream/*/streams/ROWS/obs/*/*.sum")
	if len(sums) != 1 || len(more) != 1 || err != nil || errMore != nil {
		t.Fatalf("checksums %q %q (%v, %v)", sums, more, err, errMore)
	}
	for _, sum := range append(sums, more...) {
		if err := os.Remove(filepath.Join(dir, sum)); err != nil {
			t.Fatal(err)
		}
	}
	names()
	if got, want := names(), "ROWS with 2 messages and stage"; got != want {
		t.Errorf("after two starts the server has %q, want %q", got, want)
	}
}
