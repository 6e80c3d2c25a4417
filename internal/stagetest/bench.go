package stagetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bench is a server with streams that accept whatever a test plants.
type Bench struct {
	*NATS

	Cfg *config.Config

	streams []jetstream.StreamConfig
	cfg     config.Config // as it was
}

// NewBench creates the streams; change may alter their configurations: input, results,
// audit.
func NewBench(t *testing.T, change func(streams []jetstream.StreamConfig)) *Bench {
	t.Helper()
	b := &Bench{NATS: StartNATS(t)}
	b.Cfg = Config(t)
	streams := []jetstream.StreamConfig{
		{Name: "ROWS", Subjects: []string{"rows.>", "other.>"}},
		{Name: "RESULTS", Subjects: []string{"results.>"}},
		{Name: "AUDIT", Subjects: []string{"audit.>"}},
	}
	if change != nil {
		change(streams)
	}
	b.cfg, b.streams = *b.Cfg, streams
	b.create()
	// After the deletion of its last stream with a file the server removes the directory
	// of the account some time later, also from under a stream created meanwhile.
	if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KEEP", Subjects: []string{"keep"}}); err != nil {
		t.Fatal(err)
	}
	// A server that stops while a reader waits for messages sleeps 50 ms: without their
	// streams there are no readers.
	t.Cleanup(func() {
		for _, s := range streams {
			_ = b.JS.DeleteStream(context.WithoutCancel(t.Context()), s.Name) // the test may have done so, or have closed the connection
		}
	})
	return b
}

func (b *Bench) create() {
	b.T.Helper()
	for _, s := range b.streams {
		s.Storage = jetstream.MemoryStorage
		Value(b.JS.CreateStream(b.T.Context(), s))(b.T)
	}
}

// Renew returns the bench for the next case of a test, on the same server: the streams are
// empty and begin at 1, and the configuration is as it was. The last case must be over.
func (b *Bench) Renew(t *testing.T) *Bench {
	t.Helper()
	nats, cfg := *b.NATS, b.cfg
	nats.T = t
	again := &Bench{NATS: &nats, Cfg: &cfg, streams: b.streams, cfg: b.cfg}
	for _, s := range b.streams {
		if err := b.JS.DeleteStream(t.Context(), s.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatal(err)
		}
	}
	again.create()
	return again
}

// Stream returns a stream that exists.
func (b *Bench) Stream(name string) jetstream.Stream {
	b.T.Helper()
	s, err := b.JS.Stream(b.T.Context(), name)
	if err != nil {
		b.T.Fatal(err)
	}
	return s
}

// Publish publishes a message and returns its sequence.
func (b *Bench) Publish(m *nats.Msg) uint64 {
	b.T.Helper()
	ack, err := b.JS.PublishMsg(b.T.Context(), m)
	if err != nil {
		b.T.Fatal(err)
	}
	return ack.Sequence
}

// Rows publishes n rows on a subject.
func (b *Bench) Rows(n int, subject string) {
	b.T.Helper()
	for i := range n {
		b.Publish(&nats.Msg{Subject: subject, Data: fmt.Appendf(nil, `{"n":%d}`, i+1)})
	}
}

// Purge removes the messages of a stream below a sequence; 0 means all.
func (b *Bench) Purge(stream string, below uint64) {
	b.T.Helper()
	var opts []jetstream.StreamPurgeOpt
	if below > 0 {
		opts = append(opts, jetstream.WithPurgeSequence(below))
	}
	if err := b.Stream(stream).Purge(b.T.Context(), opts...); err != nil {
		b.T.Fatal(err)
	}
}

// Drop deletes a stream.
func (b *Bench) Drop(stream string) {
	b.T.Helper()
	if err := b.JS.DeleteStream(b.T.Context(), stream); err != nil {
		b.T.Fatal(err)
	}
}
