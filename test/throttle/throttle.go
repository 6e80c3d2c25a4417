// Package throttle measures how close the pool and its laws come to the capacity of a
// server. It runs the real pool and the real laws against models of servers, and counts.
//
// Run it in a bubble of testing/synctest: then an hour of calls takes a moment, and equal
// seeds give equal figures.
//
//	synctest.Test(t, func(t *testing.T) {
//		figures := throttle.Run(t.Context(), scenario, throttle.Adaptive, seed)
//	})
package throttle

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

// Method is a way of coping with a server's limit.
type Method int

const (
	// Adaptive is the pool with [aimd.Adaptive].
	Adaptive Method = iota
	// Classic is the pool with [aimd.Classic].
	Classic
	// Backoff has as many workers as the pool has slots. Each backs off by itself,
	// holding its slot: up to 1 s after the first refusal of a call, doubled with each
	// further one, at most 60 s, with full jitter. The third failure of a row ends it. It
	// is what most people run.
	Backoff
	// Oracle is the pool with a law that knows the server, and when it is out.
	Oracle
	// Blind is Adaptive without the origin of failures: each is its row's own.
	Blind
	// Shared is Adaptive for all clients together: each is a member of one fleet, see
	// fleet.go.
	Shared
)

var methodNames = [...]string{"adaptive", "classic", "backoff", "oracle", "blind", "shared"}

// String returns the name as in the tables.
func (m Method) String() string { return methodNames[m] }

// Run lets a method do the job of a scenario and returns the figures. Where there are
// several clients it ends with the first that is done, so that all compete all the time.
func Run(ctx context.Context, sc *Scenario, m Method, seed uint64) Figures {
	r := newRun(sc, seed)
	if m == Shared {
		r.net = newNetwork(usualMessages, seed)
	}
	r.do(ctx, m)
	return r.figures()
}

// run is one run of a scenario.
type run struct {
	sc    *Scenario
	seed  uint64
	plan  plan
	began time.Time
	stop  context.CancelFunc
	watch func(*aimd.Adaptive) // nil: none
	net   *network             // of the method Shared

	mu       sync.Mutex // guards the plan and what follows
	arrivals []arrival
	callSecs []float64 // of accepted calls
	rows     [][]rowTimes
	failed   []int   // rows that failed for good
	ended    float64 // when the first client was done
}

func newRun(sc *Scenario, seed uint64) *run {
	r := &run{sc: sc, seed: seed, plan: sc.setUp(sc, seed), began: time.Now(), rows: make([][]rowTimes, sc.Clients)}
	for client := range r.rows {
		r.rows[client] = make([]rowTimes, sc.Rows)
	}
	return r
}

// do runs all clients until the first has done its job.
func (r *run) do(ctx context.Context, m Method) {
	ctx, r.stop = context.WithCancel(ctx)
	defer r.stop()
	if r.plan.ends > 0 {
		time.AfterFunc(time.Duration(r.plan.ends*1e9), r.complete)
	}
	var wg sync.WaitGroup
	for client := range r.sc.Clients {
		wg.Go(func() {
			if client > 0 { // the others come within a second, in no order
				r.sleep(ctx, callID{client: client}.rand(r.seed, 3).Float64())
			}
			if m == Backoff {
				r.backOff(ctx, client)
			} else {
				r.pool(ctx, client, m)
			}
		})
	}
	wg.Wait()
}

type arrival struct {
	at       float64
	client   int
	accepted bool
	first    bool // attempt at its row
	fallback bool // was called
	outcome  outcome
}

// outcome is what becomes of a call.
type outcome struct {
	verdict  pool.Verdict
	sec      float64  // from arrival until the caller has the verdict
	admitted bool     // the server's limit let it in
	failure  *failure // nil: served, or refused for lack of capacity
	cut      bool     // an incident's beginning made it fail
}

type rowTimes struct{ started, finished float64 }

func (r *run) now() float64 { return time.Since(r.began).Seconds() }

// sleep waits, and reports whether it could wait to the end.
func (r *run) sleep(ctx context.Context, sec float64) bool {
	timer := time.NewTimer(time.Duration(sec * 1e9))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// call is one call to the server. Each takes a different time to arrive, some
// nanoseconds, so that calls which are sent at the same instant always arrive in the same
// order.
func (r *run) call(ctx context.Context, id callID) pool.Verdict {
	cancelled := pool.Verdict{Class: pool.Cancelled, Err: context.Canceled}
	if !r.sleep(ctx, r.way(id)) {
		return cancelled
	}
	o := r.arrive(id)
	arrived := time.Now()
	if !r.sleep(ctx, o.sec) {
		if o.admitted { // the server goes on with it
			time.AfterFunc(time.Duration(o.sec*1e9)-time.Since(arrived), r.done)
		}
		return cancelled
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.admitted {
		r.plan.at(id).done()
	}
	if o.verdict.Class == pool.OK {
		r.callSecs = append(r.callSecs, o.sec)
	}
	return o.verdict
}

// done ends a call at the server.
func (r *run) done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plan.server.done()
}

// way returns the seconds that a call takes to arrive. With jitter, calls overtake one
// another: with 20 ms, a call may arrive before one that was sent up to 20 ms earlier.
func (r *run) way(id callID) float64 {
	ordered := float64(id.client*r.sc.Rows+id.row%r.sc.Rows) * 1e-9
	if r.sc.Jitter == 0 {
		return ordered
	}
	return ordered + r.sc.late(r.seed, id).Seconds()
}

var errRefused = fmt.Errorf("429 from the model of a server")

func (r *run) arrive(id callID) outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	o := r.outcome(now, id)
	r.arrivals = append(r.arrivals, arrival{
		at: now, client: id.client, accepted: o.verdict.Class == pool.OK, first: id.attempt == 1, fallback: id.fallback, outcome: o,
	})
	return o
}

// outcome decides what becomes of a call that arrives now. R.mu is held.
func (r *run) outcome(now float64, id callID) outcome {
	f := r.plan.incidents.failure(now, id)
	if f == nil && r.plan.poison != nil && r.plan.poison(id.row) {
		f = serverError
	}
	if f != nil && !f.admitted {
		return outcome{verdict: f.verdict, sec: f.sec, failure: f}
	}
	if server := r.plan.at(id); !server.admit(now, id) {
		v := pool.Verdict{Class: pool.Capacity, Err: errRefused}
		if r.plan.hints {
			v.Hint = server.hint(now)
		}
		return outcome{verdict: v, sec: r.sc.Refusal.Seconds()}
	}
	if f != nil {
		return outcome{verdict: f.verdict, sec: f.sec, admitted: true, failure: f}
	}
	sec := r.sc.callSec(id.rand(r.seed, 2))
	if q, ok := r.plan.server.(*queue); ok {
		sec += q.waits(now)
	}
	if f, after := r.plan.incidents.cut(now, now+sec); f != nil {
		after += r.way(id) // so that calls which are cut at the same instant end in the same order
		return outcome{verdict: f.verdict, sec: after, admitted: true, failure: f, cut: true}
	}
	return outcome{sec: sec, admitted: true}
}

// finish takes the times of a row that is done.
func (r *run) finish(client, row int, started time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows[client][row] = rowTimes{started: started.Sub(r.began).Seconds(), finished: r.now()}
}

// fail takes a row that has failed for good.
func (r *run) fail(row int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, row)
}

// complete ends the run, for a client has done its job.
func (r *run) complete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == 0 {
		r.ended = r.now()
	}
	r.stop()
}

// pool does a client's job with the real pool.
func (r *run) pool(ctx context.Context, client int, m Method) {
	law := r.law(m, client)
	p := r.newPool(client, m, law)
	if mb, ok := law.(*member); ok {
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { mb.run(ctx, p.Wake) })
	}
	left := r.sc.Rows
	for row := range r.sc.Rows {
		err := p.Submit(ctx, row, func(res pool.Result[int, struct{}]) {
			if res.Class == pool.Cancelled {
				return // the run has ended before this row's turn
			}
			if res.Err == nil {
				r.finish(client, row, res.Started)
			} else {
				r.fail(row)
			}
			if left--; left == 0 {
				r.complete()
			}
		})
		if err != nil {
			return // ended before this client came
		}
	}
	_ = p.Run(ctx) // always ends by the cancellation of ctx
}

// newPool returns a client's pool.
func (r *run) newPool(client int, m Method, law pool.Law) *pool.Pool[int, struct{}] {
	call := func(ctx context.Context, row int, a pool.Attempt) (struct{}, pool.Verdict) {
		v := r.call(ctx, callID{client, row, a.Number, a.Server > 0})
		if m != Adaptive && m != Shared {
			v.Origin = pool.OfJob
		}
		return struct{}{}, v
	}
	cfg := pool.Config{
		Size: r.sc.Pool, Law: law, Retry: pool.DefaultRetry(), QueueLimit: max(r.sc.Rows, 4*r.sc.Pool),
		Rand: callID{client: client}.rand(r.seed, 6).Float64,
	}
	if r.plan.fallback != nil {
		cfg.Fallbacks, cfg.FallbackAfter = []pool.Server{{Law: r.law(m, client)}}, r.plan.fallbackAfter
	}
	if mb, ok := law.(*member); ok {
		cfg.Gates = []pool.Gate{&slots{member: mb}}
	}
	p, err := pool.New(cfg, call)
	if err != nil {
		panic(err)
	}
	return p
}

// law returns the law of a method.
func (r *run) law(m Method, client int) pool.Law {
	switch m {
	case Adaptive, Blind:
		law, err := aimd.NewAdaptive(aimd.AdaptiveConfig{
			Config: aimd.Default(), PoolSize: r.sc.Pool, Rand: callID{client: client}.rand(r.seed, 4).Float64,
		})
		if err != nil {
			panic(err)
		}
		law.Share(r.sc.Known)
		if r.watch != nil {
			return watched{law, r.watch}
		}
		return law
	case Classic:
		law, err := aimd.NewClassic(aimd.Default())
		if err != nil {
			panic(err)
		}
		return law
	case Oracle:
		return &oracle{r: r, server: r.sc.setUp(r.sc, r.seed).server}
	case Shared:
		return r.member(client, client, nil)
	case Backoff:
	}
	panic(fmt.Sprintf("no law for %v", m))
}

// backOff does a client's job with workers that back off each by itself.
func (r *run) backOff(ctx context.Context, client int) {
	const baseSec, mostSec, failures = 1, 60, 3
	var wg sync.WaitGroup
	rows := make(chan int, r.sc.Rows)
	for row := range r.sc.Rows {
		rows <- row
	}
	close(rows)
	for range r.sc.Pool {
		wg.Go(func() {
			for row := range rows {
				started, failed := time.Now(), 0
				for attempt := 1; ; attempt++ {
					id := callID{client, row, attempt, false}
					v := r.call(ctx, id)
					if v.Class == pool.OK {
						r.finish(client, row, started)
						break
					}
					if v.Class == pool.Transient {
						if failed++; failed == failures {
							r.fail(row)
							break
						}
					}
					wait := min(mostSec, baseSec*math.Exp2(float64(attempt-1)))
					if v.Class == pool.Cancelled || !r.sleep(ctx, wait*id.rand(r.seed, 5).Float64()) {
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() == nil {
		r.complete()
	}
}

// oracle is a law that knows the server: it has a copy that does just the same.
type oracle struct {
	r      *run
	server server
	stats  aimd.Stats
}

func (o *oracle) Next(now time.Time, _ int) time.Time {
	wait := o.server.opens(o.since(now)) - o.since(now)
	if i := o.r.plan.incidents.at(o.since(now) + 1e-6); i != nil && i.loss == 1 {
		wait = max(wait, i.to-o.since(now))
	}
	return now.Add(time.Duration(math.Ceil(min(wait, 1e6) * 1e9)))
}

func (o *oracle) Sent(now time.Time, _ int) aimd.Ticket {
	o.server.admit(o.since(now), callID{})
	return aimd.Ticket{}
}

func (o *oracle) Accepted(time.Time, aimd.Ticket) { o.server.done() }

func (o *oracle) Rejected(time.Time, aimd.Ticket, aimd.Hint) {}

func (o *oracle) Dropped(time.Time, aimd.Ticket) {}

func (o *oracle) Restart(time.Time) {}

func (o *oracle) Stats() aimd.Stats { return o.stats }

func (o *oracle) since(now time.Time) float64 { return now.Sub(o.r.began).Seconds() }
