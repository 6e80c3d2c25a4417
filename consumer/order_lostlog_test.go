package consumer_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// rowNeverAnswered keeps the low-water mark below it.
const rowNeverAnswered = 5

// resultAhead returns the last result up to a place that is of a row above the low-water mark: the rows below it, whose
// results nobody needs any more, may be answered as late as any.
func resultAhead(t *testing.T, results jetstream.Stream, at uint64) uint64 {
	t.Helper()
	for ; ; at-- {
		m := stagetest.Value(results.GetMsg(t.Context(), at))(t)
		seq := stagetest.Value(strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64))(t)
		if seq > rowNeverAnswered {
			return at
		}
	}
}

// The results lose messages while the stage is down: what is emitted above the low-water mark is known from them alone.
func TestResultsThatLoseMessagesInAnyOrder(t *testing.T) {
	for _, order := range otherOrders {
		for name, c := range map[string]struct {
			lose    func(t *testing.T, results jetstream.Stream, last uint64)
			refused bool
		}{
			"purged": {func(t *testing.T, results jetstream.Stream, _ uint64) {
				t.Helper()
				purge(t, results)
			}, true},
			"purged up to a row ahead": {func(t *testing.T, results jetstream.Stream, last uint64) {
				t.Helper()
				purge(t, results, jetstream.WithPurgeSequence(resultAhead(t, results, last-10)+1))
			}, true},
			"a row ahead deleted": {func(t *testing.T, results jetstream.Stream, last uint64) {
				t.Helper()
				stagetest.Must(t, results.DeleteMsg(t.Context(), resultAhead(t, results, last-10)))
			}, true},
			"the end lost": {func(t *testing.T, results jetstream.Stream, last uint64) {
				t.Helper()
				for seq := last; seq > last-10; seq-- {
					stagetest.Must(t, results.DeleteMsg(t.Context(), seq))
				}
			}, false},
		} {
			runVirtual(t, string(order)+"/"+name, func(t *testing.T) {
				b := bare(t)
				stagetest.Value(b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"results.>"}}))(t)
				stagetest.Must(t, streams.Ensure(t.Context(), b.nc, stageStreams()))
				b.loadKeys(60, 10)
				r := b.startWith(b.ordered(order, "run1", hotExecutor(rowNeverAnswered)))
				b.until(54)
				time.Sleep(5 * time.Second)
				r.kill()
				results := b.stream("RESULTS")
				c.lose(t, results, results.CachedInfo().State.LastSeq)
				next := b.startWith(b.ordered(order, "run2", &sleeper{low: 50 * time.Millisecond, high: 300 * time.Millisecond}))
				if c.refused {
					if err := <-next.done; !errors.Is(err, consumer.ErrResumePointLost) {
						t.Errorf("got error %v, want %v", err, consumer.ErrResumePointLost)
					}
					next.kill()
					return
				}
				b.await("all rows", func() bool { st := next.Status(); return st.HighWaterMark == 60 && st.Ahead == 0 })
				next.stop(t)
				rows := make(map[uint64]int)
				for _, l := range b.readLog() {
					if l.claim == nil {
						rows[l.row]++
					}
				}
				for row := uint64(5); row <= 60; row++ {
					if rows[row] != 1 {
						t.Errorf("row %d has %d results", row, rows[row])
					}
				}
			})
		}
	}
}

func purge(t *testing.T, s jetstream.Stream, opts ...jetstream.StreamPurgeOpt) {
	t.Helper()
	stagetest.Must(t, s.Purge(t.Context(), opts...))
}

// A stage that has served waits until the results are back, and does not fill the log with claims meanwhile.
func TestAStageWaitsForResultsThatAreGone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := bare(t)
		stagetest.Value(b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"results.>"}}))(t)
		stagetest.Must(t, streams.Ensure(t.Context(), b.nc, stageStreams()))
		b.loadKeys(60, 10)
		r := b.startWith(b.ordered(streams.OrderKey, "run1", hotExecutor(rowNeverAnswered)))
		b.until(54)
		results := b.stream("RESULTS")
		stagetest.Must(t, results.DeleteMsg(t.Context(), resultAhead(t, results, results.CachedInfo().State.LastSeq-10)))
		b.stopServer()
		b.startServer()
		time.Sleep(2 * time.Minute)
		if st := r.Status(); !strings.Contains(st.Problem, consumer.ErrResumePointLost.Error()) {
			t.Errorf("got problem %q, want %q", st.Problem, consumer.ErrResumePointLost)
		}
		if n := b.stored("RESULTS", "results.stage.0.claim"); n > 2 {
			t.Errorf("got %d claims, want two", n)
		}
		r.stop(t)
	})
}
