package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/cluster"
	"github.com/nats-io/nats.go"
)

var orders = []streams.Order{streams.OrderStream, streams.OrderKey, streams.OrderNone}

// BenchmarkResultMsg measures what the headers of a result cost in each order.
func BenchmarkResultMsg(b *testing.B) {
	for _, order := range orders {
		b.Run("order="+string(order), func(b *testing.B) {
			c := orderedConsumer(b, nil, order)
			row := aheadRow(70_000, 12)
			b.ReportAllocs()
			for b.Loop() {
				c.messages.resultMsg(row, "owner")
			}
		})
	}
}

// A result that is not in stream order has up to four headers more.
func TestTheHeadersOfAnOrderCostFourAllocations(t *testing.T) {
	cost := make(map[streams.Order]float64)
	for _, order := range orders {
		c, row := orderedConsumer(t, nil, order), aheadRow(70_000, 12)
		cost[order] = testing.AllocsPerRun(100, func() { c.messages.resultMsg(row, "owner") })
	}
	for order, n := range cost {
		if more := n - cost[streams.OrderStream]; more > 4 {
			t.Errorf("order %s: %v allocations more than in stream order, want at most 4", order, more)
		}
	}
}

// BenchmarkTakeOverRead measures what a take-over reads of the log: the rows that have their result above the low-water
// mark.
func BenchmarkTakeOverRead(b *testing.B) {
	for _, ahead := range []int{1000, 65_536} {
		for _, replicas := range []int{1, 3} {
			b.Run(fmt.Sprintf("ahead=%d/replicas=%d", ahead, replicas), func(b *testing.B) {
				servers := cluster.Start(b, replicas)
				nc := stagetest.Value(nats.Connect(servers[0].ClientURL()))(b)
				defer nc.Close()
				cluster.CreateStream(b, nc, resultsStream(replicas))
				c := orderedConsumer(b, nc, streams.OrderKey)
				end := appendAhead(b, c, ahead)
				for b.Loop() {
					var where aheadLog
					rows, err := c.results.finishedAhead(b.Context(), end, &where)
					if err != nil || len(rows) != ahead {
						b.Fatalf("read %d rows, err %v, want %d", len(rows), err, ahead)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*ahead), "ns/row")
			})
		}
	}
}

func orderedConsumer(tb testing.TB, nc *nats.Conn, order streams.Order) *Consumer {
	tb.Helper()
	log := slog.New(slog.DiscardHandler)
	if nc == nil {
		nc = new(nats.Conn)
	}
	c := stagetest.Value(New(nc, Config{
		DurableConfig: streams.DurableConfig{Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", Order: order},
		OrderKey:      "subject", Key: func(row *Row) string { return row.Subject },
		RunID: "run", ResultSubject: "results", Executor: noExecutor{}, Logger: log,
		Recorder: recorder.New(nc, recorder.Config{Subject: "audit", Name: "stage", Logger: log}),
	}))(tb)
	return c
}

// aheadRow is an answered row with so many emitted above the first row, which is not.
func aheadRow(seq uint64, ahead int) *Row {
	row := &Row{Seq: seq, StateID: fmt.Sprintf("stage/ROWS/0/%d", seq), Subject: fmt.Sprintf("rows.k%d", seq%10_000), answer: answer{reply: &Reply{Body: make([]byte, 500)}}}
	row.Key, row.inTerm.event = row.Subject, "AAECAwQFBgcICQoLDA0ODw"
	row.inTerm.after = logMark{ahead: ahead, from: 1}
	return row
}

// appendAhead stores results of the rows behind the first one, and returns the end of the log.
func appendAhead(b *testing.B, c *Consumer, ahead int) logEnd {
	b.Helper()
	e := &emitter{c: c, owner: "owner"}
	for done := 0; done < ahead; {
		rows := make([]*Row, min(streams.AppendMax, ahead-done))
		for i := range rows {
			done++
			rows[i] = aheadRow(uint64(done)+1, done) //nolint:gosec // a count
		}
		stagetest.Value(e.store(context.Background(), atomicGroup, rows))(b)
	}
	return e.end
}
