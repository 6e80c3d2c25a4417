package app

import (
	"fmt"
	"testing"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// verifyBench is a server with streams that take whatever a test plants.
type verifyBench struct {
	t   *testing.T
	js  jetstream.JetStream
	nc  *nats.Conn
	cfg *config.Config
}

// newVerifyBench creates the streams; change may alter their configurations: input, results, audit.
func newVerifyBench(t *testing.T, change func(streams []jetstream.StreamConfig)) *verifyBench {
	t.Helper()
	srv, err := natsd.Start(natsd.Config{Dir: t.TempDir(), NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	b := &verifyBench{t: t}
	if b.nc, err = srv.Connect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.nc.Close)
	if b.js, err = jetstream.New(b.nc); err != nil {
		t.Fatal(err)
	}
	b.cfg = stagetest.Config(t)
	streams := []jetstream.StreamConfig{
		{Name: "ROWS", Subjects: []string{"rows.>", "other.>"}},
		{Name: "RESULTS", Subjects: []string{"results.>"}},
		{Name: "AUDIT", Subjects: []string{"audit.>"}},
	}
	if change != nil {
		change(streams)
	}
	for _, s := range streams {
		s.Storage = jetstream.MemoryStorage
		if _, err := b.js.CreateStream(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	// After the deletion of its last stream with a file the server removes the directory of the account some time later,
	// also from under a stream created meanwhile.
	if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KEEP", Subjects: []string{"keep"}}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *verifyBench) stream(name string) jetstream.Stream {
	b.t.Helper()
	s, err := b.js.Stream(b.t.Context(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *verifyBench) publish(m *nats.Msg) uint64 {
	b.t.Helper()
	ack, err := b.js.PublishMsg(b.t.Context(), m)
	if err != nil {
		b.t.Fatal(err)
	}
	return ack.Sequence
}

// rows publishes n rows on a subject.
func (b *verifyBench) rows(n int, subject string) {
	b.t.Helper()
	for i := range n {
		b.publish(&nats.Msg{Subject: subject, Data: fmt.Appendf(nil, `{"n":%d}`, i+1)})
	}
}

// purge removes the messages of a stream below a sequence; 0: all.
func (b *verifyBench) purge(stream string, below uint64) {
	b.t.Helper()
	var opts []jetstream.StreamPurgeOpt
	if below > 0 {
		opts = append(opts, jetstream.WithPurgeSequence(below))
	}
	if err := b.stream(stream).Purge(b.t.Context(), opts...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *verifyBench) drop(stream string) {
	b.t.Helper()
	if err := b.js.DeleteStream(b.t.Context(), stream); err != nil {
		b.t.Fatal(err)
	}
}
