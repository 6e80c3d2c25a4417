package aimd

import "math"

// The constants of probes.
const (
	// The odds of noise to a limiter at first, and at which the law is sure, both as
	// logarithms. What probes have shown is forgotten over a minute.
	oddsFirst, oddsSure = -1.0, 1.5
	oddsForgetSec       = 60.0
	// A limiter may be a little faster than measured, since others use it, too: by so
	// many attempts a second.
	probeOthers = 2.0
	// The first probe of a series has so many attempts more than a limiter gained room
	// for. The second has so many times what a limiter has room for, as the first has
	// taken all that there was. Both have more where many are refused: at a loss of a
	// third, half as many again.
	probeMore  = 3.0
	probeAgain = 2.0
	// A probe with less than this many attempts more than a limiter gained room for says
	// nothing, and one larger than probeMost costs more than it is worth.
	probeLeast = 1.5
	probeMost  = 16
	// Each attempt more than a limiter has room for makes the limiter ten times less
	// likely.
	probeSteepness = 2.3
	// Attempts between two series at least.
	probeGap = 8
	// Refusals among so many attempts at the beginning are suspicious, too: a limiter has
	// room for the first few.
	probeEarly = 8
	// The refusals that probes may cost: so many at first, and then for each suspicious
	// refusal a little, and the more the higher the loss is. At a loss of .1 that is .05,
	// at a third .2, at a half .55.
	probeCredit                = 7.0
	probeEarned, probeEarnLoss = 0.05, 4.0
	// At less than this rate the credit is in proportion to it: each of many clients of a
	// slow server makes few calls. The second is for a law that sinks.
	probeFull, probeFullSunk = 8.0, 1.0
	// Where the server admitted this many times as much not long ago, noise most likely
	// makes the law sink. Then a suspicious refusal earns so much. What was admitted is
	// forgotten with this time constant.
	provenTimes, provenSec = 2.0, 40.0
	probeEarnedSunk        = 1.0
	// No more of the attempts than this are expected to be refused at random.
	probeLossMost = 0.6
)

// noiseShares are the shares of random refusals that probes look for. Each is as likely
// as the others.
var noiseShares = [...]float64{0.1, 0.2, 0.35, 0.5}

// suspicion is how the law finds out whether refusals are random. A refusal at no more
// than the measured rate is suspicious: a limiter should have had room. So a probe is
// sent, a few attempts at once just after the refusal. The limiter's bucket is empty by
// then, so it has room for no more than it has gained since. Noise lets most of them
// through.
//
// For example, the estimate is 10/s and a refusal is known after 60 ms. A limiter has gained
// .7 since, so it accepts one or two of four attempts. If all four are accepted, noise is
// forty times as likely. Several probes add up, as refusals can be bad luck in both
// cases.
//
// The pool sends the attempt that was refused first. If it is refused again, the probe is
// no evidence of noise, whatever becomes of the others. It may be a large call, and a
// limiter of tokens that has no room for it has room for smaller ones.
type suspicion struct {
	odds   float64 // of noise to a limiter, as a logarithm, at
	at     float64
	cost   float64 // refusals in probes so far, less what was earned for them
	proven float64 // the highest estimate of late
	asked  float64 // when the last suspicious refusal came
	next   int     // the first seq that may start a series
	wanted bool
	second bool // the probe is the second of a series
	all    int  // attempts in the series so far
	lost   int  // refusals among them

	probe probe
}

// probe is a group of attempts sent at once.
type probe struct {
	size    int     // attempts in it
	left    int     // of them yet to be sent
	refused int     // of them, so far
	first   int     // the seq of the first
	again   bool    // the first was refused
	rate    float64 // that a limiter has at most, by estimate
	empty   float64 // when its bucket was empty
	gained  float64 // what it has gained since
	sent    float64 // when the last attempt went
}

// suspect takes note of a refusal of m where a limiter should have had room. It asks for a
// probe if there was none a moment ago and probes have not cost too much.
func (s *suspicion) suspect(l *Adaptive, m mark) {
	if l.noise.on || l.shared || l.stats.Successes == 0 { // noise lets something through
		return
	}
	s.proven = max(s.proven*math.Exp((s.asked-l.now)/provenSec), l.estimate)
	s.asked = l.now
	earned, full := probeEarned+probeEarnLoss*l.loss*l.loss*l.loss, probeFull
	if m.rate*provenTimes < s.proven {
		earned, full = probeEarnedSunk, probeFullSunk
	}
	s.cost = max(0, s.cost-earned)
	if m.seq < s.next || s.cost > probeCredit*min(1, max(l.estimate, m.rate)/full) {
		return
	}
	s.wanted, s.second = true, false
	s.all, s.lost = 0, 0
	s.probe.empty, s.probe.rate = m.at, max(l.estimate, m.rate)
}

// start begins the probe that is wanted, if there are slots for it.
func (s *suspicion) start(l *Adaptive, inFlight int) {
	if !s.wanted || l.pause.until > l.now {
		return
	}
	s.wanted = false
	p := &s.probe
	p.sent = l.now
	p.gained = (p.rate + probeOthers) * (l.now - p.empty)
	size := probeMore + p.gained
	if s.second {
		size = probeAgain * (1 + p.gained)
	}
	size = math.Ceil(size / (1 - min(probeLossMost, l.loss)))
	p.size = min(int(size), probeMost, l.cfg.PoolSize-inFlight)
	if float64(p.size) < probeLeast+p.gained || l.slots.limit > 0 {
		return
	}
	p.left, p.refused, p.again = p.size, 0, false
	p.first = l.history.last + 1
	l.enter(Probe)
}

// conclude ends a probe whose attempts would all have been refused by now.
func (s *suspicion) conclude(l *Adaptive) {
	p := &s.probe
	s.all += p.size
	s.lost += p.refused
	s.cost += float64(p.refused)
	evidence := p.evidence()
	s.odds = oddsFirst + (s.odds-oddsFirst)*math.Exp((s.at-l.now)/oddsForgetSec) + evidence
	s.at = l.now
	switch {
	case s.odds >= oddsSure:
		s.odds = oddsFirst
		l.estimate = max(l.estimate, p.rate)
		l.noise.begin(l, s.all, s.lost)
	case evidence > 1 && !s.second:
		s.wanted, s.second = true, true
		p.empty = p.sent
		l.enter(Drain)
	case p.refused < p.size:
		s.next = l.history.last + probeGap
		l.proceed()
	default:
		s.next = l.history.last + probeGap
		l.failures++
		l.cuts++
		l.enter(Drain)
	}
}

// cancel gives up the probe.
func (s *suspicion) cancel() { s.wanted, s.probe.left = false, 0 }

// evidence returns how much more likely the outcome is by noise than by a limiter, as a
// logarithm.
func (p *probe) evidence() float64 {
	accepted := p.size - p.refused
	byNoise := 0.0
	for _, share := range noiseShares {
		byNoise += binomial(accepted, p.size, 1-share) / float64(len(noiseShares))
	}
	// A limiter accepts any number up to what it has room for, and more with little chance.
	tooMany := max(0, float64(accepted)-1-p.gained)
	byLimiter := -math.Log(2+p.gained) - probeSteepness*tooMany/(1+p.gained/2)
	evidence := math.Log(byNoise) - byLimiter
	if p.again {
		return min(0, evidence)
	}
	return evidence
}

// binomial returns the chance of just k successes among n, where each has this chance.
func binomial(k, n int, chance float64) float64 {
	ways := 1.0
	for i := range k {
		ways *= float64(n-i) / float64(i+1)
	}
	return ways * math.Pow(chance, float64(k)) * math.Pow(1-chance, float64(n-k))
}

// mayGo returns when the probe's next attempt may go, or when it is over.
func (p *probe) mayGo(l *Adaptive) float64 {
	if p.left > 0 {
		return l.now
	}
	return p.sent + l.refusal.surely()
}

// sends reports whether the attempt that goes now is part of the probe.
func (p *probe) sends(l *Adaptive) bool {
	if l.phase != Probe || p.left == 0 {
		return false
	}
	p.left--
	p.sent, l.due = l.now, l.now
	return true
}

// lost takes a refusal of one of its attempts.
func (p *probe) lost(m mark) {
	p.refused++
	p.again = p.again || m.seq == p.first
}
