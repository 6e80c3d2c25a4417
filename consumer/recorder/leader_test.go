//go:build long

package recorder

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/cluster"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The leader of the audit stream steps down again and again while events are on their
// way.
func TestEventsOutliveTheLeaderOfTheirStream(t *testing.T) {
	servers := cluster.Start(t, 3)
	nc := stagetest.Value(nats.Connect(servers[0].ClientURL(), nats.MaxReconnects(-1)))(t)
	defer nc.Close()
	cluster.CreateStream(t, nc, jetstream.StreamConfig{Name: "READY", Replicas: 3}) // the cluster has a leader
	js := stagetest.Value(jetstream.New(nc))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := streams.Ensure(ctx, nc, streams.Config{
		Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
		AuditStream: "AUDIT", AuditSubject: "audit", Create: true, Replicas: 3,
	}); err != nil {
		t.Fatal(err)
	}
	const events = 4000
	r := New(nc, Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: slog.New(slog.DiscardHandler)})
	var running sync.WaitGroup
	recording, stop := context.WithCancel(ctx)
	running.Go(func() { _ = r.Run(recording) })
	changes := 0
	for i := range events {
		switch i % 1000 {
		case 500:
			if _, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN.AUDIT", nil); err == nil {
				changes++
			}
		case 999:
			if err := r.Flush(ctx); err != nil { // asks again at once for what got lost
				t.Fatal(err)
			}
			r.mu.Lock()
			r.ways.noGroupsUntil = time.Time{} // groups at once again
			r.mu.Unlock()
		}
		r.RecordCall(&auditlog.Call{StateID: "s", Owner: "o", CallIndex: i}, nil)
	}
	stagetest.Must(t, r.Flush(ctx))
	if changes == 0 {
		t.Error("no leader stepped down")
	}
	stop()
	running.Wait()
	consumer := stagetest.Value(js.OrderedConsumer(ctx, "AUDIT", jetstream.OrderedConsumerConfig{HeadersOnly: true}))(t)
	info := stagetest.Value(js.Stream(ctx, "AUDIT"))(t)
	messages := stagetest.Value(consumer.Messages())(t)
	defer messages.Stop()
	times := make(map[string]int)
	for range info.CachedInfo().State.Msgs {
		m := stagetest.Value(messages.Next(jetstream.NextContext(ctx)))(t)
		times[m.Headers().Get(jetstream.MsgIDHeader)]++
	}
	for i := range events {
		if id := auditlog.MsgID("s", "o", auditlog.KindCall, i); times[id] != 1 {
			t.Errorf("event %s is stored %d times", id, times[id])
		}
	}
	if len(times) != events {
		t.Errorf("%d events are stored, want %d", len(times), events)
	}
}
