package aimd

import "math"

// The constants of random refusals.
const (
	// The share is an average over about so many attempts. As many of the latest attempts
	// of a start are not counted before more have followed: a start ends in a refusal by a
	// limiter, and then they never are.
	noiseCalls = 64.0
	// Below the first share the noise has gone; the usual loss also begins there. What
	// exceeds the second is no noise.
	noiseGone, noiseMost = 0.02, 0.6
	// The alarm is for a limiter that refuses this part of what the noise lets through.
	// Less would take longer to tell from chance, more would let a climb go on for longer.
	noiseExcess = 0.3
	// The alarm is raised at these odds that there is a limiter, as a logarithm, plus the
	// logarithm of the rate: the more attempts a second, the more often chance alone
	// looks like one.
	noiseAlarm = 3.5
	// After an alarm the rate is low for as long as the limiter takes to let so many
	// attempts in. Half of them are sent, and show the share without the limiter's part.
	noiseRestCalls = 10.0
	// Amid noise it takes many refusals to see a limit, so each climb that meets one
	// costs more of them. So the law holds the rate for so many times as long.
	noisePatience = 2.0
)

// noise is what the law knows of refusals that have nothing to do with the rate: a gateway
// sheds load by itself, or there are many limiters behind one address. A law that gives
// way to such refusals ends at the longest delay. Probes find out about it, see suspicion.
//
// Once noise is known, the law divides its rate by the share that gets through, and a
// limit that there is as well is seen by refusals that exceed the share. For example, a
// fifth is refused at random, and the limit is 20/s: the law sends 25 attempts a second,
// 5 of them are refused at random, and 20 are admitted. When it climbs to 35/s, 28 get
// through the noise and 8 of them are refused, so that 15 of 35 are refused in all. An
// alarm is raised within a second, and the 20/s admitted meanwhile are the new estimate.
type noise struct {
	on      bool
	base    float64 // the usual loss; while on, the share that is refused at random
	counted float64 // while on, how many attempts the share is an average of
	held    float64 // while on, the loss at no more than the measured rate
	settled int     // the seq of the last attempt that has been counted
	spared  int     // refusals kept from the law since the last measurement

	suspicion suspicion
}

// share returns the share of attempts that is known to be refused whatever the rate is.
func (n *noise) share() float64 {
	if n.on {
		return n.base
	}
	return 0
}

// begin takes note that the server refuses at random: of the attempts that were sent in
// the last probe, so many were refused. The law had measured noise until then, so it
// returns to its first state, [Start]. It starts from the rate of before, which got
// through.
//
// The share is guessed from the probe and a few attempts before it. Of these as many were
// refused as of all attempts of late, but at least as many as noise refuses on average.
func (n *noise) begin(l *Adaptive, sent, refused int) {
	n.on = true
	n.counted = fewCalls + float64(sent)
	n.base = (fewCalls*max(averageNoise(), l.loss.share) + float64(refused)) / n.counted
	n.held = 1
	n.settled = l.history.last
	l.epoch.heal()
	l.enter(Start)
	l.since -= startDoubling * math.Log2(max(1, l.estimate/startRate))
}

// end ends the noise; a usual loss above usualMost is believed of noise alone.
func (n *noise) end() { n.on, n.base = false, min(n.base, usualMost) }

// explain reports whether the refusal of m is nothing but noise.
func (n *noise) explain(l *Adaptive, m mark) bool {
	switch {
	case !n.on:
		return l.sporadic(m)
	case n.alarm(l, m) > 0:
		return false
	}
	if l.phase == Drain && m.at == l.epoch.witness {
		l.epoch.witness = none // another attempt must get through, or an outage would never be noticed
	}
	if m.seq > l.mark.seq {
		n.spared++
	}
	return true
}

// alarm returns how many attempts a second a limiter admitted before the refusal of m, and
// 0 if there is no sign of one. It adds up the odds of a limiter to noise alone over the
// attempts before, latest first, as far back as the phase began and by 512 attempts at
// most. If that reaches the alarm, then over the time with the highest odds the limiter
// was at work. This is Page's test for a change, and finds it with the fewest attempts.
//
// For example, a fifth is noise, give or take .05, so .25 is taken for noise and .475 for a
// limiter as well. A refusal raises the odds by log(.475/.25) = .64, and an attempt that
// got through lowers them by log(.75/.525) = .36. At 20/s the alarm is at 6.5: it takes
// eleven refusals in a row, or 27 among 57 attempts.
func (n *noise) alarm(l *Adaptive, m mark) (admitted float64) {
	if m.epoch != l.epoch.number {
		return 0
	}
	share := max(noiseGone, n.base)
	share += deviation(share, min(n.counted, noiseCalls)) // it may be higher than it seems
	highest := noiseAlarm
	if l.phase != Drain {
		highest += math.Log(max(1, l.estimate))
	}
	over := share + noiseExcess*(1-share)
	refused, passed := math.Log(over/share), math.Log((1-over)/(1-share))
	odds, accepted := refused, 0.0
	seen := 0
	for a := range l.history.before(m.seq) {
		if seen++; a.at < l.since || seen > 8*noiseCalls {
			break
		}
		if !a.refused {
			accepted++
			odds += passed
			continue
		}
		odds += refused
		if odds > highest && m.at > a.at {
			highest, admitted = odds, max(accepted, 0.5)/(m.at-a.at)
		}
	}
	return admitted
}

// settle counts the attempts that have met no refusal for as long as refusals take: all
// that were to be refused have been. An average of replies would be too high, as replies
// come long after refusals.
//
// In start and in drain the rate is low, and what is refused there is noise. A law that
// learned from its cruise as well would believe anything: with a limit of 20/s and a share
// of .5 it would send 40 attempts a second, and half of them would indeed be refused. What
// is refused in cruise is an upper bound for the share, though: noise can't be more.
func (n *noise) settle(l *Adaptive) {
	for n.on && n.settled < l.history.last {
		a := l.history.at(n.settled + 1)
		if l.now-a.at < l.surely() || l.phase == Start && l.history.last-n.settled <= noiseCalls {
			return
		}
		n.settled++
		if l.history.last-n.settled < len(l.history.ring) {
			n.count(a)
		}
	}
}

func (n *noise) count(a *sending) {
	lost := 0.0
	if a.refused {
		lost = 1
	}
	if a.phase == Start || a.phase == Drain {
		n.counted++
		n.base += (lost - n.base) / min(n.counted, noiseCalls)
	}
	if a.held || a.phase == Start || a.phase == Drain {
		n.held += (lost - n.held) / noiseCalls
		n.base = min(n.base, n.held+deviation(n.held, noiseCalls)) // give or take what chance does
	}
	if n.base < noiseGone || n.base > noiseMost {
		n.end()
	}
}

// accepted counts an attempt that was accepted at the measured rate into the usual loss.
// Refusals are counted by sporadic.
func (n *noise) accepted(l *Adaptive, m mark) {
	if !n.on && l.phase != Drain && m.rate <= l.estimate {
		n.base -= n.base * l.usualGain()
	}
}

// deviation returns the standard deviation of a share that was measured with so many
// attempts.
func deviation(share, calls float64) float64 {
	return math.Sqrt(share * (1 - share) / calls)
}
