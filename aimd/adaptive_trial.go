package aimd

import "math"

// trial is a bound that is being tried.
type trial struct {
	bound    int // 0 means none
	kind     trialKind
	since    float64 // when it began
	informed bool    // by how long calls take: there is a queue somewhere
	step     float64 // the factor by which it was to differ from the bound before; the next differs by its square
	extended int
	sum      cohort // of the cohorts before it was extended
	retried  int    // failed trials before it in the same check
}

type trialKind uint8

const (
	settle trialKind = iota // to measure a base
	lower
	higher
)

// try bounds the attempts in flight for a while.
func (q *queue) try(l *Adaptive, t trial) {
	t.since = l.now
	q.trial = t
	q.begin()
}

// begin makes the next attempt the first of those that count.
func (q *queue) begin() {
	if c := q.cohort(q.last); c != nil {
		c.size = c.sent
	}
	q.from = q.last + 1
}

// down tries a lower bound, down to half: what the server is thought to need, or a step
// lower where that is 0.
func (q *queue) down(l *Adaptive, need, step float64) {
	bound := float64(q.bound)
	to := bound / step
	if need > 0 {
		to = max(q.slack()*need, bound/queueStepMost)
	}
	next := min(int(math.Round(to)), q.bound-1)
	if next < 1 {
		q.hold(l)
		return
	}
	q.try(l, trial{bound: next, kind: lower, step: step, informed: need > 0})
}

// up tries a higher bound.
func (q *queue) up(l *Adaptive, step float64) {
	next := max(int(math.Round(float64(q.bound)*step)), q.bound+1)
	if q.bound >= l.cfg.PoolSize {
		q.hold(l)
		return
	}
	q.try(l, trial{bound: min(next, l.cfg.PoolSize), kind: higher, step: step})
}

// gain returns the logarithm of how much more was done per second in c than in d, and its
// standard error. By Little's law that is attempts in flight by seconds.
func (q *queue) gain(c, d *cohort) (log, err float64) {
	slower, err := c.slower(d)
	if q.need(c, queueLeft) > 0 || q.need(d, queueLeft) > 0 {
		variance := c.lengths()
		if !q.lengths {
			variance = q.low.variance()
		}
		slower, err = c.slowerInQueue(d, variance)
	}
	return c.more(d) - slower, err
}

// judge ends a trial by the calls that it measured.
func (q *queue) judge(l *Adaptive, c cohort) {
	t := &q.trial
	if c.inFlight() < 0.9*float64(t.bound) { // there was not enough to send
		q.hold(l)
		return
	}
	if t.kind == settle {
		q.bound, q.base = t.bound, c
		need := q.need(&c, queueLeft)
		if need == 0 && q.free(&c) { // it was too low
			q.up(l, queueStepMost)
			return
		}
		q.down(l, need, q.step())
		return
	}
	if t.extended > 0 {
		c.merge(&t.sum)
	}
	gain, err := q.gain(&c, &q.base) // below 0 where the trial's bound lowers the throughput
	more := c.more(&q.base)
	if math.Abs(gain-queueWorth*more) < 1.5*err && t.extended < trialExtensions {
		t.extended++
		t.sum = c
		return
	}
	if t.kind == lower {
		q.judgeLower(l, &c, gain-queueWorth*more, gain, err)
		return
	}
	if q.lengths {
		err = -err
	}
	q.judgeHigher(l, &c, gain-queueWorth*more+err, gain)
}

func (q *queue) judgeLower(l *Adaptive, c *cohort, kept, gain, err float64) {
	t := q.trial
	kept = min(kept, queueLoss-q.given+gain)
	sure := kept < -2*err
	if t.informed {
		kept += err
	}
	if !q.lengths {
		kept -= err // calls differ so much that a queue is better than a mistake
	}
	if kept > 0 {
		q.bound, q.base = t.bound, *c
		q.given = max(0, q.given-gain)
		need := q.need(c, queueLeft)
		switch {
		case need > 0:
			q.down(l, need, q.step())
		case t.informed && q.free(c) && c.inFlight() > 1.5*q.low.inFlight():
			q.hold(l)
		default: // if low waited, too, the queue is longer than it seems
			q.down(l, 0, min(t.step*t.step, queueStepMost))
		}
		return
	}
	need := int(math.Round(q.slack() * c.inFlight() * math.Exp(-gain)))
	if t.retried < 2 && need > t.bound && float64(need) < 0.93*float64(q.bound) {
		q.try(l, trial{bound: need, kind: lower, step: q.step(), retried: t.retried + 1})
		return
	}
	found := q.found
	if sure {
		q.low = q.base // slow, but not for a queue
	} else {
		q.found = false
	}
	q.hold(l)
	if found && !sure {
		q.rest = l.now + retryRests*(l.now-t.since)
	}
}

func (q *queue) judgeHigher(l *Adaptive, c *cohort, worth, gain float64) {
	t := q.trial
	if worth > 0 {
		q.given = max(0, q.given-gain)
		q.bound, q.base = t.bound, *c
		q.up(l, min(t.step*t.step, queueStepMost))
		return
	}
	need := int(math.Round(q.slack() * q.base.inFlight() * math.Exp(gain)))
	if t.retried < 1 && need < t.bound && float64(need) > 1.07*float64(q.bound) && t.step > q.step() {
		q.try(l, trial{bound: need, kind: higher, step: q.step(), retried: t.retried + 1})
		return
	}
	q.hold(l)
}

// hold ends a check and keeps the bound for a while.
func (q *queue) hold(l *Adaptive) {
	took, found := l.now-q.trial.since, q.found
	free := found && q.base.n > 0 && q.free(&q.base)
	rest := max(checkRests*took, checkRestSec)
	q.rest = l.now + rest
	q.stop(l)
	if q.bound != q.held {
		q.calm = 1
	}
	q.held = q.bound
	if q.bound == 0 {
		q.idle = min(max(2*q.idle, checkIdleSec), checkIdleSecMost)
		q.next = l.now + q.idle
		return
	}
	q.idle = 0
	q.next = l.now + rest
	if found {
		q.ups++
		step := queueStepMost // in case that a flat part of the throughput passed for the end of its growth
		if free {
			step = q.step()
		}
		q.up(l, step)
	}
}

// plan begins a check of the bound when it is time for one.
func (q *queue) plan(l *Adaptive) {
	if q.next == 0 {
		q.idle, q.next = checkIdleSec, l.now+checkIdleSec
	}
	if l.now < q.next {
		return
	}
	if q.bound > 0 && q.ups < q.calm {
		q.ups++
		step := q.step()
		if q.ups == checkCalm { // the throughput may grow again beyond a flat part
			step = queueStepMost
		}
		q.up(l, step)
		return
	}
	q.ups, q.calm = 0, min(q.calm+1, checkCalm)
	if q.bound == 0 {
		q.bound = l.cfg.PoolSize
	}
	q.down(l, 0, q.step())
}

// step returns the least step that chance does not hide.
func (q *queue) step() float64 {
	return min(max(queueStep, math.Exp(3*q.error())), queueStepMost)
}

// error returns the standard error of the logarithm of a ratio, with as many calls as are
// ever waited for.
func (q *queue) error() float64 { return math.Sqrt(2 * q.varies / cohortMost) }

// slack returns the factor by which the bound should exceed the need.
func (q *queue) slack() float64 { return queueSlack * math.Exp(q.error()) }
