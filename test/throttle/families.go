package throttle

import (
	"fmt"
	"math"
	"time"
)

// Families returns kinds of servers that the law was not built for at first. Their
// utilisation is best compared with the oracle's, which does not reach 1 everywhere.
func Families() []*Scenario {
	var list []*Scenario
	for _, group := range [][]*Scenario{sporadicFamilies(), limitFamilies(), hintFamilies(), paceFamilies()} {
		list = append(list, group...)
	}
	return list
}

// sporadicFamilies have limiters behind something that refuses one call in many for no
// reason.
func sporadicFamilies() (list []*Scenario) {
	for _, share := range []float64{0.002, 0.005, 0.01, 0.02, 0.05} {
		for _, server := range []struct {
			rate, sec float64
			pool      int
		}{{20, 300, 64}, {200, 100, 512}, {1000, 100, 2600}} {
			list = append(list, scenario(fmt.Sprintf("%g/s, %g%% sporadic", server.rate, 100*share), "",
				refusing(share, constant(server.rate, 5)), poolSize(server.pool), lasting(server.sec, server.rate)))
		}
	}
	for _, share := range []float64{0.02, 0.1} {
		list = append(list, scenario(fmt.Sprintf("S2, %g%% sporadic", 100*share), "", refusing(share, alternating), lasting(400, 20)))
	}
	return list
}

// limitFamilies have limits of other kinds, or whose changes are of other kinds.
func limitFamilies() (list []*Scenario) {
	add := func(name string, setUp func(*Scenario, uint64) plan, change ...func(*Scenario)) {
		list = append(list, scenario(name, "", setUp, change...))
	}
	for _, burst := range []float64{1, 2, 10} {
		add(fmt.Sprintf("GCRA, burst %g", burst), constant(20, burst))
	}
	for _, sec := range []float64{5, 20, 60} {
		add(fmt.Sprintf("a tenant comes and goes each %g s", sec), tenants(sec), lasting(400, 20))
	}
	for _, sec := range []float64{60, 10} {
		add(fmt.Sprintf("32 and 8 at once, %g s each", sec), turnsAtOnce(sec), poolSize(64), lasting(400, 32))
	}
	add("tokens, bucket of one big call", tokensPerSecond(alternation(20, 20, 60), 1))
	add("tokens, 20 and 5 in turn", tokensPerSecond(alternation(20, 5, 60), 1))
	add("tokens, bucket of five", tokensPerSecond(alternation(20, 5, 60), 5))
	add("1200 in any minute", func(*Scenario, uint64) plan { return plan{server: &anyMinute{quota: 1200}} }, lasting(400, 20))
	add("ramp to 500/s", ramp, poolSize(1300), lasting(150, 500))
	add("queue of 64, then 503", func(*Scenario, uint64) plan { return plan{server: &queue{perSec: 20, most: 64}} }, poolSize(128), lasting(250, 20))
	return list
}

// hintFamilies say when to come back. Some of them lie.
func hintFamilies() (list []*Scenario) {
	add := func(name string, setUp func(*Scenario, uint64) plan) {
		list = append(list, scenario(name, "", setUp, lasting(400, 20)))
	}
	add("out 1 s in 20, says 60 s", saying(time.Minute, blinking(1, 19)))
	add("20 and 5 in turn, 20 s each, says 60 s", saying(time.Minute, turns(20, 5, 20)))
	add("out 60 s in 120, says how long", hinting(blinking(60, 60)))
	add("out 10 s in 60, says how long", hinting(blinking(10, 50)))
	add("429 for 1 s in 30", blinking(1, 29))
	add("429 for 1 s in 30, says how long", hinting(blinking(1, 29)))
	return list
}

// paceFamilies have calls or refusals of other lengths, or few calls.
func paceFamilies() (list []*Scenario) {
	add := func(name string, setUp func(*Scenario, uint64) plan, change ...func(*Scenario)) {
		list = append(list, scenario(name, "", setUp, change...))
	}
	add("calls of 20ms, 1000 and 200/s in turn, 20 s each", turns(1000, 200, 20), calls(20*time.Millisecond, 0.3), poolSize(64), lasting(90, 1000))
	add("20/s, refusals take 5s", constant(20, 5), refusals(5*time.Second), poolSize(64), lasting(300, 20))
	add("S2, refusals take 5s", alternating, refusals(5*time.Second), poolSize(64), lasting(300, 20))
	add("calls of 60s, 2/s", constant(2, 5), calls(time.Minute, 0.3), poolSize(256), lasting(600, 2))
	add("low: 1/s", constant(1, 5), lasting(600, 1))
	add("low: 0.2/s", constant(0.2, 5), lasting(1000, 0.2))
	add("120 in each minute", func(*Scenario, uint64) plan { return plan{server: &perMinute{quota: 120}} }, lasting(600, 2))
	return list
}

// lasting makes a run end after so many seconds, with more rows than perSec needs.
func lasting(sec, perSec float64) func(*Scenario) {
	return func(sc *Scenario) {
		setUp := sc.setUp
		sc.Rows = int(1.1*sec*perSec) + 100
		sc.setUp = func(sc *Scenario, seed uint64) plan {
			p := setUp(sc, seed)
			p.ends = sec
			return p
		}
	}
}

// refusing puts something before a server that refuses a share of the calls.
func refusing(share float64, setUp func(*Scenario, uint64) plan) func(*Scenario, uint64) plan {
	return func(sc *Scenario, seed uint64) plan {
		p := setUp(sc, seed)
		p.server = &sporadic{server: p.server, share: share, seed: seed}
		return p
	}
}

// alternation is two rates in turn, so many seconds each, the first of them up to a tenth
// of that longer or shorter.
func alternation(high, low, sec float64) func(uint64) schedule {
	return func(seed uint64) schedule {
		shift := sec / 10 * (2*chance(seed).Float64() - 1)
		rate := schedule{{0, high}}
		for i := 1.0; i < 800; i += 2 {
			rate = append(rate, step{sec*i + shift, low}, step{sec*(i+1) + shift, high})
		}
		return rate
	}
}

// turns is a bucket with an alternation.
func turns(high, low, sec float64) func(*Scenario, uint64) plan {
	rate := alternation(high, low, sec)
	return func(_ *Scenario, seed uint64) plan {
		return plan{server: newBucket(rate(seed), 5)}
	}
}

// blinking is a bucket of 20/s that is out for so many seconds, again and again, with so
// many in between.
func blinking(out, between float64) func(*Scenario, uint64) plan {
	return func(_ *Scenario, seed uint64) plan {
		t := between * (0.9 + 0.2*chance(seed).Float64())
		rate := schedule{{0, 20}}
		for range 400 {
			rate = append(rate, step{t, 0}, step{t + out, 20})
			t += out + between
		}
		return plan{server: newBucket(rate, 5)}
	}
}

// saying makes a server ask for the same wait at each refusal, whatever is true.
func saying(wait time.Duration, setUp func(*Scenario, uint64) plan) func(*Scenario, uint64) plan {
	return func(sc *Scenario, seed uint64) plan {
		p := setUp(sc, seed)
		p.server, p.hints = &liar{server: p.server, wait: wait}, true
		return p
	}
}

// tenants is a bucket of 20/s that another uses as well: so many seconds without it, so
// many in which it has 12/s, call by call at random. It tries again until it has them.
func tenants(sec float64) func(*Scenario, uint64) plan {
	return func(_ *Scenario, seed uint64) plan {
		const perSec = 12
		rng := chance(seed)
		shift := rng.Float64() * sec
		var taken []float64
		for t := 0.0; t < 2000; t += rng.ExpFloat64() / perSec {
			if math.Mod((t+shift)/sec, 2) >= 1 {
				taken = append(taken, t)
			}
		}
		return plan{server: &shared{bucket: newBucket(schedule{{0, 20}}, 5), taken: taken}}
	}
}

// turnsAtOnce admits 32 calls at once, or 8, in turn.
func turnsAtOnce(sec float64) func(*Scenario, uint64) plan {
	limits := alternation(32, 8, sec)
	return func(sc *Scenario, seed uint64) plan {
		return plan{server: &varyingAtOnce{limits: limits(seed), callSec: sc.meanSec()}}
	}
}

// tokensPerSecond is a bucket of tokens, which calls take by their sizes: lognormal with
// sigma 1, as prompts are, the largest ten times the median. It holds so many of the
// largest.
func tokensPerSecond(rate func(uint64) schedule, holds float64) func(*Scenario, uint64) plan {
	return func(sc *Scenario, seed uint64) plan {
		const biggest = 10
		sizes := make([]float64, sc.Rows)
		total := 0.0
		for row := range sizes {
			sizes[row] = min(biggest, math.Exp(callID{row: row}.rand(seed, 7).NormFloat64()))
			total += sizes[row]
		}
		scale := float64(sc.Rows) / total // so that the server offers as many calls as tokens
		for row := range sizes {
			sizes[row] *= scale
		}
		return plan{server: &tokens{bucket: newBucket(rate(seed), holds*biggest*scale), sizes: sizes}}
	}
}

// ramp is a bucket whose rate grows from 5/s to 500/s within two minutes.
func ramp(*Scenario, uint64) plan {
	var rate schedule
	for t := 0.0; t < 120; t += 0.5 {
		rate = append(rate, step{t, 5 + 495*t/120})
	}
	return plan{server: newBucket(append(rate, step{120, 500}), 5)}
}
