package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

var (
	errRefused = errors.New("connection refused")
	errGateway = errors.New("502 bad gateway")

	refused  = pool.Verdict{Class: pool.Transient, Origin: pool.OfNetwork, Err: errRefused}
	sick     = pool.Verdict{Class: pool.Transient, Origin: pool.OfServer, Err: errGateway}
	sickOnce = pool.Verdict{Class: pool.Permanent, Origin: pool.OfServer, Err: errGateway} // "do not retry"
)

// world is a server, or several, with outages. A call that meets one fails after 5 ms, and one that is under way when it
// begins fails at that moment.
type world struct {
	took    time.Duration         // by a call that succeeds
	spread  time.Duration         // by how much it varies from job to job
	hangs   time.Duration         // what a call takes in an outage; 0: 5 ms
	outages []outage              // in order of time
	poison  map[int]pool.Verdict  // jobs that always meet this
	random  func(job, n int) bool // whether attempt n meets a sick server
	servers map[int]*world        // that others ask

	mu    sync.Mutex
	begin time.Time
	calls []sent
	pause []string
	lost  int // calls, as the pool says
}

type outage struct {
	from, to time.Duration
	verdict  pool.Verdict
}

type sent struct {
	at    time.Duration
	job   int
	out   bool // in an outage, or cut by it
	probe bool
	at1   bool // of a fallback
}

func (w *world) outAt(at time.Duration) *outage {
	for i := range w.outages {
		if o := &w.outages[i]; at >= o.from && at < o.to {
			return o
		}
	}
	return nil
}

// next returns the first outage that begins after an instant.
func (w *world) next(at time.Duration) *outage {
	for i := range w.outages {
		if o := &w.outages[i]; o.from > at {
			return o
		}
	}
	return nil
}

func (w *world) call(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
	at := time.Since(w.begin)
	if other := w.servers[a.Server]; other != nil {
		w.note(sent{at: at, job: in, probe: a.Probe, at1: true})
		return other.call(ctx, in, a)
	}
	took, v := w.took+w.spread*time.Duration(in%7)/7, ok
	if p, is := w.poison[in]; is {
		took, v = 5*ms, p
	}
	if w.random != nil && w.random(in, a.Number) {
		v = sick
	}
	o := w.outAt(at)
	if next := w.next(at); o == nil && next != nil && at+took > next.from {
		took, v = next.from-at, next.verdict
		o = next
	} else if o != nil {
		took, v = max(w.hangs, 5*ms), o.verdict
	}
	w.note(sent{at: at, job: in, out: o != nil, probe: a.Probe})
	if pause(ctx, took) {
		return 0, cancelled
	}
	return in, v
}

func (w *world) note(c sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, c)
}

// during returns the calls that went within a span.
func (w *world) during(from, to time.Duration) (calls []sent) {
	for _, c := range w.calls {
		if c.at >= from && c.at < to {
			calls = append(calls, c)
		}
	}
	return calls
}

func (w *world) running(t *testing.T, cfg pool.Config) *pool.Pool[int, int] {
	t.Helper()
	w.begin = time.Now()
	for _, other := range w.servers {
		other.begin = w.begin
	}
	rng := rand.New(rand.NewPCG(1, 2))
	cfg.Rand = rng.Float64
	cfg.OnPause = func(p pool.Pause) { w.pause = append(w.pause, p.Kind.String()) }
	cfg.OnResume = func(p pool.Pause) {
		w.lost += p.Lost
		if p.Passed {
			w.pause = append(w.pause, "passed")
		}
	}
	return running(t, cfg, w.call)
}

// failed returns the jobs that failed.
func failed(results []result) (jobs []int) {
	for _, r := range results {
		if r.Err != nil {
			jobs = append(jobs, r.In)
		}
	}
	return jobs
}

func TestAnOutageCostsNoJob(t *testing.T) {
	const back = 40 * time.Second
	for name, verdict := range map[string]pool.Verdict{"refused": refused, "sick": sick, "sick, not to be retried": sickOnce} {
		for _, from := range []time.Duration{0, 10 * time.Second} {
			for _, size := range []int{1, 2, 4, 64} {
				t.Run(fmt.Sprintf("%s from %v on, %d at a time", name, from, size), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := world{took: time.Second, outages: []outage{{from, back, verdict}}}
						p := w.running(t, pool.Config{Size: size})
						results := batch(t, p, 30*size)
						if jobs := failed(results); jobs != nil {
							t.Errorf("%d jobs failed: %v", len(jobs), jobs)
						}
						var lost []sent
						for _, c := range w.calls {
							if c.out {
								lost = append(lost, c)
							}
						}
						// Those in flight, those that showed it, and a probe each second or each 1.25 s.
						wait := 1250 * ms
						if name == "refused" {
							wait = time.Second
						}
						if most := size + 10 + int((back-from)/wait); len(lost) > most {
							t.Errorf("%d calls were lost, want at most %d", len(lost), most)
						}
						first := w.calls[len(lost)]
						if i := slices.IndexFunc(w.calls, func(c sent) bool { return c.at >= back }); i >= 0 {
							first = w.calls[i]
						}
						if late := first.at - back; late > 1250*ms {
							t.Errorf("the first call after it went %v late", late)
						}
						if want := []string{"outage"}; !slices.Equal(w.pause, want) {
							t.Errorf("pauses %v, want %v", w.pause, want)
						}
						if w.lost != len(lost) {
							t.Errorf("%d calls are said to be lost, %d were", w.lost, len(lost))
						}
					})
				})
			}
		}
	}
}

// A poison job meets a sick server each time, and the others don't: its failures are its own.
func TestAPoisonJobFailsAfterItsAttempts(t *testing.T) {
	for _, size := range []int{1, 2, 4, 64} {
		for name, verdict := range map[string]pool.Verdict{"sick": sick, "sick, not to be retried": sickOnce} {
			t.Run(fmt.Sprintf("%s, %d at a time", name, size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := world{took: time.Second, poison: map[int]pool.Verdict{3: verdict, 7: verdict}}
					p := w.running(t, pool.Config{Size: size})
					results := batch(t, p, 20*size)
					if jobs := failed(results); !slices.Equal(jobs, []int{3, 7}) {
						t.Errorf("jobs %v failed", jobs)
					}
					want := 3
					if verdict.Class == pool.Permanent {
						want = 1
					}
					if r := results[3]; r.Attempts != want || !errors.Is(r.Err, errGateway) {
						t.Errorf("%d attempts, %v; want %d", r.Attempts, r.Err, want)
					}
					if len(w.pause) != 0 {
						t.Errorf("pauses %v", w.pause)
					}
				})
			})
		}
	}
}

// Poison jobs at the end of all, when no other is left to tell, end by their attempts; the rest of an input may be such.
func TestPoisonJobsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: time.Second, spread: 500 * ms, poison: map[int]pool.Verdict{}}
		for in := 96; in < 100; in++ {
			w.poison[in] = sick
		}
		p := w.running(t, pool.Config{Size: 4})
		results := batch(t, p, 100)
		if jobs := failed(results); !slices.Equal(jobs, []int{96, 97, 98, 99}) {
			t.Errorf("jobs %v failed", jobs)
		}
	})
}

func TestALoneJobEndsByItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: time.Second, poison: map[int]pool.Verdict{0: sick}}
		p := w.running(t, pool.Config{Size: 4})
		if r := batch(t, p, 1)[0]; r.Attempts != 3 || !errors.Is(r.Err, errGateway) {
			t.Errorf("%d attempts, %v", r.Attempts, r.Err)
		}
	})
}

// A lone job that reaches no server never fails: that is nobody's fault but the world's.
func TestALoneJobWaitsForAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: time.Second, outages: []outage{{0, time.Hour, refused}}}
		p := w.running(t, pool.Config{Size: 4})
		if r := batch(t, p, 1)[0]; r.Err != nil {
			t.Error(r.Err)
		}
		if n := len(w.calls); n > 5+600 {
			t.Errorf("%d calls in an hour", n)
		}
		if want := []string{"outage"}; !slices.Equal(w.pause, want) {
			t.Errorf("pauses %v", w.pause)
		}
	})
}

// Failures at random are the jobs' own, and no outage, while others succeed between them.
func TestFailuresAtRandomAreTheJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		bad := make([]int, 5000) // how many attempts of a job fail
		for i := range bad {
			for bad[i] < 3 && rng.Float64() < .2 {
				bad[i]++
			}
		}
		w := world{took: time.Second, random: func(job, n int) bool { return n <= bad[job] }}
		p := w.running(t, pool.Config{Size: 32, QueueLimit: 5000})
		results := batch(t, p, len(bad))
		want := 0
		for i, n := range bad {
			if n == 3 {
				want++
			}
			// A job whose failures two others did not see a success between may have one more attempt.
			if a := results[i].Attempts; n < 3 && (results[i].Err != nil || a != n+1) {
				t.Errorf("job %d: %v after %d attempts, want %d", i, results[i].Err, a, n+1)
			}
		}
		// And where by chance a third fails for a while the server passes for ill, which saves some jobs.
		if n := len(failed(results)); n > want || n < want*6/10 {
			t.Errorf("%d jobs failed, want %d", n, want)
		}
		if len(w.pause) > 1 { // in three minutes
			t.Errorf("pauses %v", w.pause)
		}
	})
}

// A server that fails half of all calls is ill, though it has successes: no job is lost to it, and it is no outage. While
// that is not known, in the first seconds, three attempts are all, and a few failures in a row may pass for an outage.
func TestAServerThatFailsHalfOfAllCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(5, 6))
		var mu sync.Mutex
		w := world{took: time.Second, random: func(int, int) bool {
			mu.Lock()
			defer mu.Unlock()
			return rng.Float64() < .5
		}}
		p := w.running(t, pool.Config{Size: 32, QueueLimit: 4000})
		results := batch(t, p, 4000)
		if jobs := failed(results); len(jobs) > 8 || len(jobs) > 1 && jobs[len(jobs)-2] > 100 { // later one in 260,000
			t.Errorf("jobs %v failed", jobs)
		}
		if len(w.pause) > 4 { // in two minutes
			t.Errorf("pauses %v", w.pause)
		}
	})
}

// A server that becomes ill is noticed before jobs have used up their attempts. And it does not pass for a healthy one
// when the pool sends less, at the end, and only successes are left to come: failures take a moment, successes a second.
func TestAServerThatFailsHalfOfAllCallsFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		p := running(t, pool.Config{Size: 64, QueueLimit: 6000, Rand: rand.New(rand.NewPCG(7, 8)).Float64}, func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			random := rand.New(rand.NewPCG(uint64(in), uint64(a.Number))).Float64() // not by the order of calls
			if time.Since(begin) > 20*time.Second && random < .5 {
				if pause(ctx, 60*ms) {
					return 0, cancelled
				}
				return 0, sick
			}
			return sleeper(1200*ms+time.Duration(in))(ctx, in, a)
		})
		if jobs := failed(batch(t, p, 6000)); len(jobs) > 1 {
			t.Errorf("jobs %v failed", jobs)
		}
	})
}

// Every second connection is refused: the other backend serves all.
func TestOneOfTwoBackendsIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		begin := time.Now()
		var mu sync.Mutex
		p := running(t, pool.Config{Size: 32}, func(ctx context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
			mu.Lock()
			n++
			dead := n%2 == 0
			mu.Unlock()
			if dead {
				return 0, refused
			}
			return sleeper(time.Second)(ctx, in, pool.Attempt{})
		})
		if jobs := failed(batch(t, p, 3200)); jobs != nil {
			t.Errorf("jobs %v failed", jobs)
		}
		if took := time.Since(begin); took > 112*time.Second {
			t.Errorf("took %v, without the dead one it is 100 s", took)
		}
	})
}

// The job that probes is another each time, so that a poison job can't hold the door.
func TestProbesAskOneJobAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: time.Second, outages: []outage{{5 * time.Second, 60 * time.Second, sick}}}
		p := w.running(t, pool.Config{Size: 4, QueueLimit: 16})
		if jobs := failed(batch(t, p, 60)); jobs != nil {
			t.Errorf("jobs %v failed", jobs)
		}
		var probes []int
		for _, c := range w.during(6*time.Second, 60*time.Second) {
			if !c.probe {
				t.Errorf("a call that is no probe, at %v", c.at)
			}
			probes = append(probes, c.job)
		}
		if first := slices.Sorted(slices.Values(probes[:10])); len(slices.Compact(first)) != 10 {
			t.Errorf("the first probes asked %v", probes[:10])
		}
	})
}

// A server that accepts and never answers: what hangs is bounded, and a probe that hangs does not keep the next from
// going.
func TestAProbeThatHangsKeepsNoOtherFromGoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const from, back = 10 * time.Second, 70 * time.Second
		w := world{took: time.Second, hangs: 30 * time.Second, outages: []outage{{from, back, sick}}}
		p := w.running(t, pool.Config{Size: 8})
		if jobs := failed(batch(t, p, 200)); jobs != nil {
			t.Errorf("jobs %v failed", jobs)
		}
		after := w.during(back, time.Hour)
		if late := after[0].at - back; late > 2500*ms {
			t.Errorf("the first call after it went %v late", late)
		}
		if n := len(w.during(from, back)); n > 8+8+60 {
			t.Errorf("%d calls hung", n)
		}
	})
}

func TestJobsFailWhenAnOutageHoldsThemTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: time.Second, outages: []outage{{3500 * ms, 30 * time.Second, refused}}}
		p := w.running(t, pool.Config{Size: 2, QueueLimit: 4, OutageHold: 10 * time.Second})
		results := batch(t, p, 40)
		held := 0
		for _, r := range results {
			if r.Err == nil {
				continue
			}
			held++
			if !errors.Is(r.Err, pool.ErrOutage) || !errors.Is(r.Err, errRefused) {
				t.Errorf("job %d: %v", r.In, r.Err)
			}
			since := max(3500*ms, r.Queued.Sub(w.begin))
			if d := r.Finished.Sub(w.begin) - since; d < 10*time.Second || d > 11500*ms {
				t.Errorf("job %d was held for %v", r.In, d)
			}
		}
		if held < 6 || held > 14 { // a queue of them, twice
			t.Errorf("%d jobs failed", held)
		}
	})
}

func TestJobsPassAnOutage(t *testing.T) {
	for _, test := range []struct {
		after  time.Duration // FallbackAfter
		passed time.Duration // when jobs go past
		pause  []string
	}{
		{after: 20 * time.Second, passed: 30 * time.Second, pause: []string{"outage", "passed"}},
		{after: 0, passed: 10 * time.Second, pause: nil}, // as when their attempts are used up
	} {
		t.Run(test.after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const back = 60 * time.Second
				w := world{took: time.Second, outages: []outage{{10 * time.Second, back, sick}}, servers: map[int]*world{1: {took: time.Second}}}
				p := w.running(t, pool.Config{Size: 4, FallbackAfter: test.after, Fallbacks: []pool.Server{{}}})
				if jobs := failed(batch(t, p, 400)); jobs != nil {
					t.Errorf("jobs %v failed", jobs)
				}
				passed := slices.IndexFunc(w.calls, func(c sent) bool { return c.at1 })
				if at := w.calls[passed].at; at < test.passed || at > test.passed+2*time.Second {
					t.Errorf("the first job passed at %v", at)
				}
				for _, c := range w.during(back+4*time.Second, time.Hour) {
					if c.at1 {
						t.Errorf("a job passed at %v, long after it was back", c.at)
						break
					}
				}
				if !slices.Equal(w.pause, test.pause) {
					t.Errorf("pauses %v, want %v", w.pause, test.pause)
				}
			})
		})
	}
}

// A job that used up its attempts at the first server and meets an outage of the fallback goes to the first again: it is
// not lost while nobody says that it is the job's fault.
func TestAnOutageOfAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{
			took: time.Second, outages: []outage{{10 * time.Second, 40 * time.Second, sick}},
			servers: map[int]*world{1: {took: time.Second, outages: []outage{{5 * time.Second, 90 * time.Second, refused}}}},
		}
		p := w.running(t, pool.Config{Size: 4, Fallbacks: []pool.Server{{}}})
		if jobs := failed(batch(t, p, 200)); jobs != nil {
			t.Errorf("jobs %v failed", jobs)
		}
		if late := w.during(40*time.Second, time.Hour)[0].at - 40*time.Second; late > 1250*ms {
			t.Errorf("the first server was asked %v late", late)
		}
	})
}

// With both servers out and back again, a job that always fails probes in turns with others.
func TestAPoisonJobCantHoldTheDoorsOfTwoServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poison := map[int]pool.Verdict{20: sick} // the first of those that the outage holds
		w := world{
			took: time.Second, poison: poison, outages: []outage{{5 * time.Second, 40 * time.Second, sick}},
			servers: map[int]*world{1: {
				// A moment later, so that one server is probed while no probe of the other is in flight.
				took: time.Second, poison: poison, outages: []outage{{5130 * ms, 40 * time.Second, sick}},
			}},
		}
		p := w.running(t, pool.Config{Size: 4, QueueLimit: 100, Fallbacks: []pool.Server{{}}})
		var lost []int
		done := 0
		for in := range 100 {
			submit(t, p, in, func(r result) {
				done++
				if r.Err != nil {
					lost = append(lost, in)
				}
			})
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if done != 100 || !slices.Equal(lost, []int{20}) {
			t.Errorf("%d jobs are done, %v failed", done, lost)
		}
	})
}

// Jobs beside each other that always fail look like an outage, once.
func TestNeighboursThatAlwaysFail(t *testing.T) {
	for _, size := range []int{1, 8} {
		for _, n := range []int{2, 3, 5} {
			synctest.Test(t, func(t *testing.T) {
				w := world{took: 50 * ms, poison: map[int]pool.Verdict{}}
				var bad []int
				for i := range n {
					w.poison[10+i] = sick
					bad = append(bad, 10+i)
				}
				p := w.running(t, pool.Config{Size: size, QueueLimit: 100})
				results := batch(t, p, 63)
				if jobs := failed(results); !slices.Equal(jobs, bad) {
					t.Errorf("size %d, %d neighbours: jobs %v failed", size, n, jobs)
				}
				for _, in := range bad {
					if a := results[in].Attempts; a > 8 {
						t.Errorf("size %d, %d neighbours: job %d was called %d times", size, n, in, a)
					}
				}
				if len(w.pause) > 2 {
					t.Errorf("size %d, %d neighbours: pauses %v", size, n, w.pause)
				}
			})
		}
	}
}

// Jobs that always time out are told from an outage by the others that succeeded meanwhile, though none is left to ask
// when the first of them fails: the queue is full behind them.
func TestJobsThatTimeOutWhenAllOthersAreDone(t *testing.T) {
	for _, n := range []int{2, 12} {
		synctest.Test(t, func(t *testing.T) {
			slow := pool.Verdict{Class: pool.Transient, Origin: pool.OfServer, Err: errors.New("timed out")}
			p := running(t, pool.Config{Size: 32, QueueLimit: 2000}, func(ctx context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
				if in%50 == 10 && in < 50*n {
					pause(ctx, 8*time.Second)
					return 0, slow
				}
				return sleeper(50*ms)(ctx, in, pool.Attempt{})
			})
			results := batch(t, p, 1000)
			if jobs := failed(results); len(jobs) != n {
				t.Errorf("jobs %v failed, want %d", jobs, n)
			}
			if a := results[10].Attempts; a > 4 {
				t.Errorf("%d attempts", a)
			}
		})
	}
}

// What a job was told to wait by a sick server ends with the outage.
func TestAWaitThatASickServerAskedForEndsWithTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: time.Second, outages: []outage{{5 * time.Second, 12 * time.Second, told(sick, time.Hour)}}}
		p := w.running(t, pool.Config{Size: 8, QueueLimit: 100})
		if jobs := failed(batch(t, p, 100)); jobs != nil {
			t.Errorf("jobs %v failed", jobs)
		}
		if took := time.Since(w.begin); took > 40*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// Jobs that could go past the first server are held as soon as the fallback is out too, and from then on.
func TestOutagesOfAllServersHoldJobsTooLong(t *testing.T) {
	for _, after := range []time.Duration{0, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			const from = 20 * time.Second // when the fallback is out too
			w := world{
				took: time.Second, outages: []outage{{5 * time.Second, time.Hour, sick}},
				servers: map[int]*world{1: {took: time.Second, outages: []outage{{from, time.Hour, sick}}}},
			}
			p := w.running(t, pool.Config{Size: 4, QueueLimit: 200, OutageHold: 10 * time.Second, FallbackAfter: after, Fallbacks: []pool.Server{{}}})
			held := 0
			for _, r := range batch(t, p, 200) {
				if r.Err == nil {
					continue
				}
				held++
				if d := r.Finished.Sub(w.begin) - from; !errors.Is(r.Err, pool.ErrOutage) || d < 10*time.Second || d > 12*time.Second {
					t.Errorf("job %d: %v, %v after the second outage began", r.In, r.Err, d)
				}
			}
			if held < 100 {
				t.Errorf("%d jobs failed", held)
			}
		})
	}
}

// While one call lasts long there is nobody to tell whose the failures of a job are. Each call may have to be paid for, so
// they become fewer.
func TestAPoisonJobBesideALongCallIsTriedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, pool.Config{Size: 4, Rand: rand.New(rand.NewPCG(1, 2)).Float64}, func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
			if in == 0 {
				return sleeper(10*time.Minute)(ctx, in, a)
			}
			return 0, sick
		})
		if r := batch(t, p, 2)[1]; r.Err == nil || r.Attempts > 40 {
			t.Errorf("%v after %d attempts", r.Err, r.Attempts)
		}
	})
}

// A job that has used up its attempts at the first server fails where the fallback can't be reached: it would hold up
// those behind it for as long.
func TestAJobWhoseFallbackCantBeReachedFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{
			took: time.Second, poison: map[int]pool.Verdict{7: sick},
			servers: map[int]*world{1: {outages: []outage{{0, 24 * time.Hour, refused}}}},
		}
		p := w.running(t, pool.Config{Size: 8, QueueLimit: 100, Fallbacks: []pool.Server{{}}})
		results := batch(t, p, 60)
		if jobs := failed(results); !slices.Equal(jobs, []int{7}) {
			t.Errorf("jobs %v failed", jobs)
		}
		if a := results[7].Attempts; a > 20 {
			t.Errorf("%d attempts", a)
		}
	})
}
