package streams_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A stream that would lose results is noticed at once where the server may report the
// change to the user; otherwise within a second after a result was stored; and within a
// minute in any case. Where the stream is changed back the same holds.
func TestHowSoonAChangeIsNoticed(t *testing.T) {
	for _, tt := range []struct {
		name           string
		denied, stored bool
		least, most    time.Duration
	}{
		{"reported", false, false, 0, 0},
		{"not reported, results are stored", true, true, time.Second, time.Second},
		{"not reported, no results are stored", true, false, 30 * time.Second, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				user := &server.User{Username: "stage", Password: "stage", Permissions: &server.Permissions{}}
				if tt.denied {
					user.Permissions.Subscribe = &server.SubjectPermission{Deny: []string{"$JS.EVENT.>"}}
				}
				srv := stagetest.CoreOf(t, &server.Options{JetStream: true, Users: []*server.User{user}})
				nc, err := nats.Connect("", nats.InProcessServer(srv), nats.UserInfo("stage", "stage"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
				if err != nil {
					t.Fatal(err)
				}
				defer nc.Close()
				cfg := streams.Config{
					Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
					AuditStream: "AUDIT", AuditSubject: "audit", Partitions: 1, Create: true, Memory: true,
				}
				if err := streams.Ensure(t.Context(), nc, cfg); err != nil {
					t.Fatal(err)
				}
				js, err := jetstream.New(nc)
				if err != nil {
					t.Fatal(err)
				}
				i := streams.NewInspector(func() *nats.Conn { return nc }, cfg, slog.New(slog.DiscardHandler))
				stop := stopping.Background(t.Context(), func(ctx context.Context) { i.Run(ctx, time.Minute) })
				defer stop()
				time.Sleep(90 * time.Second) // half a minute after the look of a minute
				for _, discard := range []jetstream.DiscardPolicy{jetstream.DiscardOld, jetstream.DiscardNew} {
					results, err := js.Stream(t.Context(), "RESULTS")
					if err != nil {
						t.Fatal(err)
					}
					change := results.CachedInfo().Config
					change.MaxMsgs, change.Discard = 10, discard
					if _, err := js.UpdateStream(t.Context(), change); err != nil {
						t.Fatal(err)
					}
					began := time.Now()
					if tt.stored {
						i.Stored()
					}
					synctest.Wait()
					for wrong := discard == jetstream.DiscardOld; (i.Verdict() != nil) != wrong && time.Since(began) < time.Hour; synctest.Wait() {
						time.Sleep(100 * time.Millisecond)
					}
					if took := time.Since(began); took < tt.least || took > tt.most {
						t.Errorf("discard %v: noticed after %v, want %v to %v", discard, took, tt.least, tt.most)
					}
				}
			})
		})
	}
}

// A look waits for the server, which may be gone. Whoever waits for that look, for
// instance to claim a partition, can end before it.
func TestALookThatIsNotAnsweredHoldsNobody(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		srv := stagetest.CoreOf(t, &server.Options{})
		nc, err := nats.Connect("", nats.InProcessServer(srv))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := nc.Subscribe("$JS.API.>", func(*nats.Msg) {}); err != nil { // somebody is there, and silent
			t.Fatal(err)
		}
		cfg := streams.Config{Name: "stage", InputStream: "ROWS", ResultStream: "RESULTS", AuditStream: "AUDIT"}
		i := streams.NewInspector(func() *nats.Conn { return nc }, cfg, slog.New(slog.DiscardHandler))
		first := stopping.Background(t.Context(), func(ctx context.Context) { _ = i.Look(ctx) })
		defer first()
		synctest.Wait()
		gone := errors.New("gone")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
		defer cancel()
		if err := i.Look(ctx); !errors.Is(err, gone) {
			t.Errorf("got %v, want %v", err, gone)
		}
	})
}
