package throttle

import (
	"fmt"
	"math"
	"slices"
)

// family is a way in which a server breaks down.
type family struct {
	name, about string
	// Up is the time at full service that the job would take, in seconds.
	up float64
	// Incidents of a run; failShare returns what a share of failed calls takes off the
	// capacity.
	incidents func(seed uint64, failShare func(float64) float64) incidents
	poison    func(row int) bool
	flaps     bool // utilisation is measured while it does; the job takes longer, so that it does not end in an outage
}

// Most outages of a run, which has one for each upSec of its job, and what their times
// are off by at random: else it would be chance whether probes come just before an end or
// just after.
const (
	outageCount = 4
	upSec       = 60.0
	offMost     = 0.1
)

func families() []family {
	var list []family
	for _, sec := range []float64{30, 120} {
		name := func(what string) string { return fmt.Sprintf("%s, %g s", what, sec) }
		list = append(list,
			family{name: name("refused"), about: "no connection, calls in flight reset", incidents: again(outageCount, upSec, sec, refusedConn, reset)},
			family{name: name("502"), about: "from a gateway, in 5 ms, calls in flight too", incidents: again(outageCount, upSec, sec, badGateway, gatewayReset)},
			family{name: name("silent"), about: "no answer, calls time out after 10 s", incidents: again(outageCount, upSec, sec, silence, silence)},
		)
	}
	return append(list,
		family{name: "flapping, refused", about: "up 5 s, down 5 s", up: 180, flaps: true, incidents: again(30, 5, 5, refusedConn, reset)},
		family{name: "flapping, 502", about: "the same", up: 180, flaps: true, incidents: again(30, 5, 5, badGateway, gatewayReset)},
		family{name: "every second refused", about: "one of two backends is dead, for 3 min", incidents: partly(180, refusedConn, 0, everySecond)},
		family{name: "half refused", about: "the same, at random", incidents: partly(180, refusedConn, 0, share(0.5))},
		family{name: "half fail", about: "500 at random, for 3 min", incidents: partly(180, serverError, 0.5, share(0.5))},
		family{name: "half fail for ever", about: "500 at random", incidents: partly(math.Inf(1), serverError, 0.5, share(0.5))},
		family{name: "cold start", about: "503 for 10 s, 500 for 10 s, then well", incidents: coldStart},
		family{name: "restarts", about: "calls in flight reset, then the same", incidents: restarts},
		family{
			name: "a fifth fails, poison", about: "500 at random, and each time for one row in 500",
			incidents: partly(math.Inf(1), serverError, 0.2, share(0.2)), poison: isPoison,
		},
	)
}

func isPoison(row int) bool { return row%500 == 250 }

// Outages returns servers that break down, with a pool of that size, and if limited with
// a limit of 20/s besides.
func Outages(pool int, limited bool) []*Scenario {
	var list []*Scenario
	for _, f := range families() {
		sc := scenario(f.name, f.about, nil, poolSize(pool))
		rate := sc.poolPerSec()
		if limited {
			rate = min(rate, 20)
		}
		if f.up == 0 {
			f.up = (outageCount + 0.5) * upSec
		}
		sc.Rows = int(f.up * rate)
		sc.setUp = func(sc *Scenario, seed uint64) plan {
			p := noisy(0)(sc, seed) // no limit
			if limited {
				p = constant(20, 5)(sc, seed)
			}
			p.poison = f.poison
			if limited {
				p.incidents = f.incidents(seed, func(share float64) float64 { return share }) // a failed call takes a token
			} else {
				p.incidents = f.incidents(seed, func(share float64) float64 { // a failed call takes a slot for a moment
					return 1 - sc.meanSec()/(sc.meanSec()+serverError.sec*share/(1-share))
				})
			}
			if f.flaps {
				p.measured = p.incidents[len(p.incidents)-1].to
			}
			return p
		}
		list = append(list, sc)
	}
	return list
}

// again is so many outages of about down seconds, with about up seconds before each.
func again(count int, up, down float64, fails, cuts *failure) func(uint64, func(float64) float64) incidents {
	return func(seed uint64, _ func(float64) float64) (in incidents) {
		off := offs(seed)
		t := 0.0
		for range count {
			from := t + off(up)
			t = from + off(down)
			in = append(in, &incident{from: from, to: t, fails: fails, cuts: cuts, loss: 1})
		}
		return in
	}
}

// offs returns a function that changes a time by up to offMost of it at random.
func offs(seed uint64) func(float64) float64 {
	rng := chance(seed)
	return func(sec float64) float64 { return sec * (1 + offMost*(2*rng.Float64()-1)) }
}

// partly is one time in which calls that meets chooses fail, of which so large a share
// takes off capacity.
func partly(sec float64, fails *failure, failShare float64, meets func(seed uint64) func(callID, int) bool) func(uint64, func(float64) float64) incidents {
	return func(seed uint64, loss func(float64) float64) incidents {
		from := offs(seed)(upSec)
		return incidents{{from: from, to: from + sec, fails: fails, loss: loss(failShare), meets: meets(seed)}}
	}
}

func everySecond(uint64) func(callID, int) bool {
	return func(_ callID, n int) bool { return n%2 == 0 }
}

func share(of float64) func(uint64) func(callID, int) bool {
	return func(seed uint64) func(callID, int) bool {
		return func(id callID, _ int) bool { return id.rand(seed, 7).Float64() < of }
	}
}

// starting is a server that is not ready from an instant on.
func starting(from float64, off func(float64) float64) incidents {
	const sec = 10
	ready := from + off(sec)
	return incidents{
		{from: from, to: ready, fails: unavailable, loss: 1},
		{from: ready, to: ready + off(sec), fails: serverError, loss: 1},
	}
}

func coldStart(seed uint64, _ func(float64) float64) incidents { return starting(0, offs(seed)) }

func restarts(seed uint64, _ func(float64) float64) (in incidents) {
	off := offs(seed)
	t := 0.0
	for range outageCount {
		start := starting(t+off(upSec), off)
		start[0].cuts = reset
		in = append(in, start...)
		t = start[1].to
	}
	return in
}

// partly reports whether calls are served during the incidents of a scenario.
func (sc *Scenario) partly() bool {
	return slices.ContainsFunc(sc.setUp(sc, 0).incidents, func(i *incident) bool { return i.loss < 1 })
}
