package consumer_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
)

// releasedFanner answers the first of two elements of a row, and has the second wait for a slot for five seconds, if it is
// not recalled. Of the first rows it has the second in flight, so that their partitions drain for a while.
type releasedFanner struct {
	*fanner
	first uint64    // rows up to it
	busy  time.Time // until then there is no slot

	mu      sync.Mutex
	waiting map[simJob]chan struct{} // closed: it is recalled
}

func (r *releasedFanner) Start(row *consumer.Row) {
	_, jobs := openFan(row, r.elements, func(int, *consumer.Kept) {})
	for _, j := range jobs {
		recalled := make(chan struct{})
		if j.item == 1 && row.Seq > r.first {
			r.mu.Lock()
			r.waiting[j] = recalled
			r.mu.Unlock()
		}
		r.wg.Go(func() { r.work(j, recalled) })
	}
}

func (r *releasedFanner) work(j simJob, recalled <-chan struct{}) {
	if j.item == 1 && j.row.Seq > r.first {
		select {
		case <-recalled:
			j.handBack()
			return
		case <-time.After(time.Until(r.busy)):
		case <-r.over:
			return
		}
		r.mu.Lock()
		delete(r.waiting, j)
		r.mu.Unlock()
	}
	r.call(j)
}

func (r *releasedFanner) Recall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for j, recalled := range r.waiting {
		if !j.row.Wanted() {
			delete(r.waiting, j)
			close(recalled)
		}
	}
}

// A process hands its partition over while the journal takes nothing. A row that it hands back has the reply to one of its
// elements in memory alone. The next owner stores nothing, and the partition comes back.
func TestAHandOverWithAFullJournalPaysForNoElementAgain(t *testing.T) {
	runOnTestbed(t, "full journal", func(t *testing.T, b *testbed) {
		const rows = 6
		b.load(rows)
		exec := &releasedFanner{busy: time.Now().Add(time.Minute), waiting: map[simJob]chan struct{}{}}
		exec.fanner = newFanner(b, 2, func(simElement) time.Duration { return 100 * time.Millisecond })
		first := b.start("first", exec)
		b.limit("JOURNAL", 1)
		time.Sleep(time.Second) // each first element is answered
		second := b.start("second", &sleeper{low: time.Hour, high: time.Hour})
		time.Sleep(time.Second)
		first.StandAside(true)
		second.awaitOwner(b)
		second.kill()
		b.until(rows)
		exec.fanner.mu.Lock()
		for of, calls := range exec.calls {
			if calls != 1 {
				t.Errorf("%d calls for element %d of row %d, want 1", calls, of.item, of.row)
			}
		}
		exec.fanner.mu.Unlock()
		first.stop(t)
	})
}

// A process releases partitions, and loses the connection while their last calls are waited for. Rows that were handed
// back before that have replies to elements which are in no journal yet: the next term in the process goes on with them.
func TestAReleaseThatLosesTheConnectionPaysForNoElementAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := partitioned(t)
		const rows = 10 // of each partition
		for range rows {
			for p := range b.partitions {
				stagetest.Value(b.js.Publish(t.Context(), fmt.Sprintf("rows.%d.a", p), []byte(`{}`)))(t)
			}
		}
		exec := &releasedFanner{first: uint64(b.partitions), busy: time.Now().Add(5 * time.Second), waiting: map[simJob]chan struct{}{}} //nolint:gosec // a count
		exec.fanner = newFanner(b, 2, func(of simElement) time.Duration {
			if of.item == 1 && time.Now().Before(exec.busy) {
				return 20 * time.Second
			}
			return 100 * time.Millisecond
		})
		cfg := b.config("first", exec)
		cfg.JournalAfter = time.Hour
		first := b.mateWith(cfg)
		time.Sleep(2 * time.Second)
		second := b.mateWith(b.config("second", newQueuer(t, 1, func() time.Duration { return time.Second })))
		time.Sleep(1500 * time.Millisecond) // the first has released half of them
		second.kill()
		stagetest.Must(t, first.nc.ForceReconnect())
		time.Sleep(time.Minute)
		for p := range b.partitions {
			if n := b.stored("RESULTS", streams.ResultSubject("results", "stage", p)); n != rows {
				t.Errorf("partition %d: %d of %d results", p, n, rows)
			}
		}
		exec.fanner.mu.Lock()
		for of, calls := range exec.calls {
			if calls != 1 {
				t.Errorf("%d calls for element %d of row %d, want 1", calls, of.item, of.row)
			}
		}
		exec.fanner.mu.Unlock()
		first.kill()
	})
}
