package consumer_test

import (
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/spread"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
)

// announced is what a replica that is not ours announces.
type announced struct {
	ID         string `json:"id"`
	Partitions int    `json:"partitions"`
	Owned      []int  `json:"owned"`
	Standby    []int  `json:"standby,omitempty"`
}

// announce repeats it until the returned function is called.
func (b *testbed) announce(a announced) (stop func()) {
	b.t.Helper()
	a.Partitions = b.partitions
	body := stagetest.Value(json.Marshal(a))(b.t)
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if err := b.nc.Publish(spread.Subject("stage"), body); err != nil {
				b.t.Error(err)
			}
			select {
			case <-over:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	time.Sleep(time.Millisecond)
	return func() {
		close(over)
		wg.Wait()
	}
}

// watch lets time pass and returns the longest time that each partition was without an owner, and how often each
// changed hands.
func (b *testbed) watch(d time.Duration, mates ...*crewMate) (unserved time.Duration, moves []int) {
	const step = 50 * time.Millisecond
	since, last := slices.Repeat([]time.Duration{0}, b.partitions), make([]*crewMate, b.partitions)
	moves = make([]int, b.partitions)
	for range d / step {
		time.Sleep(step)
		owner := make([]*crewMate, b.partitions)
		for _, m := range mates {
			for _, p := range m.owns() {
				owner[p] = m
			}
		}
		for p, m := range owner {
			if since[p] += step; m != nil {
				since[p] = 0
				if last[p] != nil && last[p] != m {
					moves[p]++
				}
				last[p] = m
			}
			unserved = max(unserved, since[p])
		}
	}
	return unserved, moves
}

func (b *testbed) claims() (n int) {
	for p := range b.partitions {
		n += b.stored("RESULTS", streams.ClaimSubject("results", "stage", p))
	}
	return n
}

// TestAReplicaThatServesNothingCostsItsOwnShareOnly has a replica that announces itself and serves nothing.
// Rows of what it should serve wait for seconds at most, and nothing that is served changes hands because of it.
func TestAReplicaThatServesNothingCostsItsOwnShareOnly(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for _, tt := range []struct {
		name   string
		other  announced
		before bool // it is there first
		claims int
	}{
		{"silent, there before", announced{ID: "idle", Owned: []int{}}, true, 8},
		{"silent, comes later", announced{ID: "idle", Owned: []int{}}, false, 8},
		{"claims all, there before", announced{ID: "idle", Owned: all}, true, 8},
		{"claims all, with the first id", announced{ID: "aaa", Owned: all}, true, 8},
		{"claims all, comes later", announced{ID: "aaa", Owned: all}, false, 8},
		{"claims some", announced{ID: "aaa", Owned: []int{2, 3, 4}}, false, 8},
		{"stands by and takes nothing", announced{ID: "aaa", Owned: []int{}, Standby: all}, true, 8 + 4*5},
	} {
		runVirtual(t, tt.name, func(t *testing.T) {
			b := partitioned(t)
			rows := b.feed()
			silence := func() {}
			if tt.before {
				silence = b.announce(tt.other)
				time.Sleep(time.Second)
			}
			mate := b.mate("busy", &sleeper{high: 10 * time.Millisecond})
			if !tt.before {
				time.Sleep(5 * time.Second)
				silence = b.announce(tt.other)
			}
			unserved, _ := b.watch(30*time.Second, mate)
			if unserved > 5*time.Second+200*time.Millisecond { // until it is noticed that a claim is a lie
				t.Errorf("a partition was without an owner for %v", unserved)
			}
			if n := b.claims(); n > tt.claims {
				t.Errorf("%d claims, want at most %d: partitions were handed over for nothing", n, tt.claims)
			}
			b.awaitRows(rows())
			mate.stop()
			silence()
		})
	}
}

// awaitRows waits until each partition has so many results.
func (b *testbed) awaitRows(n int) {
	b.t.Helper()
	for p := range b.partitions {
		b.await("all results", func() bool {
			return b.stored("RESULTS", streams.ResultSubject("results", "stage", p)) == n
		})
	}
}

// TestSharesAreEvenSoonAfterTheLastChange has a replica that serves nothing go away, come back able, and another join.
func TestSharesAreEvenSoonAfterTheLastChange(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := partitioned(t)
		rows := b.feed()
		silence := b.announce(announced{ID: "third", Owned: []int{}})
		exec := func() *sleeper { return &sleeper{high: 10 * time.Millisecond} }
		first, second := b.mate("first", exec()), b.mate("second", exec())
		time.Sleep(20 * time.Second)
		b.awaitShares([]int{4, 4}, first, second) // what was taken over is spread, too
		silence()
		time.Sleep(2 * time.Second)
		b.awaitShares([]int{4, 4}, first, second)
		third := b.mate("third", exec()) // the same replica, able now
		b.awaitShares([]int{2, 3, 3}, first, second, third)
		if _, moves := b.watch(10*time.Second, first, second, third); slices.Max(moves) > 0 {
			t.Errorf("partitions kept moving: %v", moves)
		}
		b.awaitRows(rows())
		first.stop()
		second.stop()
		third.stop()
	})
}

// TestReplicasThatStartTogetherServeSoon starts eight at once for 32 partitions.
func TestReplicasThatStartTogetherServeSoon(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := partitionedInto(t, 32)
		rows := b.feed()
		time.Sleep(time.Millisecond)
		var mates []*crewMate
		for _, run := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			mates = append(mates, b.mate(run, &sleeper{high: 10 * time.Millisecond}))
		}
		time.Sleep(1500 * time.Millisecond)
		for _, m := range mates {
			if owns := m.owns(); len(owns) != 4 {
				t.Errorf("%s owns %v, want four partitions", m.run, owns)
			}
		}
		if n := b.claims(); n != 32 {
			t.Errorf("%d claims, want one for each of 32 partitions", n)
		}
		b.awaitRows(rows())
		for _, m := range mates {
			m.stop()
		}
	})
}

// TestAnIdleStageSendsTheServerFewRequests counts the requests to the server's API while all is well and no row waits.
func TestAnIdleStageSendsTheServerFewRequests(t *testing.T) {
	const most = 1 // request a second from each replica
	for _, tt := range []struct {
		name                 string
		partitions, replicas int
		rows                 bool
	}{
		{"16 partitions, four replicas", 16, 4, true},
		{"8 partitions, one replica", 8, 1, true},
		{"8 partitions, two replicas, no row ever", 8, 2, false},
	} {
		runVirtual(t, tt.name, func(t *testing.T) {
			b := partitionedInto(t, tt.partitions)
			stop := func() int { return 0 }
			if tt.rows {
				stop = b.feed()
			}
			var mates []*crewMate
			for i := range tt.replicas {
				mates = append(mates, b.mate(string(rune('a'+i)), &sleeper{high: 10 * time.Millisecond}))
			}
			time.Sleep(3 * time.Second)
			stop()
			time.Sleep(20 * time.Second)
			const during = time.Minute
			before := b.requests()
			time.Sleep(during)
			if got := float64(b.requests()-before) / during.Seconds() / float64(tt.replicas); got > most {
				t.Errorf("%.2f requests a second from each replica, want at most %d", got, most)
			} else {
				t.Logf("%.2f requests a second from each replica", got)
			}
			for _, m := range mates {
				m.stop()
			}
		})
	}
}

// TestAnIdleStandbySendsTheServerFewRequests does the same for a stage without partitions.
func TestAnIdleStandbySendsTheServerFewRequests(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(5)
		first := b.start("first", &sleeper{})
		b.until(5)
		second := b.start("second", &sleeper{})
		time.Sleep(20 * time.Second)
		const during = 2 * time.Minute
		before := b.requests()
		time.Sleep(during)
		if got := float64(b.requests()-before) / during.Seconds() / 2; got > 1 {
			t.Errorf("%.2f requests a second from each replica, want at most 1", got)
		}
		second.stop(t)
		first.stop(t)
	})
}

// requests is how many requests the server's API has served.
func (b *testbed) requests() uint64 {
	b.t.Helper()
	info := stagetest.Value(b.srv.Jsz(nil))(b.t)
	return info.API.Total
}
