package pool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/llm-stage/stage/pool"
)

// rider is a job of a lane or, if keyed, of the key of that number in lane 0. Its first attempt weighs 2 and the number,
// so that a gate sees who starts.
type rider struct {
	lane    int
	keyed   bool
	started bool
}

func (r *rider) Lane() int {
	if r.keyed {
		return 0
	}
	return r.lane
}

func (r *rider) Key() string {
	if r.keyed {
		return fmt.Sprint(r.lane)
	}
	return ""
}

func (r *rider) Weight(int) int64 {
	if r.started {
		return 0
	}
	return 2 + int64(r.lane)
}

// starts is a gate that lets everything pass and notes the lanes of first attempts in their order.
type starts struct{ note func(lane int) }

func (g starts) Next(now time.Time, _ int64) time.Time { return now }
func (g starts) Ended(time.Time, int64, int64)         {}
func (g starts) Sent(_ time.Time, weight int64) {
	if weight > 1 { // no retry and no single attempt
		g.note(int(weight) - 2)
	}
}

// riding returns a pool of riders that runs until the end of the bubble.
func riding(t rapid.TB, cfg pool.Config, note func(lane int), f func(*rider, pool.Attempt) pool.Verdict) (p *pool.Pool[*rider, int], stop func()) {
	t.Helper()
	cfg.Retry, cfg.Gates = pool.DefaultRetry(), []pool.Gate{starts{note}}
	p, err := pool.New(cfg, func(_ context.Context, r *rider, a pool.Attempt) (int, pool.Verdict) {
		r.started = true
		return 0, f(r, a)
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- p.Run(context.Background()) }()
	return p, func() {
		p.Drain()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// ledger counts the starts of lanes, and finds out by how much those of two lanes that had jobs in line all the while
// came to differ between any two moments.
type ledger struct {
	inLine []int
	ahead  [][]int // of two lanes: how many more starts the first had, since both have jobs in line
	most   [][]int // of ahead
	worst  int
}

func newLedger(lanes int) *ledger {
	l := &ledger{inLine: make([]int, lanes)}
	for range lanes {
		l.ahead, l.most = append(l.ahead, make([]int, lanes)), append(l.most, make([]int, lanes))
	}
	return l
}

func (l *ledger) start(lane int) {
	for other, n := range l.inLine {
		if other == lane || n == 0 {
			continue
		}
		l.ahead[lane][other]++
		l.ahead[other][lane]--
		l.most[lane][other] = max(l.most[lane][other], l.ahead[lane][other])
		l.most[other][lane] = max(l.most[other][lane], l.ahead[other][lane])
		l.worst = max(l.worst, l.most[lane][other]+l.most[other][lane])
	}
	if l.inLine[lane]--; l.inLine[lane] > 0 {
		return
	}
	for other := range l.inLine { // the lane is out: it begins again when it comes back
		l.ahead[lane][other], l.ahead[other][lane], l.most[lane][other], l.most[other][lane] = 0, 0, 0, 0
	}
}

func TestLanesTakeTurnsWhateverArrivesWhen(t *testing.T) { takingTurns(t, false) }

func TestKeysTakeTurnsWhateverArrivesWhen(t *testing.T) { takingTurns(t, true) }

func takingTurns(t *testing.T, keyed bool) {
	t.Helper()
	const lanes = 4
	rapid.Check(t, func(t *rapid.T) {
		type arrival struct{ lane, jobs, after int }
		arrivals := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) arrival {
			return arrival{rapid.IntRange(0, lanes-1).Draw(t, "lane"), rapid.IntRange(1, 12).Draw(t, "jobs"), rapid.IntRange(0, 60).Draw(t, "after")}
		}), 1, 25).Draw(t, "arrivals")
		size := rapid.IntRange(1, 6).Draw(t, "size")
		took := rapid.SliceOfN(rapid.IntRange(1, 30), 1, 20).Draw(t, "took")
		rejected := rapid.IntRange(0, 3).Draw(t, "rejected")
		rapid.SyncTest(t, func(t *rapid.T) {
			var mu sync.Mutex
			l, calls, total, done := newLedger(lanes), 0, 0, make(chan struct{}, 500)
			cfg := pool.Config{Size: size, Law: &recorder{}}
			p, stop := riding(t, cfg, func(lane int) {
				mu.Lock()
				defer mu.Unlock()
				l.start(lane)
			}, func(_ *rider, a pool.Attempt) pool.Verdict {
				mu.Lock()
				calls++
				d := took[calls%len(took)]
				mu.Unlock()
				time.Sleep(time.Duration(d) * ms)
				if a.CapacityRetries < rejected {
					return busy
				}
				return ok
			})
			defer stop()
			for _, a := range arrivals {
				time.Sleep(time.Duration(a.after) * ms)
				for range a.jobs {
					synctest.Wait() // so that nothing starts between here and Submit
					mu.Lock()
					l.inLine[a.lane]++
					mu.Unlock()
					if err := p.Submit(t.Context(), &rider{lane: a.lane, keyed: keyed}, func(pool.Result[*rider, int]) { done <- struct{}{} }); err != nil {
						t.Fatal(err)
					}
					total++
				}
			}
			for range total {
				<-done
			}
			if l.worst > 1 {
				t.Fatalf("between two moments a lane had %d more starts than another that had jobs in line all the while", l.worst)
			}
		})
	})
}

// A lane fills the queue and its owner waits for room; then seven others come, each with more jobs than there is room
// for.
func TestALaneThatFillsTheQueueKeepsNoOtherOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes, limit = 8, 40
		counts := make([]int, lanes)
		var began, worst, wait int
		p, stop := riding(t, pool.Config{Size: 4, QueueLimit: limit, Law: spaced(t, 500*ms)}, func(lane int) {
			counts[lane]++
			if began == 0 {
				return
			}
			if lane > 0 && counts[lane] == 1 {
				wait = max(wait, counts[0]-began+counts[1]+counts[2]+counts[3]+counts[4]+counts[5]+counts[6]+counts[7])
			}
			others := counts[1:]
			least, most := counts[0]-began, counts[0]-began
			for _, n := range others {
				least, most = min(least, n), max(most, n)
			}
			worst = max(worst, most-least)
		}, func(*rider, pool.Attempt) pool.Verdict { time.Sleep(time.Second); return ok })
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var feeders sync.WaitGroup
		feed := func(lane int) {
			feeders.Go(func() {
				var err error
				for err == nil {
					err = p.Submit(ctx, &rider{lane: lane}, func(pool.Result[*rider, int]) {})
				}
			})
		}
		feed(0)
		time.Sleep(10*time.Second + 100*ms)
		if got := p.Stats().Waiting; got != limit {
			t.Errorf("%d jobs of one lane wait, want %d", got, limit)
		}
		synctest.Wait()
		began = counts[0]
		for lane := 1; lane < lanes; lane++ {
			feed(lane)
		}
		synctest.Wait()
		if got := p.Stats().Waiting; got <= limit || got > 2*limit+lanes {
			t.Errorf("%d jobs of %d lanes wait, the limit is %d", got, lanes, limit)
		}
		feeders.Wait()
		synctest.Wait()
		if worst > 1 || wait > lanes {
			t.Errorf("starts differed by up to %d, and a lane had its first after %d of all: %v", worst, wait, counts)
		}
	})
}

func TestRoomIsWhatSubmitTakesAndOnRoomSaysWhenThereIsMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls int
		p, stop := riding(t, pool.Config{Size: 1, QueueLimit: 4, OnRoom: func() { calls++ }}, func(int) {},
			func(*rider, pool.Attempt) pool.Verdict { time.Sleep(time.Second); return ok })
		defer stop()
		for lane, want := range []int{4, 2, 1, 1, 1} {
			if got := p.Room(lane); got != want {
				t.Errorf("room for %d jobs of lane %d, want %d", got, lane, want)
			}
			for range p.Room(lane) {
				submitRider(t, p, lane)
			}
			synctest.Wait()
			if lane == 0 {
				submitRider(t, p, lane) // the first is in flight
			}
		}
		if p.Room(0) > 0 || p.Room(1) > 0 || p.Room(9) != 1 {
			t.Errorf("room for %d, %d and %d jobs", p.Room(0), p.Room(1), p.Room(9))
		}
		if err := p.Add(&rider{lane: 0}, func(pool.Result[*rider, int]) {}); err != nil || p.Stats().PoolSize != 1 {
			t.Error(err)
		}
		before := calls
		p.Recall(func(r *rider) bool { return r.lane == 0 })
		synctest.Wait()
		if calls != before+1 || p.Room(0) != 1 {
			t.Errorf("called %d times about the room for %d jobs", calls-before, p.Room(0))
		}
	})
}

// A full queue asks for more after a quarter of it, not after each job; where lanes take turns, or keys, at once.
func TestAFullQueueAsksForManyJobsAtOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		other *rider // among them; nil: none
		want  int    // calls while a quarter of the queue leaves
	}{
		{"one lane", nil, 1},
		{"two lanes", &rider{lane: 1}, 10},
		{"keys", &rider{lane: 1, keyed: true}, 10},
	} {
		bubble(t, c.name, func(t *testing.T) {
			const limit = 40
			var calls atomic.Int32
			p, stop := riding(t, pool.Config{Size: 1, QueueLimit: limit, OnRoom: func() { calls.Add(1) }}, func(int) {},
				func(*rider, pool.Attempt) pool.Verdict { time.Sleep(time.Second); return ok })
			defer stop()
			job := func() *rider { return &rider{keyed: c.other != nil && c.other.keyed} }
			submit := func(r *rider) {
				if err := p.Add(r, func(pool.Result[*rider, int]) {}); err != nil {
					t.Fatal(err)
				}
			}
			submit(job())
			synctest.Wait() // it is in flight
			for i := range limit {
				if c.other != nil && i%2 == 1 {
					other := *c.other
					submit(&other)
					continue
				}
				submit(job())
			}
			synctest.Wait()
			before := calls.Load()
			time.Sleep(limit/4*time.Second + time.Millisecond)
			synctest.Wait()
			if got := int(calls.Load() - before); got != c.want || p.Room(0) != limit/4 {
				t.Errorf("called %d times, want %d; room for %d jobs", got, c.want, p.Room(0))
			}
		})
	}
}

func submitRider(t *testing.T, p *pool.Pool[*rider, int], lane int) {
	t.Helper()
	if err := p.Submit(t.Context(), &rider{lane: lane}, func(pool.Result[*rider, int]) {}); err != nil {
		t.Fatal(err)
	}
}

// Three jobs of each of two lanes are in line when a single attempt comes, and more come after it.
func TestASingleAttemptWaitsForAsManyJobsAsWereInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		p, stop := riding(t, pool.Config{Size: 1}, func(lane int) { order = append(order, fmt.Sprint(lane)) },
			func(*rider, pool.Attempt) pool.Verdict { time.Sleep(time.Second); return ok })
		defer stop()
		o := pool.NewOnce(p, func(context.Context, string, pool.Attempt) (string, pool.Verdict) {
			order = append(order, "single")
			return "", ok
		})
		submitRider(t, p, 9)
		synctest.Wait()
		for lane := range 2 {
			for range 3 {
				submitRider(t, p, lane)
			}
		}
		synctest.Wait()
		go o.Do(t.Context(), "x")
		synctest.Wait()
		for range 3 {
			submitRider(t, p, 2)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, want := strings.Join(order, " "), "9 0 1 2 0 1 2 single 0 1 2"; !strings.HasPrefix(got, want) {
			t.Errorf("order %s, want %s", got, want)
		}
	})
}

// Jobs start in another order than that of submission, and each has its own time from its start.
func TestRowTimeoutCountsFromTheStartWhateverTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := pool.Config{Size: 5, Law: spaced(t, time.Second), RowTimeout: 10500 * ms}
		p, stop := riding(t, cfg, func(int) {}, func(_ *rider, a pool.Attempt) pool.Verdict {
			if a.Number == 1 { // five start, of all lanes, before one is rejected
				time.Sleep(5 * time.Second)
			}
			return busy
		})
		defer stop()
		n := 0
		for _, lane := range []int{0, 0, 0, 0, 0, 0, 1, 1, 2} {
			err := p.Submit(t.Context(), &rider{lane: lane}, func(r pool.Result[*rider, int]) {
				n++
				if took := r.Finished.Sub(r.Started); !errors.Is(r.Err, pool.ErrRowTimeout) || took != cfg.RowTimeout {
					t.Errorf("a job of lane %d gave up after %v, want %v: %v", lane, took, cfg.RowTimeout, r.Err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n != 9 {
			t.Errorf("%d jobs are done, want 9", n)
		}
	})
}
