package aimd

import "math"

// The constants of queueing servers.
const (
	// With fewer slots than this there is little to bound.
	queuePoolLeast = 5
	// A queue is suspected when calls of the same length take this much longer than they
	// did with fewer in flight, by at least queueSec, and surely: by so many standard
	// errors.
	queueSlower = 1.2
	queueSec    = 0.02
	queueSigmas = 3.0
	// What may be left when a queue is gone, and the share of calls' time that waits may
	// surely take at most.
	queueLeft = 1.1
	queueFree = 0.25
	// More attempts in flight are worth while if the throughput grows by this share of
	// what it would on an idle server.
	queueWorth = 0.15
	// But a lower bound never gives up more than this share of the throughput.
	queueLoss = 0.05
	// The bound is larger than what the server is measured to need by this much: a slot
	// of it that stays empty costs more than a short queue.
	queueSlack = 1.08
	// A bound is tried that is this many times larger or smaller, or more where calls
	// vary a lot; the next in the same direction up to twice.
	queueStep     = 1.25
	queueStepMost = 2.0
	// A trial is prolonged up to so many times while its result could be chance.
	trialExtensions = 4
	// The first calls of a trial do not count until its bound is reached, for as long as
	// a call takes and this much.
	risingSec = 1.0
	// A bound is checked after this many times what the last check took, and after
	// checkRestSec at least: upwards, which costs no throughput, up to checkCalm times as
	// often as downwards. A trial that chance may have spoilt is repeated after
	// retryRests times what it took.
	checkRests   = 8.0
	checkRestSec = 15.0
	retryRests   = 2.0
	checkCalm    = 4
	// Where nothing was ever suspected, a check comes after this time, and after twice
	// the time whenever it finds nothing.
	checkIdleSec     = 20 * 60.0
	checkIdleSecMost = 4 * 3600.0
	// After so many replies without a length they have none any more.
	lengthsGone = 64
	// A server that refuses more than this limits what it takes. After forgetSec the
	// bound is no longer of use.
	refusesLoss = 0.05
	forgetSec   = 60.0
)

// queue finds out how many attempts in flight the server can use, where it refuses none
// and lets them wait. More than that add nothing to the throughput: they lengthen the
// queue, in which others wait, too.
//
// It measures how long calls take for the length of their replies. Where that grows with
// the attempts in flight, it tries fewer: if the throughput stays, the rest was a queue.
type queue struct {
	bound int // most attempts in flight; 0 means the slots of the pool are

	cohorts [cohortsOpen]cohort
	last    int     // the id of the latest
	lengths bool    // replies have lengths
	silent  int     // replies without one since the last with one
	varies  float64 // cohort.variance of the latest, or 0 if it is unknown

	low   cohort // calls that waited for no others, as far as known; n is 0 while there are none
	base  cohort // the latest at the bound
	trial trial
	from  int // the first cohort that was sent since the limit changed

	found bool    // the trials began with a suspicion
	seen  float64 // when it last could learn
	rest  float64 // no suspicion counts before this
	next  float64 // when the next check comes; 0 means not planned
	given float64 // share of the throughput given up for the present bound, as a logarithm
	ups   int     // checks upwards since one downwards
	calm  int     // checks upwards between two downwards
	idle  float64 // see checkIdleSec
	held  int     // the bound after the last check
}

// limit returns the most attempts in flight at present; 0 means the slots of the pool are.
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
	rising := inFlight < q.trial.bound && q.last < q.from && l.now < q.trial.since+risingSec+q.base.mean()
	if l.cfg.PoolSize < queuePoolLeast || l.cfg.KeepConcurrency || rising {
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
	q.learnLengths(l, t.Output)
	if q.lengths && t.Output <= 0 { // a failure
		q.lost(t.mark)
		return
	}
	if c := q.cohort(t.mark.cohort); c != nil {
		c.add(max(1, float64(t.Output)), l.now-t.mark.at)
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

// learnLengths finds out whether replies report their lengths. Measurements with lengths
// can't be compared with measurements without.
func (q *queue) learnLengths(l *Adaptive, output int64) {
	before := q.silent
	if q.silent++; output > 0 {
		q.silent = 0
	}
	have := output > 0 || q.lengths && q.silent < lengthsGone
	if have != q.lengths && before > 0 {
		q.restart(l)
	}
	q.lengths = have
}

// lost takes note of an attempt that says nothing.
func (q *queue) lost(m mark) {
	if c := q.cohort(m.cohort); c != nil {
		c.lost++
		c.pending -= m.at
	}
}

// restart forgets the measurements and keeps the bound.
func (q *queue) restart(l *Adaptive) {
	if q.trial.kind == settle && q.trial.bound > 0 {
		q.bound = q.trial.bound
	}
	q.stop(l)
	q.low, q.base = cohort{}, cohort{}
	q.cohorts = [cohortsOpen]cohort{}
}

// stop ends the trial.
func (q *queue) stop(l *Adaptive) {
	q.trial, q.found = trial{}, false
	if q.bound >= l.cfg.PoolSize {
		q.bound, q.given = 0, 0
	}
	q.begin()
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
	n := float64(inFlight)
	size := min(max(q.varies/(err*err), cohortLeast, n), cohortMost)
	q.last++
	c := &q.cohorts[q.last%cohortsOpen]
	*c = cohort{id: q.last, size: int(size)}
	return c
}

// learn takes note of a cohort that is over.
func (q *queue) learn(l *Adaptive, c cohort) {
	q.varies = c.variance()
	switch {
	case !q.canLearn(l):
		q.stop(l)
		if l.now > q.seen+forgetSec {
			q.bound = 0
		}
	case c.id < q.from:
	case q.trial.bound > 0:
		q.judge(l, c)
	case q.low.n == 0:
		q.low = c
	default:
		q.watch(l, c)
	}
}

// canLearn reports whether calls could be waiting in a queue at the server: the rate does
// not limit the attempts in flight, and the server does not refuse. One that refuses
// excess calls has no queue.
func (q *queue) canLearn(l *Adaptive) bool {
	if l.phase != Start && l.delay(l.now) > l.cfg.MinDelay.Seconds() || l.slots.limit > 0 || l.loss.share > refusesLoss {
		return false
	}
	q.seen = l.now
	return true
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
	slower, err := c.slower(&q.low)
	need := q.need(&c, queueSlower)
	switch {
	case slower < -queueSigmas*err:
		q.low = c
	case l.now < q.rest && (need > 0 || full):
	case need > 0 && (!full || 2*need < 0.75*float64(limit)): // much too many: measure again with fewer
		q.found = true
		to := int(math.Ceil(max(2*need, q.low.inFlight())))
		q.try(l, trial{bound: min(to, limit), kind: settle})
	case full && (need > 0 || q.suspicious(&c, slower, err)):
		q.found, q.bound, q.base = true, limit, c
		q.down(l, need, q.step())
	case full:
		q.plan(l)
	}
}

// need returns how many attempts in flight would have been enough for c, where calls
// waited so long for their turn that they took this many times longer; 0 means that they
// did not, surely. By Little's law the rest is the queue.
func (q *queue) need(c *cohort, times float64) float64 {
	mean := c.mean()
	wait, err := c.waits(&q.low)
	if wait < queueSec || wait < queueSigmas*err || wait < mean*(1-1/times) {
		return 0
	}
	return c.inFlight() * (1 - min(wait/mean, 1))
}

// free reports whether calls waited for their turn in c for a small part of their time at
// most, surely.
func (q *queue) free(c *cohort) bool {
	wait, err := c.waits(&q.low)
	return wait+2*err < queueFree*c.mean()
}

// suspicious reports whether calls took longer in c than in low. It may be that the
// server works at more of them, and all are slower.
func (q *queue) suspicious(c *cohort, slower, err float64) bool {
	wait := c.mean() * (1 - math.Exp(-slower))
	return slower > math.Log(queueSlower) && slower > queueSigmas*err && wait > queueSec
}

// settled takes note of a cohort at the bound.
func (q *queue) settled(c cohort) {
	if q.base.n == 0 || math.Abs(c.more(&q.base)) > 0.05 {
		q.base = c
		return
	}
	q.base.fade(&c)
}
