package aimd

import "math"

// The constants of probes.
const (
	// The law is sure of noise when the odds of noise to a limiter are e^oddsSure times
	// what they are before any probe. A limiter is likelier then, so it takes more than
	// it would otherwise.
	oddsSure = 1.85
	// Each of many clients of a server makes so few calls a second. A limiter may be faster
	// than measured by this, since others use it, too; and at a lower rate the credit is in
	// proportion to the rate, unless the law sinks.
	clientRate = 2.0
	// Each attempt more than a limiter has room for makes the limiter ten times less
	// likely, if it has gained no room since it refused, and less so otherwise.
	probeSteepness = 2.3
	// The refusals that probes may cost at first, and the most attempts of one probe.
	probeCredit = 10
	// What each suspicious refusal adds to that: the first, and the second times the cube
	// of the loss. At a loss of .1 that is .11, at a third .4, at a half 1.1.
	probeEarned, probeEarnLoss = 0.1, 8.0
	// What it adds where noise most likely makes the law sink.
	probeEarnedSunk = 1.0
	// What was admitted is forgotten with this time constant.
	suspicionSec = 40.0
	// Where others are known, the chance that they have just left room for a whole probe.
	// Then no probe tells much: at best noise is 1.8 times as likely as before, so it takes
	// four of them to be sure.
	roomOfOthers = 0.8
)

// noiseShares are the shares of random refusals that probes look for. Each is as likely
// as the others.
var noiseShares = [...]float64{0.1, 0.2, 0.35, 0.5}

// averageNoise returns the share to expect of noise before anything is known of it.
func averageNoise() (mean float64) {
	for _, share := range noiseShares {
		mean += share / float64(len(noiseShares))
	}
	return mean
}

// suspicion is how the law finds out whether refusals are random. A refusal at no more
// than the measured rate is suspicious: a limiter should have had room. So a probe is
// sent, a few attempts at once just after the refusal. The limiter's bucket is empty by
// then, so it has room for no more than it has gained since. Noise lets most of them
// through.
//
// For example, the estimate is 10/s and a refusal is known after 60 ms. A limiter has gained
// .7 since, so it accepts one or two of four attempts. If all four are accepted, noise is
// twenty times as likely. Several probes add up, as refusals can be bad luck in both
// cases. Those that speak for a limiter are forgotten at the next one, unless others are
// known.
//
// The pool sends the attempt that was refused first. If it is refused again, the probe is
// no evidence of noise, whatever becomes of the others. It may be a large call, and a
// limiter of tokens that has no room for it has room for smaller ones. So the same probe
// is sent again at once.
//
// A probe that meets a limiter does not show that there is no noise, because there may be
// both. But another at the same rate would meet the limiter again. The law asks for none
// until noise has made it sink well below that rate, where a limiter has room.
type suspicion struct {
	odds   float64 // of noise to a limiter by what probes have shown, as a logarithm; 0 before any
	cost   float64 // refusals in probes so far, less what was earned for them
	proven float64 // the highest estimate of late
	asked  float64 // when the last suspicious refusal came
	limit  float64 // the rate at which a probe has last met a limiter; 0 means never
	wanted bool    // a probe is to begin when the law is next asked for an instant

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
// probe unless probes have cost too much, or one would meet the same limiter again.
//
// A refusal is a limiter's own if it came less than half a cut from the rate at which a
// probe has last met one: with a multiplier of 2, after one at 20/s refusals at 14/s to
// 28/s ask for no probe. Where the server admitted a whole cut more than the present rate
// not long ago, noise most likely makes the law sink.
func (s *suspicion) suspect(l *Adaptive, m mark) {
	if l.noise.on || l.stats.Successes == 0 { // noise lets something through
		return
	}
	s.proven = max(s.proven*math.Exp((s.asked-l.now)/suspicionSec), l.estimate)
	s.asked = l.now
	rate := max(l.estimate, m.rate)
	lost := l.loss.share
	earned, left := probeEarned+probeEarnLoss*lost*lost*lost, credit(rate)
	cut := l.cfg.Multiplier
	switch {
	case m.rate*cut < s.proven:
		earned, left = probeEarnedSunk, probeCredit
	case l.cfg.SureSilence > 0: // a probe stops everybody for that long
		return
	}
	s.cost = max(0, s.cost-earned)
	if s.cost > left || math.Abs(math.Log(m.rate/s.limit)) < math.Log(cut)/2 {
		return
	}
	s.wanted = true
	s.probe.empty, s.probe.rate = m.at, rate
}

// credit returns the refusals that probes may cost at a rate.
func credit(rate float64) float64 { return probeCredit * min(1, rate/clientRate) }

// start begins the probe that is wanted. It drops one for which there are too few slots.
func (s *suspicion) start(l *Adaptive, inFlight int) {
	if !s.wanted || l.pause.until > l.now {
		return
	}
	s.wanted = false
	p := &s.probe
	p.sent = l.now
	p.gained = (p.rate + clientRate) * (l.now - p.empty)
	size := math.Ceil((burstCalls + p.gained) / (1 - min(noiseMost, l.loss.share))) // at a loss of a third half as many again
	p.size = min(int(size), probeCredit, l.cfg.PoolSize-inFlight)
	if float64(p.size) < 1+p.gained || l.slots.limit > 0 { // a limiter may have room for all
		return
	}
	p.left, p.refused, p.again = p.size, 0, false
	p.first = l.history.last + 1
	l.enter(Probe)
}

// conclude ends a probe whose attempts would all have been refused by now.
func (s *suspicion) conclude(l *Adaptive) {
	p := &s.probe
	s.cost += float64(p.refused)
	if !l.shared { // as in Page's test; but where others are known, a limiter is the likelier cause
		s.odds = max(0, s.odds)
	}
	s.odds += p.evidence(l.shared)
	tooMany := p.tooMany()
	if tooMany < 0 {
		s.limit = p.rate
	}
	switch {
	case s.odds >= oddsSure:
		s.odds = 0
		l.estimate = max(l.estimate, p.rate)
		l.noise.begin(l, p.size, p.refused)
	case p.refused < p.size:
		l.proceed()
		promising := s.odds > 0 || p.again && tooMany > 0
		if promising && p.refused > 0 && s.cost <= credit(p.rate) {
			s.wanted, p.empty = true, p.sent
		}
	default:
		l.epoch.failures++
		l.epoch.cuts++
		l.enter(Drain)
	}
}

// cancel gives up the probe.
func (s *suspicion) cancel() { s.wanted, s.probe.left = false, 0 }

// tooMany returns how many more attempts were accepted than a limiter has room for. It is
// negative where it could be less.
func (p *probe) tooMany() float64 { return float64(p.size-p.refused) - 1 - p.gained }

// evidence returns how much more likely the outcome is by noise than by a limiter alone,
// as a logarithm. Where there is noise, there is a limiter as well in half of all cases,
// which explains the outcome as if it were alone. So a probe that meets a limiter tells
// little: at most log(1/2).
//
// Where others use the server, they all give way at times, and its bucket fills. Then a
// limiter accepts any number of the probe.
//
// Where the first attempt was refused again, the outcome is no evidence of noise: at best
// it changes nothing.
func (p *probe) evidence(shared bool) float64 {
	accepted := p.size - p.refused
	byNoise := 0.0
	for _, share := range noiseShares {
		byNoise += binomial(accepted, p.size, 1-share) / float64(len(noiseShares))
	}
	// A limiter accepts any number up to what it has room for, and more with little chance.
	byLimiter := math.Exp(-probeSteepness*max(0, p.tooMany())/(1+p.gained/2)) / (2 + p.gained)
	if shared {
		byLimiter += (1/float64(p.size+1) - byLimiter) * roomOfOthers
	}
	if p.again {
		return min(0, math.Log(byNoise/byLimiter))
	}
	return math.Log((byNoise + byLimiter) / 2 / byLimiter)
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
	if p.left > 0 || p.refused == p.size {
		return l.now
	}
	return p.sent + l.surely()
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
