package usage

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

var benchEvents = flag.Int("usage.events", 10000, "call events that BenchmarkRead reads")

// body is as long as a short prompt with its reply and the parameters around them.
var body = fmt.Appendf(nil, `{"model":"small","messages":[{"role":"user","content":"%0400d"}]}`, 7)

// BenchmarkBook adds the calls of a million rows, in turn of eight terms of ownership,
// and reports what the book then holds.
func BenchmarkBook(b *testing.B) {
	const rows = 1 << 20
	c := calls{stage: "stage", at: time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)}
	var terms [8]*auditlog.Event
	for i := range terms {
		terms[i] = c.of(fmt.Sprintf("RUN1234567890.TERM%04d", i), 1, 0, auditlog.CallSuccess)
		terms[i].Call.Partition = auditlog.Partition(i)
	}
	b.ReportAllocs()
	var book *Book
	for b.Loop() {
		book = NewBook([]Dimension{ByStage, ByModel, ByDay})
		for seq := range uint64(rows) {
			e := terms[seq%uint64(len(terms))]
			e.Call.Sequence = seq + 1
			book.Add(e)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/call")
	held := heap()
	runtime.KeepAlive(book)
	b.ReportMetric(float64(held-heap()), "B-held")
}

// BenchmarkRead reads the events of one call for each row from a stream in a file: one in
// ten is stored twice, the second time a hundred rows later.
func BenchmarkRead(b *testing.B) {
	srv := stagetest.Value(natsd.Start(natsd.Config{Dir: b.TempDir(), NoListen: true}))(b)
	defer srv.Stop()
	nc := stagetest.Value(srv.Connect())(b)
	defer nc.Close()
	js := stagetest.Value(jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1000)))(b)
	if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"audit.>"}}); err != nil {
		b.Fatal(err)
	}
	storeMany(b, js, *benchEvents)

	var report *Report
	for b.Loop() {
		r := NewReader(stagetest.Config(b), NewBook([]Dimension{ByStage, ByModel, ByDay}), Options{Stages: []string{"stage"}})
		stagetest.Must(b, r.Read(b.Context(), js))
		report = r.Report()
	}
	b.ReportMetric(float64(*benchEvents)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	if got := report.Total.Calls + report.Doubled; got != uint64(*benchEvents) { //nolint:gosec // not negative
		b.Fatalf("%d events were read, want %d", got, *benchEvents)
	}
}

// storeMany stores n events.
func storeMany(b *testing.B, js jetstream.JetStream, n int) {
	b.Helper()
	c := calls{stage: "stage", at: time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)}
	for i := range n {
		seq := uint64(i) //nolint:gosec // not negative
		if i%10 == 9 {
			seq = uint64(max(0, i-101)) //nolint:gosec // not negative
		}
		e := c.of("RUN1234567890.TERM1234", seq+1, 0, auditlog.CallSuccess, func(c *auditlog.Call) { c.Request, c.Response = body, body })
		stagetest.Value(js.PublishAsync("audit.stage.0.call", e.Call.AppendJSON(nil, auditlog.PayloadsFull, 0)))(b)
	}
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		b.Fatal("the events are not stored")
	}
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below
}
