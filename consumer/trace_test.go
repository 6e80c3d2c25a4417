package consumer_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// follower records what became of each row that it was given.
type follower struct {
	mu   sync.Mutex
	rows []*followed
}

type followed struct {
	f       *follower
	seq     uint64
	header  nats.Header
	emitted int
	abandon int
}

func (f *follower) RowTaken(row *consumer.Row) consumer.Trace {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := &followed{f: f, seq: row.Seq, header: nats.Header{"traceparent": {fmt.Sprintf("trace of %d", row.Seq)}}}
	f.rows = append(f.rows, one)
	return one
}

func (r *followed) Header() nats.Header { return r.header }

func (r *followed) Emitted(*consumer.Reply, time.Time) { r.end(&r.emitted) }

func (r *followed) Abandoned(time.Time) { r.end(&r.abandon) }

func (r *followed) end(count *int) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	*count++
}

// check returns how many rows were emitted, and checks that every trace has ended once.
func (f *follower) check(t *testing.T) (emitted int) {
	t.Helper()
	for _, row := range f.rows {
		if row.emitted+row.abandon != 1 {
			t.Errorf("row %d: emitted %d times and abandoned %d times, want one of them once", row.seq, row.emitted, row.abandon)
		}
		emitted += row.emitted
	}
	return emitted
}

func TestATraceEndsOnceWhateverBecomesOfTheRow(t *testing.T) {
	ends := map[string]struct {
		disturb func(b *testbed, first, second *replica)
		killed  bool // then the last results may have been stored without an answer
	}{
		"drained":           {disturb: func(b *testbed, first, _ *replica) { b.until(50); first.stop(b.t) }},
		"killed":            {disturb: func(b *testbed, first, _ *replica) { b.until(50); first.kill() }, killed: true},
		"fenced":            {disturb: func(b *testbed, _, _ *replica) { b.until(50); b.unpin() }},
		"server restarted":  {disturb: func(b *testbed, _, _ *replica) { b.until(50); b.stopServer(); b.startServer() }, killed: true},
		"stopped, no rows":  {disturb: func(b *testbed, _, _ *replica) { b.until(200) }},
		"second one killed": {disturb: func(b *testbed, _, second *replica) { b.until(50); second.kill() }},
	}
	for name, tt := range ends {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			b.load(200)
			traces := &follower{}
			start := func(run string) *replica {
				cfg := b.config(run, &sleeper{low: 100 * time.Millisecond, high: 2 * time.Second})
				cfg.Tracer = traces
				return b.startWith(cfg)
			}
			first := start("first")
			b.until(1)
			second := start("second")
			tt.disturb(b, first, second)
			b.until(200)
			for _, r := range []*replica{first, second} {
				r.soft()
				<-r.ended
				r.hard()
			}
			b.check(200)
			if emitted := traces.check(t); emitted != 200 && !tt.killed {
				t.Errorf("%d traces end with a result, want 200", emitted)
			}
		})
	}
}

// unpin takes the pin from its holder, so that the standby may get it.
func (b *testbed) unpin() {
	b.t.Helper()
	stagetest.Must(b.t, b.stream("ROWS").UnpinConsumer(b.t.Context(), "stage-0", "stage"))
}

func TestAResultHasItsTracesHeadersWhereTheRowsStayBehind(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.largestResult(8000)
		cfg := b.config("run", roomy{})
		cfg.Tracer = &follower{}
		for i, m := range b.answered(cfg,
			nats.Header{"X-Kept": {"v"}},
			nats.Header{"X-Kept": {"v"}, "traceparent": {"its own"}},
			nats.Header{"X-Dropped": {strings.Repeat("x", 7000)}, "traceparent": {"its own"}},
		) {
			h := m.Headers()
			if got, want := h.Values("traceparent"), fmt.Sprintf("[trace of %d]", i+1); fmt.Sprint(got) != want {
				t.Errorf("row %d: traceparent %q, want %s", i+1, got, want)
			}
			if kept := h.Get("X-Kept") != ""; kept != (i < 2) || h.Get("X-Dropped") != "" {
				t.Errorf("row %d: headers %v", i+1, h)
			}
			if h.Get(streams.HeaderStatus) != "success" {
				t.Errorf("row %d: %s: the room was not counted right", i+1, m.Data())
			}
		}
	})
}

// roomy answers each row with all that the stream has room for.
type roomy struct{}

func (roomy) Start(row *consumer.Row) {
	row.Reply(consumer.Reply{Body: make([]byte, row.MaxBodyBytes)})
}
