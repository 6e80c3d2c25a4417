package throttle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Scenario is a job and the server that it meets.
type Scenario struct {
	// Name as in the tables, About in a few words.
	Name, About string
	// Clients that have a job of Rows each, all at the same server; each with a pool of
	// this size.
	Clients, Rows, Pool int
	// Median and Sigma of the lognormal duration of accepted calls, and the duration of
	// refused ones.
	Median  time.Duration
	Sigma   float64
	Refusal time.Duration
	// Longest replaces Median and Sigma where it is set: accepted calls then take from
	// Shortest to Longest, and all times between them are equally likely.
	Shortest, Longest time.Duration
	// Jitter is the most that a call may be late at the server. Each is late by chance.
	Jitter time.Duration
	// Known says that the clients are replicas of one stage, which know of each other.
	Known bool

	setUp func(sc *Scenario, seed uint64) plan
}

// plan is what one run of a scenario meets.
type plan struct {
	server  server
	hints   bool         // the server reports when to come back
	rises   []step       // to this rate
	outages [][2]float64 // from, to

	incidents incidents
	poison    func(row int) bool // whose calls all fail, or nil
	measured  float64            // utilisation is, until then; 0 means to the end

	fallback      server        // takes the rows that have waited too long, or nil
	fallbackAfter time.Duration // is too long
	ends          float64       // the run, even if rows are left; 0 means when a client has done its job
}

// meanSec is the mean duration of an accepted call.
func (sc *Scenario) meanSec() float64 {
	if sc.Longest > 0 {
		return (sc.Shortest + sc.Longest).Seconds() / 2
	}
	return sc.Median.Seconds() * math.Exp(sc.Sigma*sc.Sigma/2)
}

// callSec draws the duration of an accepted call.
func (sc *Scenario) callSec(rng *rand.Rand) float64 {
	if sc.Longest > 0 {
		return sc.Shortest.Seconds() + rng.Float64()*(sc.Longest-sc.Shortest).Seconds()
	}
	return sc.Median.Seconds() * math.Exp(sc.Sigma*rng.NormFloat64())
}

// poolPerSec is what the pools of all clients can use.
func (sc *Scenario) poolPerSec() float64 { return float64(sc.Clients*sc.Pool) / sc.meanSec() }

// scenario returns one with the usual job; change alters it.
func scenario(name, about string, setUp func(*Scenario, uint64) plan, change ...func(*Scenario)) *Scenario {
	sc := &Scenario{
		Name: name, About: about,
		Clients: 1, Rows: 5000, Pool: 32,
		Median: 1200 * time.Millisecond, Sigma: 0.3, Refusal: 60 * time.Millisecond,
		setUp: setUp,
	}
	for _, c := range change {
		c(sc)
	}
	return sc
}

func clients(n int) func(*Scenario) { return func(sc *Scenario) { sc.Clients = n } }

func rows(n int) func(*Scenario) { return func(sc *Scenario) { sc.Rows = n } }

func poolSize(n int) func(*Scenario) { return func(sc *Scenario) { sc.Pool = n } }

func calls(median time.Duration, sigma float64) func(*Scenario) {
	return func(sc *Scenario) { sc.Median, sc.Sigma = median, sigma }
}

func late(jitter time.Duration) func(*Scenario) { return func(sc *Scenario) { sc.Jitter = jitter } }

func known(sc *Scenario) { sc.Known = true }

func refusals(d time.Duration) func(*Scenario) { return func(sc *Scenario) { sc.Refusal = d } }

// constant is a bucket with a rate that does not change.
func constant(rate, burst float64) func(*Scenario, uint64) plan {
	return func(*Scenario, uint64) plan { return plan{server: newBucket(schedule{{0, rate}}, burst)} }
}

// alternating is a bucket of 20/s and 5/s for a minute each. The first minute is up to 2
// s longer or shorter, so that it is not the phase of the law's own cycle that decides.
func alternating(_ *Scenario, seed uint64) plan {
	shift := 4*chance(seed).Float64() - 2
	rate := schedule{{0, 20}}
	var p plan
	for i := 1; i < 400; i += 2 {
		fall, rise := float64(60*i)+shift, float64(60*i+60)+shift
		rate = append(rate, step{fall, 5}, step{rise, 20})
		p.rises = append(p.rises, step{rise, 20})
	}
	p.server = newBucket(rate, 5)
	return p
}

// wandering is a bucket of 20/s or 5/s, each for a random time of 30 s on average.
func wandering(_ *Scenario, seed uint64) plan {
	rng := chance(seed)
	rate := schedule{{0, []float64{20, 5}[rng.IntN(2)]}}
	for len(rate) < 3000 {
		last := rate[len(rate)-1]
		rate = append(rate, step{last.from + 30*rng.ExpFloat64(), 25 - last.rate})
	}
	return plan{server: newBucket(rate, 5)}
}

// outage is a bucket of 20/s that is out for about two minutes from about then on.
func outage(about float64) func(*Scenario, uint64) plan {
	return func(_ *Scenario, seed uint64) plan {
		rng := chance(seed)
		from := about
		if about > 0 {
			from += 4 * rng.Float64()
		}
		to := from + 118 + 4*rng.Float64()
		rate := schedule{{from, 0}, {to, 20}}
		if from > 0 {
			rate = append(schedule{{0, 20}}, rate...)
		}
		return plan{server: newBucket(rate, 5), outages: [][2]float64{{from, to}}, rises: nil}
	}
}

// drifting is a bucket whose rate goes up and down as a sine.
func drifting(period float64) func(*Scenario, uint64) plan {
	return func(*Scenario, uint64) plan {
		var rate schedule
		for t := 0.0; t < 4000; t += 0.5 {
			rate = append(rate, step{t, 12 + 8*math.Sin(2*math.Pi*t/period)})
		}
		return plan{server: newBucket(rate, 5)}
	}
}

func noisy(share float64) func(*Scenario, uint64) plan {
	return func(sc *Scenario, seed uint64) plan {
		return plan{server: &random{share: share, seed: seed, callSec: sc.meanSec(), refusalSec: sc.Refusal.Seconds()}}
	}
}

// chance is the source of what happens to a server.
func chance(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// hinting makes the server of a scenario send hints.
func hinting(setUp func(*Scenario, uint64) plan) func(*Scenario, uint64) plan {
	return func(sc *Scenario, seed uint64) plan {
		p := setUp(sc, seed)
		p.hints = true
		return p
	}
}

func counting(sc *Scenario, seed uint64) plan {
	p := alternating(sc, seed)
	p.server.(*bucket).counts = true
	return p
}

func eightAtOnce(sc *Scenario, _ uint64) plan {
	return plan{server: &atOnce{limit: 8, callSec: sc.meanSec()}}
}

func quota(*Scenario, uint64) plan { return plan{server: &perMinute{quota: 1200}} }

// Scenarios returns the servers that the law was built for.
func Scenarios() []*Scenario {
	list := []*Scenario{
		scenario("S1", "20/s", constant(20, 5)),
		scenario("S2", "20/s and 5/s in turn, 60 s each", alternating),
		scenario("S2c", "the same, refused calls count too", counting),
		scenario("S3", "20/s or 5/s at random, 30 s on average", wandering),
		scenario("S4", "20/s after an outage of 120 s", outage(0)),
		scenario("S4m", "20/s with an outage of 120 s", outage(100)),
		scenario("S5", "a fifth refused at random", noisy(0.2)),
		scenario("S6", "8 at once", eightAtOnce),
		scenario("S7", "1200 in each minute", quota),
	}
	for _, sc := range slices.Clip(list) {
		hinted := *sc
		hinted.Name, hinted.About, hinted.setUp = sc.Name+"h", sc.About+", and says when to come back", hinting(sc.setUp)
		list = append(list, &hinted)
	}
	return append(list,
		scenario("4 clients", "20/s for all", constant(20, 5), clients(4)),
		scenario("16 clients", "20/s for all", constant(20, 5), clients(16)),
	)
}

// Grid returns servers off the point that the law was tuned at.
func Grid() []*Scenario {
	var list []*Scenario
	add := func(name string, setUp func(*Scenario, uint64) plan, change ...func(*Scenario)) {
		list = append(list, scenario(name, "", setUp, change...))
	}
	for _, burst := range []float64{1, 2, 20} {
		add(fmt.Sprintf("burst %g", burst), constant(20, burst))
	}
	for _, d := range []time.Duration{5 * time.Millisecond, 300 * time.Millisecond, time.Second} {
		add(fmt.Sprintf("refusals take %v", d), constant(20, 5), refusals(d))
		add(fmt.Sprintf("S2, refusals take %v", d), alternating, refusals(d))
	}
	for _, sigma := range []float64{0.1, 0.5, 0.8} {
		add(fmt.Sprintf("sigma %g", sigma), constant(20, 5), calls(1200*time.Millisecond, sigma))
	}
	add("0.2/s", constant(0.2, 5), rows(200))
	add("1/s", constant(1, 5), rows(1000))
	add("200/s, pool 512", constant(200, 5), poolSize(512), rows(20000))
	add("2000/s, calls of 50ms, pool 256", constant(2000, 5), poolSize(256), calls(50*time.Millisecond, 0.3), rows(60000))
	for _, n := range []int{4, 8, 64, 512} {
		add(fmt.Sprintf("pool %d", n), constant(20, 5), poolSize(n))
	}
	add("sine of 60 s", drifting(60))
	add("sine of 300 s", drifting(300))
	falling := schedule{{0, 20}, {60, 10}, {120, 5}, {180, 2}, {240, 1}, {300, 0.5}, {360, 0.2}}
	add("falls by steps to 0.2/s", func(*Scenario, uint64) plan { return plan{server: newBucket(falling, 5)} }, rows(2400))
	add("no limit", noisy(0))
	add("no limit, replies in 1ms", noisy(0), calls(time.Millisecond, 0.3), rows(60000))
	add("a twentieth refused at random", noisy(0.05))
	add("S2, 4 clients", alternating, clients(4), rows(1250))
	add("S2, 16 clients", alternating, clients(16), rows(600))
	return list
}
