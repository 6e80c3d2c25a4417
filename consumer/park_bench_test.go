package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/cluster"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// heldLane has all rows in batches that never end.
type heldLane struct{}

func (heldLane) Open(context.Context, consumer.LaneTerm) error { return nil }
func (heldLane) Holds(*consumer.Row) bool                      { return true }
func (heldLane) Kept(uint64)                                   {}
func (heldLane) Stop()                                         {}
func (heldLane) Close()                                        {}

// noExecutor is never asked.
type noExecutor struct{}

func (noExecutor) Start(*consumer.Row) {}

// BenchmarkTakeOverParked measures a take-over of rows of 1 KiB that are in batches: from the start until the term knows
// them all again.
func BenchmarkTakeOverParked(b *testing.B) {
	for _, rows := range []int{10_000, 100_000} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			servers := cluster.Start(b, 1)
			nc := stagetest.Value(nats.Connect(servers[0].ClientURL()))(b)
			defer nc.Close()
			stagetest.Must(b, streams.Ensure(b.Context(), nc, stageStreams()))
			js := stagetest.Value(jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4000)))(b)
			for range rows {
				stagetest.Value(js.PublishAsync("rows.a", bytes.Repeat([]byte("x"), 1024)))(b)
			}
			<-js.PublishAsyncComplete()
			for b.Loop() {
				takeOver(b, nc, rows)
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/take-over")
		})
	}
}

func takeOver(b *testing.B, nc *nats.Conn, rows int) {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	cfg := consumer.Config{
		DurableConfig: durableConfig(), RunID: "run", ResultSubject: "results", Journal: true, JournalStream: "JOURNAL", Lane: heldLane{},
		Executor: noExecutor{}, Logger: log, Recorder: recorder.New(nc, recorder.Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: log}),
	}
	cfg.WindowRows, cfg.LaneRows = 1024, rows
	c := stagetest.Value(consumer.New(nc, cfg))(b)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, ctx) }()
	for c.Status().Parked < rows {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	stagetest.Must(b, <-done)
}
