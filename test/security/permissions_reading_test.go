package security_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A user who may not delete the consumer of a reading gets no error for that, and is still named what else is denied,
// whether that was denied before the end of a reading or after it.
func TestTheEndOfAReadingHidesNoViolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, err := server.NewServer(&server.Options{
			DontListen: true, JetStream: true, StoreDir: stagetest.Dir(t), NoLog: true, NoSigs: true,
			Users: []*server.User{{Username: "reader", Password: "reader", Permissions: &server.Permissions{Publish: &server.SubjectPermission{
				Allow: []string{">"}, Deny: []string{"$JS.API.CONSUMER.DELETE.>", "$JS.API.CONSUMER.CREATE.OTHER.>", "$JS.API.STREAM.INFO.S"},
			}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		srv.Start()
		defer srv.WaitForShutdown()
		defer srv.Shutdown()
		if !srv.ReadyForConnections(time.Minute) {
			t.Fatal("the server is not ready")
		}
		connect := func() (*nats.Conn, jetstream.JetStream) {
			nc, err := nats.Connect("", nats.InProcessServer(srv), nats.UserInfo("reader", "reader"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
			if err != nil {
				t.Fatal(err)
			}
			js := stagetest.Value(jetstream.New(nc))(t)
			return nc, js
		}
		nc, js := connect()
		defer nc.Close()
		for _, name := range []string{"S", "OTHER"} {
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
				t.Fatal(err)
			}
		}
		read := func() {
			t.Helper()
			r, err := streams.Read(t.Context(), js, "S", jetstream.ConsumerConfig{InactiveThreshold: time.Minute})
			if err == nil {
				r.Close()
				err = flush(t, nc)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		read()
		if last := nc.LastError(); !streams.IsReadingEnd(last) || streams.Violation(nc, "$JS.>") != nil {
			t.Errorf("after the end: last error %v, violation %v", last, streams.Violation(nc, "$JS.>"))
		}
		if err := streams.Denied(nc, nats.ErrTimeout); !strings.Contains(err.Error(), "no answer") {
			t.Errorf("an unanswered request after the end is explained by %v", err)
		}
		const denied = "$JS.API.STREAM.INFO.S"
		stagetest.Must(t, nc.Publish(denied, nil))
		read()
		if err := streams.Violation(nc, "$JS.>"); err == nil || !strings.Contains(err.Error(), denied) {
			t.Errorf("another denial before the end: %v, want %s named", err, denied)
		}

		nc, js = connect()
		defer nc.Close()
		_, err = streams.Read(t.Context(), js, "OTHER", jetstream.ConsumerConfig{InactiveThreshold: time.Minute})
		stagetest.Must(t, flush(t, nc))
		if err = streams.Denied(nc, err); err == nil || !strings.Contains(err.Error(), "$JS.API.CONSUMER.CREATE.OTHER.") {
			t.Errorf("a reading that was denied: %v, want that named", err)
		}
	})
}

// flush waits until the server has answered all that was sent. The library's own method takes a timer of a pool, which may
// be one of another test's virtual time.
func flush(t *testing.T, nc *nats.Conn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return nc.FlushWithContext(ctx)
}
