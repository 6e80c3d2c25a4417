package throttle

import (
	"fmt"
	"math"
	"time"

	"github.com/llm-stage/stage/aimd/fleet"
)

// newFleet returns a fleet of so many members at a server, for ten minutes; change alters
// it.
func newFleet(name string, members int, setUp func(*Scenario, uint64) plan, change ...func(*Fleet)) *Fleet {
	f := &Fleet{
		Scenario: *scenario(name, "", setUp, clients(members), rows(1000)),
		Seconds:  600,
		messages: usualMessages,
		skew:     100 * time.Second,
	}
	for _, c := range change {
		c(f)
	}
	return f
}

// at makes something happen.
func at(sec float64, do func(r *fleetRun)) func(*Fleet) {
	return func(f *Fleet) { f.happens = append(f.happens, happening{sec, do}) }
}

// seconds sets how long it takes.
func seconds(s float64) func(*Fleet) { return func(f *Fleet) { f.Seconds = s } }

// carried sets how messages are carried.
func carried(m messages) func(*Fleet) { return func(f *Fleet) { f.messages = m } }

// lossy loses a share of all messages and doubles another.
func lossy(lost, doubled float64) func(*Fleet) {
	return func(f *Fleet) { f.messages.lost, f.messages.doubled = lost, doubled }
}

// pools sets the size of each pool.
func pools(n int) func(*Fleet) { return func(f *Fleet) { f.Pool = n } }

func limited(l fleet.Limits) func(*Fleet) { return func(f *Fleet) { f.limits = l } }

func weighted(w func(client int) float64) func(*Fleet) { return func(f *Fleet) { f.weight = w } }

func wanting(perSec func(client int) float64) func(*Fleet) {
	return func(f *Fleet) { f.demand = perSec }
}

// all returns the numbers of clients in a range.
func span(from, to int) []int {
	var list []int
	for c := from; c < to; c++ {
		list = append(list, c)
	}
	return list
}

// split puts the second half out of hearing of the first for a while.
func split(from, to float64) func(*Fleet) {
	return func(f *Fleet) {
		half := span(f.Clients/2, f.Clients)
		at(from, func(r *fleetRun) { r.net.put(1, half...) })(f)
		at(to, func(r *fleetRun) { r.net.put(0, half...) })(f)
		f.heals = append(f.heals, to)
	}
}

// cut takes some members off the network for a while.
func cut(from, to float64, clients ...int) func(*Fleet) {
	return func(f *Fleet) {
		at(from, func(r *fleetRun) { r.net.put(nowhere, clients...) })(f)
		at(to, func(r *fleetRun) { r.net.put(0, clients...) })(f)
		f.heals = append(f.heals, to)
	}
}

// silence takes all of them off it.
func silent(from, to float64) func(*Fleet) {
	return func(f *Fleet) { cut(from, to, span(0, f.Clients)...)(f) }
}

// deaf has no messages at all.
func deaf(f *Fleet) {
	for c := range f.Clients {
		at(0, func(r *fleetRun) { r.net.put(nowhere, c) })(f)
	}
}

// killing kills the leader, again and again.
func killing(from, every float64, times int) func(*Fleet) {
	return func(f *Fleet) {
		for i := range times {
			t := from + float64(i)*every
			at(t, func(r *fleetRun) {
				leader := r.leader()
				if leader < 0 {
					return
				}
				r.fmu.Lock()
				r.kills = append(r.kills, r.now())
				r.fmu.Unlock()
				r.end(leader, false)
			})(f)
		}
	}
}

// ends ends so many processes, one each so many seconds: with a goodbye, or without.
func ends(from, every float64, orderly bool, clients ...int) func(*Fleet) {
	return func(f *Fleet) {
		for i, c := range clients {
			at(from+float64(i)*every, func(r *fleetRun) { r.end(c, orderly) })(f)
		}
	}
}

// joining makes clients start later.
func joining(from, every float64, clients ...int) func(*Fleet) {
	late := make(map[int]float64)
	for i, c := range clients {
		late[c] = from + float64(i)*every
	}
	return func(f *Fleet) { f.late = func(client int) float64 { return late[client] } }
}

// suspending suspends processes for a while. Among them is the leader if clients is nil.
func suspending(from, to float64, clients ...int) func(*Fleet) {
	return func(f *Fleet) {
		var stopped []*member
		at(from, func(r *fleetRun) {
			chosen := clients
			if chosen == nil {
				chosen = []int{r.leader()}
			}
			stopped = nil
			for _, m := range r.net.running() {
				for _, c := range chosen {
					if m.client == c {
						m.suspend()
						r.notGreedy(c)
						stopped = append(stopped, m)
					}
				}
			}
		})(f)
		at(to, func(*fleetRun) {
			for _, m := range stopped {
				m.resume()
			}
		})(f)
		f.heals = append(f.heals, to)
	}
}

// stopping makes the second half have nothing to do from then to then.
func resting(from, to float64) func(*Fleet) {
	return func(f *Fleet) {
		half := f.Clients / 2
		f.idles = func(client int, t float64) bool { return client >= half && t >= from && t < to }
		f.regains = append(f.regains, from)
		restGreedy(f, half)
	}
}

// restGreedy leaves the second half out of Jain's index.
func restGreedy(f *Fleet, half int) {
	at(0, func(r *fleetRun) {
		for c := half; c < f.Clients; c++ {
			r.notGreedy(c)
		}
	})(f)
}

// dropping is a bucket that has a quarter of its rate in every other minute.
func dropping(rate, burst float64) func(*Scenario, uint64) plan {
	return func(_ *Scenario, seed uint64) plan {
		shift := 4*chance(seed).Float64() - 2
		s := schedule{{0, rate}}
		for i := 1; i < 20; i += 2 {
			s = append(s, step{float64(60*i) + shift, rate / 4}, step{float64(60*i+60) + shift, rate})
		}
		return plan{server: newBucket(s, burst)}
	}
}

// roaming is a bucket with a rate, or a quarter of it, each for a random time of 30 s on
// average.
func roaming(rate, burst float64) func(*Scenario, uint64) plan {
	return func(_ *Scenario, seed uint64) plan {
		rng := chance(seed)
		s := schedule{{0, rate}}
		for len(s) < 1000 {
			last := s[len(s)-1]
			s = append(s, step{last.from + 30*rng.ExpFloat64(), 1.25*rate - last.rate})
		}
		return plan{server: newBucket(s, burst)}
	}
}

// broken is a bucket that is out for two minutes.
func broken(rate, burst, from float64) func(*Scenario, uint64) plan {
	return func(*Scenario, uint64) plan {
		return plan{server: newBucket(schedule{{0, rate}, {from, 0}, {from + 120, rate}}, burst)}
	}
}

// perWindow admits so many calls in each minute.
func perWindow(rate float64) func(*Scenario, uint64) plan {
	return func(*Scenario, uint64) plan { return plan{server: &perMinute{quota: int(60 * rate)}} }
}

// together admits so many calls at once as make about that rate.
func together(rate float64) func(*Scenario, uint64) plan {
	return func(sc *Scenario, _ uint64) plan {
		return plan{server: &atOnce{limit: int(math.Round(rate * sc.meanSec())), callSec: sc.meanSec()}}
	}
}

// byTokens is a bucket of tokens, of which a call takes one on average.
func byTokens(rate, burst float64) func(*Scenario, uint64) plan {
	return func(_ *Scenario, seed uint64) plan {
		return plan{server: &weighing{bucket: newBucket(schedule{{0, rate}}, burst), seed: seed}}
	}
}

// weighing is a bucket of tokens.
type weighing struct {
	*bucket
	seed uint64
}

// weight returns the tokens that a call takes: lognormal, 1 on average.
func (w *weighing) weight(id callID) float64 {
	const sigma = 0.6
	return math.Exp(sigma*callID{client: id.client, row: id.row}.rand(w.seed, 9).NormFloat64() - sigma*sigma/2)
}

func (w *weighing) admit(now float64, id callID) bool {
	w.fill(now)
	tokens := w.weight(id)
	if w.level < tokens*nearly {
		return false
	}
	w.level -= tokens
	return true
}

// Fleets returns the fleets of the table in figures.md, with the rate of the server
// that they share and the calls that its bucket holds.
func Fleets(rate float64) []*Fleet {
	burst := max(5, rate/20)
	list := func(name string, members int, setUp func(*Scenario, uint64) plan, change ...func(*Fleet)) *Fleet {
		return newFleet(name, members, setUp, change...)
	}
	steady := constant(rate, burst)
	var fleets []*Fleet
	add := func(f *Fleet) { fleets = append(fleets, f) }
	for _, n := range []int{4, 16, 64, 256} {
		size := pools(max(32, int(4*1.3*rate)/n)) // so that the pools are not the limit
		add(list(fmt.Sprintf("%d members", n), n, steady, size))
	}
	add(list("no delay, clocks agree", 64, steady, carried(messages{most: time.Microsecond}), func(f *Fleet) { f.skew = 0 }))
	add(list("5% lost, 2% doubled", 64, steady, lossy(0.05, 0.02)))
	add(list("half lost", 64, steady, lossy(0.5, 0)))
	add(list("delays up to 500 ms", 64, steady, carried(messages{least: time.Millisecond, most: 500 * time.Millisecond})))
	add(list("a quarter of it each other minute", 64, dropping(rate, burst), lossy(0.05, 0.02)))
	add(list("that or a quarter, at random", 64, roaming(rate, burst), lossy(0.05, 0.02)))
	add(list("an outage of 120 s", 64, broken(rate, burst, 200), lossy(0.05, 0.02)))
	add(list("1% refused at random", 64, refusing(0.01, constant(rate, burst)), lossy(0.05, 0.02)))
	add(list("20% refused at random", 64, refusing(0.2, constant(rate, burst)), lossy(0.05, 0.02)))
	add(list("so many in each minute", 64, perWindow(rate), lossy(0.05, 0.02)))
	add(list("so many at once", 64, together(rate), lossy(0.05, 0.02)))
	add(list("tokens", 64, byTokens(rate, burst), lossy(0.05, 0.02)))
	add(list("32 join, 16 leave, 16 crash", 96, steady, lossy(0.05, 0.02), joining(100, 3, span(64, 96)...),
		ends(250, 5, true, span(0, 16)...), ends(350, 5, false, span(16, 32)...)))
	add(list("8 leaders are killed", 64, steady, lossy(0.05, 0.02), killing(60, 60, 8)))
	add(list("a leader is suspended for 1 s", 64, steady, lossy(0.05, 0.02), suspending(200, 201)))
	add(list("a leader is suspended for 30 s", 64, steady, lossy(0.05, 0.02), suspending(200, 230)))
	add(list("8 are suspended for 60 s", 64, steady, lossy(0.05, 0.02), suspending(200, 260, span(8, 16)...)))
	add(list("split in halves for 200 s", 64, steady, lossy(0.05, 0.02), split(200, 400)))
	add(list("one is cut off for 200 s", 64, steady, lossy(0.05, 0.02), cut(200, 400, 7)))
	add(list("no messages for 200 s", 64, steady, silent(200, 400)))
	add(list("no messages, ever", 64, steady, deaf))
	add(list("weights 1, 2 and 4", 63, steady, weighted(func(c int) float64 { return []float64{1, 2, 4}[c%3] })))
	add(list("a budget of 95% of it is set", 64, steady, lossy(0.05, 0.02), limited(fleet.Limits{RPM: int(57 * rate)})))
	add(list("so many at once, and that is set", 64, together(rate), lossy(0.05, 0.02), func(f *Fleet) {
		f.limits.Concurrency = int(math.Round(rate * f.meanSec()))
	}))
	add(list("one wants a tenth of its share", 16, steady, pools(max(32, int(rate/3))), wanting(func(c int) float64 {
		if c == 0 {
			return rate / 160
		}
		return math.Inf(1)
	})))
	add(list("half of them rest", 16, steady, pools(max(32, int(rate/3))), resting(200, 400)))
	add(list("a forger for 200 s", 64, steady, forging(200, 400, 1)))
	return fleets
}
