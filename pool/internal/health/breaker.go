package health

import "time"

// The waits between the probes of a breaker are short at first, as most problems last
// seconds, and then grow in proportion to how long the problem has lasted. So an outage
// of half a minute costs 26 probes and ends within 1.25 s of the server's return, and one
// of an hour costs some 160, where no wait is longer than a minute. Probes that reach no
// server are free, so their waits grow later: the end of an outage of two minutes is
// noticed within 1.2 s, and one of an hour costs some 510 refused connections.
const (
	// firstProbeWait is the wait for the first probe. Each is twice the one before, up to
	// probeWait.
	firstProbeWait = 250 * time.Millisecond
	probeWait      = 1200 * time.Millisecond
	// Waits longer than probeWait are the age of the problem divided by probeAgeShare, or
	// by unreachedAgeShare if the latest probe reached no server. For example, after ten
	// minutes a probe goes each 25 s, or each 5 s.
	probeAgeShare, unreachedAgeShare = 24, 120
)

// Breaker decides when probes go while nothing else may. It belongs to no job: the one
// that met the problem may be recalled, and the one that is first in line when a probe is
// due finds out whether the problem is over. Without a job it stays open until one
// arrives.
type Breaker struct {
	// Since is when the problem began.
	Since time.Time
	// Err is the error of the latest probe, or the one that opened the breaker.
	Err error
	// Next is the instant of the next probe, unless the pool waits for the verdict on the
	// last.
	Next time.Time
	// Probes counts the probes that have gone.
	Probes int
	// Lost counts the calls that were sent since the problem began, probes included, and
	// failed. They may have been paid for.
	Lost int
	// Absent is the time since when nothing has listened at the server. It is zero if
	// something listens there, or has.
	Absent time.Time

	opened time.Time     // when it was opened; zero while it is closed
	every  time.Duration // the steady interval of probes; 0 if the waits between them grow
	wait   time.Duration // from the latest probe to Next

	// These describe the probe in flight: at most one is waited for. A probe that takes
	// longer than patience no longer keeps the next one from going, and its verdict still
	// counts when it comes.
	probe     *Job          // the latest one; nil once its verdict is there
	sent      time.Time     // when it went
	patience  time.Duration // 0 is unlimited
	unreached bool          // the latest probe with a verdict reached no server

	// round is when the present round began: each waiting job is the probe at most once a
	// round.
	round time.Time
}

// NewBreaker returns a breaker that opens now because of a problem that began at since.
// Every is the steady interval of its probes where each may cost money; with 0 the waits
// between them grow from a quarter of a second.
func NewBreaker(now, since time.Time, err error, every time.Duration) Breaker {
	b := Breaker{Since: since, Err: err, opened: now, every: every, wait: firstProbeWait, round: now}
	if every > 0 {
		b.wait = every
	}
	b.Next = now.Add(b.wait)
	return b
}

// IsOpen reports whether only probes may go. The zero value is closed.
func (b *Breaker) IsOpen() bool { return !b.opened.IsZero() }

// Due returns the instant of the next probe. It is zero if that depends on the one in
// flight.
func (b *Breaker) Due() time.Time {
	switch {
	case b.probe == nil:
		return b.Next
	case b.patience == 0:
		return time.Time{}
	}
	if late := b.sent.Add(b.patience); late.After(b.Next) {
		return late
	}
	return b.Next
}

// MayProbe reports whether a probe may go now.
func (b *Breaker) MayProbe(now time.Time) bool {
	at := b.Due()
	return !at.IsZero() && !at.After(now)
}

// ProbeSent records that a job goes as a probe, and schedules the next probe, unless the
// interval of probes is steady: then the verdict on this one does. Most is the longest
// wait.
func (b *Breaker) ProbeSent(now time.Time, j *Job, most time.Duration) {
	j.probed = now
	b.probe, b.sent = j, now
	b.Probes++
	if b.every > 0 {
		return
	}
	share := time.Duration(probeAgeShare)
	if b.unreached {
		share = unreachedAgeShare
	}
	b.wait = min(2*b.wait, max(probeWait, now.Sub(b.opened)/share), most)
	b.Next = now.Add(b.wait)
}

// IsProbe reports whether the job is the probe that the breaker waits for.
func (b *Breaker) IsProbe(j *Job) bool { return b.probe == j }

// ProbeFailed records that the problem is not over, at the verdict on a probe or at an
// error like the one that opened the breaker.
func (b *Breaker) ProbeFailed(now time.Time, err error) {
	b.probe, b.Err = nil, err
	if b.every > 0 {
		b.Next = now.Add(b.every)
	}
}

// ProbeLost records that the probe was cut off, and has shown nothing.
func (b *Breaker) ProbeLost() { b.probe = nil }

// Fresh reports whether a job has not been a probe in this round. A probe for another
// breaker counts, too. Otherwise one job could keep two of them open in turns.
func (b *Breaker) Fresh(j *Job) bool { return j.probed.Before(b.round) }

// NewRound begins the next round, because each waiting job has been a probe.
func (b *Breaker) NewRound(now time.Time) { b.round = now }

// noteAbsent records whether nothing listens at the server.
func (b *Breaker) noteAbsent(absent bool, now time.Time) {
	switch {
	case !absent:
		b.Absent = time.Time{}
	case b.Absent.IsZero():
		b.Absent = now
	}
}
