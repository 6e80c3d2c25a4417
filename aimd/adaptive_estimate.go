package aimd

import (
	"iter"
	"math"
)

// The constants of the measurement and of the law's sense of time.
const (
	// The most calls that a server's bucket is taken to give beyond its rate. Less makes
	// the law overrate servers with a larger one, more makes it underrate those with a
	// smaller one. A probe has so many attempts more than a limiter gained room for.
	burstCalls = 3.0
	// Refusals that take longer than this are not waited for, as the server's bucket runs
	// over meanwhile. It is also the guess until the first refusal has shown how long they
	// take. And whether a refusal is sporadic is judged by the attempts of this time before
	// it, so that a fall of the rate is soon noticed.
	shortSec = 0.25
	// The loss is an average over about so many attempts: a second of them at the pace of
	// most limits.
	lossCalls = 32.0
	// Chance decides about so few attempts. The loss begins as if this many had been
	// accepted, so that after two refusals among the first two it is 2/10; and refusals of
	// the first few are suspicious, as a limiter has room for those.
	fewCalls = 8
	// At this loss all the law's waits are twice as long; they grow with the cube, so the
	// loss of a client that is alone with the server (1 to 10%) has nearly no effect,
	// while 16 that disturb each other share it fairly.
	impatienceLoss = 0.18
	// No more than four times as long, so that an outage is forgotten within seconds.
	impatienceMax = 0.25
)

// mark is what the law records about an attempt on its ticket.
type mark struct {
	seq    int     // counts attempts from 1
	epoch  int     // at sending
	at     float64 // when it went
	rate   float64 // the rate at that instant without what noise refuses: attempts per second
	probe  bool    // it is part of a probe
	canary bool    // it went in a pause

	cohort int // see queue
}

// measure returns the rate at which the server admitted attempts up to the refusal of m,
// in attempts per second.
//
// A limiter refuses when its bucket is empty. So between two refusals it admitted just
// its rate, give or take one call, unless its bucket ran over meanwhile: then it allows
// more. For example, attempts 100 and 141 are refused, 2 s apart: 40 were admitted in
// between, so it allows about 20/s. And in any time up to a refusal it admitted at most
// its rate and a full bucket, so it allows at least the admitted calls without a bucket.
// The highest of these bounds is the measurement, and the highest of the second kind is
// what the server surely allows. For the second kind it looks back by cruiseSec at most.
func (l *Adaptive) measure(m mark) (rate, sure float64) {
	rate = (float64(m.seq-l.mark.seq-l.noise.spared) - 0.5) / (m.at - l.mark.at) // infinite if the first attempt was refused
	admitted := -burstCalls
	for a := range l.history.before(m.seq) {
		if m.at-a.at > cruiseSec || a.at < l.restarted {
			break
		}
		if !a.refused {
			admitted++
		}
		if admitted > 0 && m.at > a.at {
			sure = max(sure, admitted/(m.at-a.at))
		}
	}
	return min(max(rate, sure), m.rate), min(sure, m.rate)
}

// patience returns by how much to wait longer because many attempts are refused: then
// others use the server too, and the climbs of all add up. All of them see the same loss,
// so none gains by it.
func (l *Adaptive) patience() float64 {
	if l.noise.on {
		return noisePatience
	}
	x := min(l.loss.share, impatienceMax) / impatienceLoss
	return 1 + x*x*x
}

// loss is the share of attempts that were refused of late.
type loss struct {
	share float64
	ended float64 // attempts
}

// count counts an attempt that has ended: 1 if it was refused, 0 if not.
func (l *loss) count(refused float64) {
	l.ended++
	l.share += (refused - l.share) / min(fewCalls+l.ended, lossCalls)
}

// refusalTime learns how long refusals take, as TCP learns its round trip.
type refusalTime struct {
	mean mean
	dev  float64
}

func (r *refusalTime) add(sec float64) {
	if !r.mean.known {
		r.dev = sec / 2
	} else {
		r.dev += (math.Abs(sec-r.mean.value) - r.dev) / 4
	}
	r.mean.add(sec)
}

// surely returns the seconds after which an attempt that was to be refused has been.
func (r *refusalTime) surely() float64 {
	if !r.mean.known {
		return shortSec
	}
	return r.mean.value + max(4*r.dev, r.mean.value/10)
}

// expected is surely, unless that takes too long.
func (r *refusalTime) expected() float64 { return min(r.surely(), shortSec) }

// surely returns the seconds after which an attempt that was to be refused is known to
// have been, also where the news may come late.
func (l *Adaptive) surely() float64 { return max(l.refusal.surely(), l.cfg.SureSilence.Seconds()) }

// newCallTime returns the duration of accepted attempts before the first: a guess.
func newCallTime() mean { return mean{value: 1} }

// mean is a moving average over about eight values. It holds a guess until the first.
type mean struct {
	value float64
	known bool
}

func (m *mean) add(x float64) {
	x = max(x, 1e-6) // an average of nothing but zeros could not be divided by
	if !m.known {
		m.value, m.known = x, true
		return
	}
	m.value += (x - m.value) / 8
}

// history keeps the latest attempts.
type history struct {
	ring []sending
	last int // the seq of the latest; they count from 1
}

type sending struct {
	at      float64
	level   int // attempts in flight, this one included
	phase   Phase
	held    bool // it went in cruise, before the climb: at no more than the measured rate
	refused bool
}

// newHistory returns a history long enough to hold the calls in flight and as many before
// them.
func newHistory(poolSize int) history { return history{ring: make([]sending, max(128, 2*poolSize))} }

func (h *history) add(s sending) (seq int) {
	h.last++
	*h.at(h.last) = s
	return h.last
}

func (h *history) refuse(seq int) {
	if seq > h.last-len(h.ring) {
		h.at(seq).refused = true
	}
}

// before yields the attempts before seq that it still has, latest first.
func (h *history) before(seq int) iter.Seq[*sending] {
	return func(yield func(*sending) bool) {
		for i := seq - 1; i > max(0, h.last-len(h.ring)); i-- {
			if !yield(h.at(i)) {
				return
			}
		}
	}
}

func (h *history) at(seq int) *sending { return &h.ring[seq%len(h.ring)] }
