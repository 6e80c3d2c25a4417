package throttle

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/aimd/fleet"
	"github.com/llm-stage/stage/pool"
)

// Fleet is a scenario of many processes that share the limit of one server, for a while
// in which things happen to them and to the messages between them.
type Fleet struct {
	Scenario
	// Seconds is how long it takes.
	Seconds float64

	messages messages
	skew     time.Duration                    // clocks are off by up to so much, to both sides
	weight   func(client int) float64         // nil: 1
	demand   func(client int) float64         // rows per second; nil or infinite: as many as it can do
	late     func(client int) float64         // when it starts; nil means within the first second
	limits   fleet.Limits                     // of the shared budget
	happens  []happening                      // in order of time
	idles    func(client int, t float64) bool // has nothing to do then; nil means never

	heals   []float64 // instants at which a partition ends
	regains []float64 // instants from which on others have what one no longer uses
}

// happening is something that happens to a fleet.
type happening struct {
	at float64
	do func(r *fleetRun)
}

// RunFleet runs a fleet with a shared budget (Shared), or each process by itself
// (Adaptive), and returns the figures.
func RunFleet(ctx context.Context, f *Fleet, m Method, seed uint64) FleetFigures {
	r := &fleetRun{
		run: newRun(&f.Scenario, seed), fleet: f, method: m,
		procs: make(map[int]*process), greedy: make(map[int]bool),
	}
	r.net = newNetwork(f.messages, seed)
	r.do(ctx)
	return r.figures()
}

// fleetRun is one run of a fleet.
type fleetRun struct {
	*run
	fleet  *Fleet
	method Method
	wg     sync.WaitGroup

	fmu     sync.Mutex       // guards all below
	procs   map[int]*process // by client, those that run
	starts  int              // processes started so far
	greedy  map[int]bool     // clients that ran all the time and always wanted more
	kills   []float64        // when a leader was killed
	samples []sample
}

// process is one process of a client.
type process struct {
	client int
	member *member // nil: it shares no budget
	end    context.CancelFunc
}

func (r *fleetRun) do(ctx context.Context) {
	ctx, r.stop = context.WithCancel(ctx)
	for client := range r.sc.Clients {
		r.greedy[client] = r.fleet.demand == nil || math.IsInf(r.fleet.demand(client), 1)
	}
	for client := range r.sc.Clients {
		r.wg.Go(func() {
			late := callID{client: client}.rand(r.seed, 3).Float64()
			if r.fleet.late != nil && r.fleet.late(client) > 0 {
				late = r.fleet.late(client)
				r.notGreedy(client)
			}
			if r.sleep(ctx, late) {
				r.start(ctx, client)
			}
		})
	}
	happens := slices.SortedStableFunc(slices.Values(r.fleet.happens), func(a, b happening) int { return cmp.Compare(a.at, b.at) })
	r.wg.Go(func() {
		for _, h := range happens {
			if !r.sleep(ctx, h.at-r.now()) {
				return
			}
			h.do(r)
		}
	})
	r.wg.Go(func() {
		for r.sleep(ctx, sampleSec) {
			r.sample()
		}
	})
	r.sleep(ctx, r.fleet.Seconds)
	r.ended = r.now()
	r.stop()
	r.wg.Wait()
}

func (r *fleetRun) notGreedy(client int) {
	r.fmu.Lock()
	defer r.fmu.Unlock()
	r.greedy[client] = false
}

// start begins a process of the client and returns at once.
func (r *fleetRun) start(ctx context.Context, client int) {
	ctx, end := context.WithCancel(ctx)
	p := &process{client: client, end: end}
	r.fmu.Lock()
	r.starts++
	number := r.starts
	r.procs[client] = p
	r.fmu.Unlock()
	var law pool.Law
	if r.method == Shared {
		p.member = r.member(client, number, r.fleet)
		law = p.member
	} else {
		law = r.law(r.method, client)
	}
	pl := r.newPool(client, r.method, law)
	if p.member != nil {
		r.wg.Go(func() { p.member.run(ctx, pl.Wake) })
	}
	r.wg.Go(func() { r.feed(ctx, client, number, pl) })
	r.wg.Go(func() { _ = pl.Run(ctx) }) // always ends by the cancellation of ctx
}

// member returns a member of the fleet for a client's process.
func (r *run) member(client, number int, f *Fleet) *member {
	rng := rand.New(rand.NewPCG(r.seed, 0x5eed<<32|uint64(number)))
	cfg := fleet.Config{
		ID:     fmt.Sprintf("%04x-%d", rng.IntN(1<<16), number),
		Weight: 1,
		Law:    aimd.AdaptiveConfig{Config: aimd.Default(), PoolSize: r.sc.Pool, Rand: rng.Float64},
	}
	skew := time.Duration(0)
	if f != nil {
		skew = time.Duration((2*rng.Float64() - 1) * float64(f.skew))
		cfg.Limits = f.limits
		if f.weight != nil {
			cfg.Weight = f.weight(client)
		}
	}
	return r.net.add(client, skew, cfg)
}

// feed keeps rows waiting in a pool, as the client's demand is.
func (r *fleetRun) feed(ctx context.Context, client, number int, p *pool.Pool[int, struct{}]) {
	row := 0
	idle := func() bool { return r.fleet.idles != nil && r.fleet.idles(client, r.now()) }
	var add func(again bool)
	add = func(again bool) {
		row++
		_ = p.Add(row, func(res pool.Result[int, struct{}]) {
			if res.Class == pool.Cancelled {
				return
			}
			if again && !idle() {
				add(true)
			}
		})
	}
	perSec := math.Inf(1)
	if r.fleet.demand != nil {
		perSec = r.fleet.demand(client)
	}
	if !math.IsInf(perSec, 1) {
		rng := callID{client: client, attempt: number}.rand(r.seed, 7)
		for r.sleep(ctx, rng.ExpFloat64()/perSec) {
			if p.Stats().Waiting < max(r.sc.Rows, 4*r.sc.Pool) {
				add(false)
			}
		}
		return
	}
	for !idle() {
		for range 2 * r.sc.Pool {
			add(true)
		}
		if r.fleet.idles == nil {
			return
		}
		for !idle() {
			if !r.sleep(ctx, 0.5) {
				return
			}
		}
		for idle() {
			if !r.sleep(ctx, 0.5) {
				return
			}
		}
	}
}

// end ends the process of a client: all at once, or with a goodbye.
func (r *fleetRun) end(client int, orderly bool) {
	r.fmu.Lock()
	p := r.procs[client]
	delete(r.procs, client)
	r.greedy[client] = false
	r.fmu.Unlock()
	if p == nil {
		return
	}
	if p.member != nil {
		p.member.leave(orderly)
	}
	p.end()
}

// leader returns the client that leads; -1: none does.
func (r *fleetRun) leader() int {
	best, term := -1, uint64(0)
	for _, m := range r.net.running() {
		if s := m.state(); s.Mode == fleet.Lead && (best < 0 || s.Term > term) {
			best, term = m.client, s.Term
		}
	}
	return best
}

// sampleSec is how often the fleet is looked at.
const sampleSec = 0.1

// sample is what the members took the fleet for at one instant.
type sample struct {
	at               float64
	running, leaders int
	leader           string // of most
	agreed           int    // members that have it
}

func (r *fleetRun) sample() {
	s := sample{at: r.now()}
	votes := make(map[string]int)
	for _, m := range r.net.running() {
		m.mu.Lock()
		state, counts := m.law.State(), !m.asleep && !m.gone
		m.mu.Unlock()
		if !counts {
			continue
		}
		s.running++
		switch state.Mode {
		case fleet.Lead:
			s.leaders++
			votes[state.Leader]++
		case fleet.Follow:
			votes[state.Leader]++
		case fleet.Alone:
		}
	}
	for leader, n := range votes {
		if n > s.agreed || n == s.agreed && leader < s.leader {
			s.leader, s.agreed = leader, n
		}
	}
	r.fmu.Lock()
	defer r.fmu.Unlock()
	r.samples = append(r.samples, s)
}
