package aimd

import "math"

// The constants of queueing servers.
const (
	// With fewer slots than this there is little to bound.
	queuePoolLeast = 5
	// A queue is suspected when calls of the same length take this much longer than they did with fewer in flight, by
	// at least queueSec, and surely: by so many standard errors.
	queueSlower = 1.2
	queueSec    = 0.02
	queueSigmas = 3.0
	// What is left when a queue is gone.
	queueLeft = 1.1
	// More attempts in flight are worth while if the throughput grows by this share of what it would on an idle server.
	queueWorth = 0.15
	// But a lower bound never gives up more than this share of the throughput.
	queueLoss = 0.05
	// The bound is larger than what the server is measured to need by this much: a slot of it that stays empty costs
	// more than a short queue.
	queueSlack = 1.08
	// A bound is tried that is this many times larger or smaller, or more where calls vary a lot; the next in the same
	// direction up to twice.
	queueStep     = 1.25
	queueStepMost = 2.0
	// A trial is prolonged up to so many times while its result could be chance.
	trialExtensions = 4
	// A bound is checked, upwards and downwards in turn, each time after this many times what a check takes, and
	// checkRestSec at least; up to checkCalm times that after checks that changed nothing.
	checkRests   = 8.0
	checkRestSec = 15.0
	checkCalm    = 4.0
	// Where nothing was ever suspected, a check comes after this time, and after twice the time whenever it finds
	// nothing.
	checkIdleSec     = 600.0
	checkIdleSecMost = 4 * 3600.0
	// The variance of what a single call measures where calls wait for each other: a first guess, and the least.
	noiseFirst = 0.1
	noiseLeast = 0.01
)

// queue finds out how many attempts in flight the server can use, where it refuses none and lets them wait. More than
// that add nothing to the throughput: they lengthen the queue, in which others wait, too.
//
// It measures how long calls take for the length of their replies. Where that grows with the attempts in flight, it
// tries fewer: if the throughput stays, the rest was a queue.
type queue struct {
	bound int // most attempts in flight; 0: the slots of the pool are

	cohorts [cohortsOpen]cohort
	last    int     // the id of the latest
	lengths bool    // replies have lengths
	noise   float64 // variance of what a single call measures where calls wait for each other; 0: not known

	low   cohort // calls that waited for no others, as far as is known; n = 0: not known
	base  cohort // the latest at the bound
	trial trial
	from  int // the first cohort that was sent since the limit changed

	found  bool    // the trials began with a suspicion
	rest   float64 // no suspicion counts before this
	next   float64 // when the next check comes; 0: not planned
	given  float64 // share of the throughput given up for the present bound, as a logarithm
	upward bool    // the last check went up
	ups    int     // checks that went up
	calm   float64 // grows with the checks that changed nothing
	held   int     // the bound after the last check
}

// trial is a bound that is being tried.
type trial struct {
	bound    int // 0: none
	kind     trialKind
	since    float64 // when it began
	informed bool    // by how long calls take: there is a queue somewhere
	step     float64 // the next may be larger or smaller by this
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

// limit returns the most attempts in flight at present; 0: the slots of the pool are.
func (q *queue) limit() int {
	if q.trial.bound > 0 {
		return q.trial.bound
	}
	return q.bound
}

// full reports whether no more may be in flight.
func (q *queue) full(inFlight int) bool { return q.limit() > 0 && inFlight >= q.limit() }

// opens returns when one more may be in flight, apart from when one ends.
func (q *queue) opens(now float64, inFlight int) float64 {
	if q.full(inFlight) {
		return now + farSec
	}
	return 0
}

// sent takes note of an attempt and returns its cohort.
func (q *queue) sent(l *Adaptive, inFlight int) int {
	if l.cfg.PoolSize < queuePoolLeast {
		return 0
	}
	c := q.cohort(q.last)
	if c == nil || c.full() {
		c = q.open(inFlight)
	}
	c.sent++
	c.level += float64(inFlight)
	c.lastSent = l.now
	c.pending += l.now
	return c.id
}

// ended takes note of the reply to an attempt.
func (q *queue) ended(l *Adaptive, t Ticket) {
	q.lengths = q.lengths || t.Output > 0
	output := float64(t.Output)
	switch {
	case !q.lengths:
		output = 1
	case t.Output == 0: // a failure
		q.lost(t.mark)
		return
	}
	if c := q.cohort(t.mark.cohort); c != nil {
		c.add(output, l.now-t.mark.at)
		c.pending -= t.mark.at
	}
	for id := max(1, q.last-cohortsOpen+1); id <= q.last; id++ {
		if c := q.cohort(id); c != nil && c.over(l.now) {
			done := *c
			c.id = 0
			if !q.lengths {
				done.waited(l.now)
			}
			q.learn(l, done)
		}
	}
}

// lost takes note of an attempt that says nothing.
func (q *queue) lost(m mark) {
	if c := q.cohort(m.cohort); c != nil {
		c.lost++
		c.pending -= m.at
	}
}

// restart forgets what was measured, but for the bound.
func (q *queue) restart() {
	if q.trial.kind == settle && q.trial.bound > 0 {
		q.bound = q.trial.bound
	}
	q.trial, q.found = trial{}, false
	q.low, q.base = cohort{}, cohort{}
	q.cohorts = [cohortsOpen]cohort{}
}

// cohort returns the cohort of that id if it is under way.
func (q *queue) cohort(id int) *cohort {
	c := &q.cohorts[id%cohortsOpen]
	if id == 0 || c.id != id {
		return nil
	}
	return c
}

// open begins a cohort that is large enough to tell a queue from chance.
func (q *queue) open(inFlight int) *cohort {
	err := cohortError
	if t := q.trial; t.bound > 0 && t.kind != settle {
		err = math.Abs(math.Log(float64(t.bound)/float64(q.bound))) / 4
	}
	size := min(max(q.noise/(err*err), cohortLeast, float64(inFlight)), cohortMost)
	q.last++
	c := &q.cohorts[q.last%cohortsOpen]
	*c = cohort{id: q.last, size: int(size)}
	return c
}

// learn takes note of a cohort that is over.
func (q *queue) learn(l *Adaptive, c cohort) {
	if q.noise == 0 {
		q.noise = max(c.variance(), noiseLeast)
		if q.lengths {
			q.noise = min(q.noise, noiseFirst)
		}
	}
	unpaced := l.phase == Start || l.delay(l.now) == 0
	switch {
	case !unpaced || l.slots.limit > 0: // the rate is the limit, or the server refuses what is too much
		q.trial = trial{}
	case c.id < q.from:
	case q.trial.bound > 0:
		q.judge(l, c)
	case q.low.n == 0:
		q.low = c
	default:
		q.watch(l, c)
	}
}

// watch compares calls with those that waited for no others.
func (q *queue) watch(l *Adaptive, c cohort) {
	limit := q.limit()
	if limit == 0 {
		limit = l.cfg.PoolSize
	}
	full := c.inFlight() >= 0.9*float64(limit)
	if full {
		q.settled(c)
	}
	slower, err := c.slower(&q.low, q.noise)
	need := q.need(&c, queueSlower)
	switch {
	case slower < -queueSigmas*err:
		q.low = c
	case l.now < q.rest && (need > 0 || full):
	case need > 0 && (!full || 2*need < 0.75*float64(limit)): // much too many: measure again with fewer
		q.found = true
		q.try(l, trial{bound: min(int(math.Ceil(2*need)), limit), kind: settle})
	case full && (need > 0 || q.suspicious(&c, slower, err)):
		q.found, q.bound, q.base = true, limit, c
		q.down(l, need, q.step())
	case full:
		q.plan(l)
	}
}

// need returns how many attempts in flight would have been enough for c, where calls waited so long for their turn that
// they took this many times longer; 0: they did not, surely. By Little's law the rest is the queue.
func (q *queue) need(c *cohort, times float64) float64 {
	mean := c.sec / c.n
	wait, err := c.waits(&q.low)
	if wait < queueSec || wait < queueSigmas*err || wait < mean*(1-1/times) {
		return 0
	}
	return c.inFlight() * (1 - min(wait/mean, 1))
}

// suspicious reports whether calls took longer in c than in low. It may be that the server works at more of them, and
// all are slower.
func (q *queue) suspicious(c *cohort, slower, err float64) bool {
	wait := c.sec / c.n * (1 - math.Exp(-slower))
	return slower > math.Log(queueSlower) && slower > queueSigmas*err && wait > queueSec
}

// settled takes note of a cohort at the bound.
func (q *queue) settled(c cohort) {
	if q.base.n == 0 || math.Abs(c.more(&q.base)) > 0.05 {
		q.base = c
		return
	}
	d := math.Log(c.secPer() / q.base.secPer()) // nothing but chance
	q.noise += (max(d*d/2*min(c.n, q.base.n), noiseLeast) - q.noise) / 8
	q.base.fade(&c)
}

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

// down tries a lower bound, down to half: what the server is thought to need, or a step lower where that is 0.
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
	q.try(l, trial{bound: min(next, l.cfg.PoolSize), kind: higher, step: step})
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
		q.down(l, q.need(&c, queueLeft), q.step())
		return
	}
	if t.extended > 0 {
		c.merge(&t.sum)
	}
	// The throughput of the higher bound by that of the lower, as logarithms.
	gain, err := c.gain(&q.base, q.noise)
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
	q.judgeHigher(l, &c, gain-queueWorth*more+err/2, gain)
}

func (q *queue) judgeLower(l *Adaptive, c *cohort, kept, gain, err float64) {
	t := q.trial
	kept = min(kept, queueLoss-q.given+gain)
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
		case t.informed && c.inFlight() > 1.5*q.low.inFlight():
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
	if kept+err < 0 {
		q.low = q.base // slow, but not for a queue
	} else if q.found {
		q.low.fade(&q.base)
	}
	q.hold(l)
}

func (q *queue) judgeHigher(l *Adaptive, c *cohort, worth, gain float64) {
	t := q.trial
	if worth > 0 {
		q.given = max(0, q.given-gain)
		q.bound, q.base = t.bound, *c
		if q.bound == l.cfg.PoolSize {
			q.hold(l)
			return
		}
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
	rest := max(checkRests*took, checkRestSec)
	q.rest = l.now + rest
	q.trial, q.found = trial{}, false
	q.begin()
	if q.bound >= l.cfg.PoolSize {
		q.bound, q.given = 0, 0
	}
	if q.bound != q.held {
		q.calm = 1
	}
	q.held = q.bound
	if q.bound == 0 {
		q.next = l.now + min(q.calm*checkIdleSec, checkIdleSecMost)
		q.calm *= 2
		return
	}
	q.next = l.now + q.calm*rest
	q.calm = min(1.5*q.calm, checkCalm)
	if found {
		q.upward = true
		q.up(l, q.step())
	}
}

// plan begins a check of the bound when it is time for one.
func (q *queue) plan(l *Adaptive) {
	if q.next == 0 {
		q.next, q.calm = l.now+checkIdleSec, 2
	}
	if l.now < q.next {
		return
	}
	q.upward = !q.upward && q.bound > 0
	if q.upward {
		q.ups++
		step := q.step()
		if q.ups%3 == 0 { // beyond a flat part
			step = queueStepMost
		}
		q.up(l, step)
		return
	}
	if q.bound == 0 {
		q.bound = l.cfg.PoolSize
	}
	q.down(l, 0, q.step())
}

// step returns the least step that chance does not hide.
func (q *queue) step() float64 {
	return min(max(queueStep, math.Exp(3*q.error())), queueStepMost)
}

// error returns the standard error of the logarithm of a ratio, with as many calls as are ever waited for.
func (q *queue) error() float64 { return math.Sqrt(2 * q.noise / cohortMost) }

// slack returns how much larger than what is needed the bound should be.
func (q *queue) slack() float64 { return queueSlack * math.Exp(q.error()) }
