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

// world is a server, or several, with outages. A call that meets one fails after 5 ms, and one that is under way when
// it begins fails at that moment.
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
	lost  int // calls, as the pool reports
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
				bubble(t, fmt.Sprintf("%s from %v on, %d at a time", name, from, size), func(t *testing.T) {
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
						t.Errorf("%d calls are reported as lost, %d were", w.lost, len(lost))
					}
				})
			}
		}
	}
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
		// And where by chance a third fails for a while the server passes for unhealthy, which saves some jobs.
		if n := len(failed(results)); n > want || n < want*6/10 {
			t.Errorf("%d jobs failed, want %d", n, want)
		}
		if len(w.pause) > 1 { // in three minutes
			t.Errorf("pauses %v", w.pause)
		}
	})
}

// A server that becomes unhealthy is noticed before jobs have used up their attempts. And it does not pass for a
// healthy one when the pool sends less, at the end, and only successes are left to come: failures take a moment,
// successes a second.
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

// Once each waiting job has been a probe, they take turns again: the oldest one alone might be the problem.
func TestProbesGoRoundAndRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jobs = 8
		w := world{took: time.Second, outages: []outage{{0, 120 * time.Second, sick}}}
		p := w.running(t, pool.Config{Size: jobs, QueueLimit: jobs})
		batch(t, p, jobs)
		probes := make(map[int]int)
		for _, c := range w.during(0, 120*time.Second) {
			if c.probe {
				probes[c.job]++
			}
		}
		fewest, most := probes[0], probes[0]
		for job := range jobs {
			fewest, most = min(fewest, probes[job]), max(most, probes[job])
		}
		if fewest < 3 || most > fewest+1 {
			t.Errorf("probes of each job: %v", probes)
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

// waited is a job that has waited elsewhere before it enters the pool.
type waited struct{ since time.Time }

func (w waited) Traits() pool.Traits { return pool.Traits{Arrived: w.since} }

// Jobs that wait for room outside of the pool are held by an outage as long as those inside.
func TestJobsThatWaitForRoomFailAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jobs = 100
		room := make(chan struct{}, 1)
		cfg := pool.Config{Size: 4, OutageHold: 10 * time.Second, OnRoom: func() {
			select {
			case room <- struct{}{}:
			default:
			}
		}}
		p := running(t, cfg, func(context.Context, waited, pool.Attempt) (struct{}, pool.Verdict) { return struct{}{}, refused })
		began := time.Now()
		failed := make(chan time.Duration, jobs)
		for added := 0; added < jobs; {
			for ; added < jobs && p.Room() > 0; added++ {
				if err := p.Add(waited{began}, func(r pool.Result[waited, struct{}]) {
					if !errors.Is(r.Err, pool.ErrOutage) {
						t.Errorf("got %v", r.Err)
					}
					failed <- time.Since(began)
				}); err != nil {
					t.Fatal(err)
				}
			}
			<-room
		}
		for range jobs {
			if after := <-failed; after < 10*time.Second || after > 12*time.Second {
				t.Errorf("a job failed after %v", after)
			}
		}
	})
}

// The wait that an unhealthy server asked of a job ends with the outage.
func TestAWaitThatASickServerAskedForEndsWithTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{took: time.Second, outages: []outage{{5 * time.Second, 12 * time.Second, withWait(sick, time.Hour)}}}
		p := w.running(t, pool.Config{Size: 8, QueueLimit: 100})
		if jobs := failed(batch(t, p, 100)); jobs != nil {
			t.Errorf("jobs %v failed", jobs)
		}
		if took := time.Since(w.begin); took > 40*time.Second {
			t.Errorf("took %v", took)
		}
	})
}
