package pool

import (
	"math"
	"slices"
	"time"
)

// A failure that the server may have caused is in doubt until another job's call settles it. The success of one that
// went later confirms that the failure was the job's own, so it counts against the job; when different jobs fail in a
// row it is an outage, and none of the failures counts. A call that went before, and succeeds long after an outage has
// begun, confirms nothing. Without any success between them a job's failures count as one, whatever their number. A job
// that has used up its attempts waits for the verdict and makes no more calls. Failures that reached no server never
// count.
//
// Where nothing listens at the first server, and it has had no success, one failure is an outage. At a fallback failures
// count: a job that goes there has used up its attempts elsewhere.
//
// Errors that wrong settings may have caused are in doubt in the same way: see settings.go.

const (
	// How many different jobs must fail in a row before it is an outage: as many as fail by chance less than once in a
	// million, between a server that hardly ever fails and one that fails half of all calls.
	outageJobsMin, outageJobsMax = 5, 64
	outageChance                 = 1e-6
	// Failures are in a row if no call between them, in the order in which they went, got through: succeeded, or has
	// lasted twice as long as failures take. Where failures are quicker than this, the verdict waits until calls are
	// that old.
	quickFailure = 100 * time.Millisecond
	leastGrace   = 20 * time.Millisecond
	// Where a larger share than this fails, the server is unhealthy although it has successes, and a job gets this many
	// times its attempts: with half of all calls failing, three attempts would lose one job in eight, and eighteen one
	// in 260,000.
	unhealthyShare, unhealthyAttempts = 1.0 / 3, 6
	// How long a job that has used up its attempts waits, at least, for the verdict on another one.
	doubtWait = time.Second
	// How long a job with a failure in doubt waits, at most and beyond its backoff, for another one's success, looking
	// for it every witnessStep: without one its next failure would not count, and the call would be wasted.
	witnessWait, witnessStep = 2 * time.Second, 50 * time.Millisecond
	// A call that lasts this many times as long as others has outlived them.
	longCall = 3
	// The time of a call is a mean over about this many.
	callTimeCalls = 16
)

// health is what the verdicts of a server's attempts show about the server itself.
type health struct {
	proven   bool          // it has had a success
	share    share         // of calls that fail in doubt
	before   float64       // the share before the failures since the last success
	callTime time.Duration // of successes, a mean; 0: there was none

	// Doubt: doubted holds exactly the tasks with doubt.failed and doubt.at this server, and is empty during an outage.
	successes uint64
	through   uint64        // task.seq of the latest call that succeeded
	failures  int           // in doubt, since the last success
	absent    bool          // the latest of them, and nothing has been proven: nothing listens there
	doubted   []*task       // jobs that have failures in doubt
	since     time.Time     // when the first of doubted failed
	grace     time.Duration // the age at which a call in flight counts as having got through
	err       error         // the latest failure
	judgeAt   time.Time     // when calls in flight will be that old, and no attempt goes before; zero: not awaited

	// Settings: alikeJobs counts the groups of tasks with doubt.alike. Alike and mixed matter until proven, run and runJobs after
	// it.
	alike     string // the error that all jobs met
	alikeErr  error  // the latest of them
	alikeJobs int
	mixed     bool   // there were different errors, so the settings are not the cause
	run       string // the error of the latest runJobs jobs that failed
	runJobs   int
	runGroup  any // of the latest of these; nil: its own
}

// suspicion is what is in doubt about a job. The zero value: nothing.
type suspicion struct {
	failed   bool   // it is among health.doubted; while false all else here is zero
	at       int    // of this server
	first    bool   // there is no evidence yet that the failure is its own
	firstSeq uint64 // task.seq of the attempt that failed first
	seq      uint64 // and of the one that failed last
	begin    uint64 // health.successes when the first of these attempts went
	seen     uint64 // and when the last one failed

	strikes  int  // failures that count if they are confirmed
	vain     int  // failures since the last of these, which don't count
	lost     int  // failures that were sent
	final    bool // one of them is not retryable
	settings bool // the last one is in doubt only because the settings may be wrong
	alike    bool // it is counted in alikeJobs

	parked bool      // it has used up its attempts and waits for the verdict; counted in scheduler.parked
	until  time.Time // its next attempt goes then even if no other job has succeeded
}

// doubt acts on a verdict on t that is in doubt.
func (s *scheduler) doubt(t *task) {
	v := &s.servers[t.att.Server]
	if v.out() || s.pause.Kind == WrongSettings {
		v.breaker.voided = append(v.breaker.voided, t)
		s.putBack(t)
		return
	}
	if t.server != t.att.Server { // sent there for lack of capacity; now it belongs there
		s.moveTo(t, t.att.Server)
	}
	h := &v.health
	settings := s.maybeSettings(t)
	if settings && h.alike != "" && h.alike != t.verdict.Alike {
		h.mixed = true
		s.confirm(h, func(t *task) bool { return t.doubt.settings })
		s.failed(t) // no longer one of the settings
		return
	}
	s.suspect(t)
	if settings {
		h.alike, h.alikeErr = t.verdict.Alike, t.verdict.Err
		if !t.doubt.alike {
			if !h.groupAlike(t.group) {
				h.alikeJobs++
			}
			t.doubt.alike = true
		}
	} else if h.absent && t.att.Server == 0 || s.isOut(v, t) {
		s.putBack(t)
		s.openBreaker(t.att.Server, t.verdict.Err)
		return
	}
	s.retryInDoubt(t)
}

// retryInDoubt makes t, whose last failure is in doubt, wait for its next attempt, or for the verdict if it has none
// left.
func (s *scheduler) retryInDoubt(t *task) {
	switch limit := s.attempts(&s.servers[t.server].health); {
	case t.verdict.Origin == OfNetwork && t.server == 0:
		s.again(t, s.cfg.Retry.Wait(1, s.cfg.Rand())) // the breaker takes care of longer waits
	case t.doubt.final || t.failures+t.doubt.strikes >= limit:
		s.usedUp(t)
	default:
		// A call that cannot count may still cost money: the number of these is unbounded, but the waits grow.
		n := min(t.failures+t.doubt.strikes, s.cfg.Retry.MaxAttempts) + t.doubt.vain
		wait := max(s.cfg.Retry.Wait(n, s.cfg.Rand()), t.verdict.Hint.RetryAfter)
		t.doubt.until = s.tick.Add(wait + witnessWait)
		s.again(t, wait)
	}
}

// awaitsWitness reports whether t, which is in no line, must keep waiting for the success of another job.
func (s *scheduler) awaitsWitness(t *task) bool {
	return t.doubt.strikes > 0 && s.tick.Before(t.doubt.until) && s.cfg.Size > 1 &&
		s.servers[t.server].health.successes == t.doubt.seen && s.witnesses() > 0
}

// suspect records a failure of t that is in doubt.
func (s *scheduler) suspect(t *task) {
	h := &s.servers[t.server].health
	if len(h.doubted) == 0 {
		h.since = s.tick
	}
	if h.failures == 0 {
		h.before = h.share.most()
	}
	h.failures++
	h.err, h.grace = t.verdict.Err, max(2*t.ended.Sub(t.att.Dispatched), leastGrace)
	h.absent = t.verdict.Absent && !h.proven
	if !t.doubt.failed {
		t.doubt.failed, t.doubt.at, t.doubt.begin, t.doubt.firstSeq = true, t.server, t.seen, t.seq
		h.doubted = append(h.doubted, t)
		t.doubt.first = t.failures == 0 && !t.suspect && !h.outlived(t)
		s.mark(t, true)
	}
	t.doubt.settings = !t.verdict.inDoubt()
	alone := s.cfg.Size == 1 || s.alone(h) || t.doubt.settings && s.witnesses() == 0 // else others could have succeeded meanwhile
	others := h.successes > t.doubt.seen                                             // and did
	t.doubt.seq, t.doubt.seen = t.seq, h.successes
	if !t.verdict.Unsent {
		t.doubt.lost++
	}
	if others || t.doubt.strikes == 0 {
		h.share.failed() // a job that fails again and again while no other succeeds counts once
	}
	switch {
	case t.verdict.Origin == OfNetwork && t.server == 0: // at a fallback they count: elsewhere it has used up its attempts
	case t.verdict.Class == Permanent:
		t.doubt.strikes, t.doubt.final = 1, true
	case t.doubt.strikes == 0 || others || alone:
		t.doubt.strikes++
		t.doubt.vain = 0
	default:
		t.doubt.vain++
	}
}

// outlived reports whether calls that went after the one of t, which has failed, were done long before it: it lasted
// longer than they all took, so their successes are evidence about it.
func (h *health) outlived(t *task) bool {
	return t.seq < h.through && h.callTime > 0 && t.ended.Sub(t.att.Dispatched) > longCall*h.callTime
}

// usedUp parks t until its failures are confirmed, unless it can continue at the next server.
func (s *scheduler) usedUp(t *task) {
	if !t.doubt.final && s.nextServer(t) >= 0 {
		s.moveOn(t)
		return
	}
	t.doubt.parked = true
	s.parked++
	s.again(t, doubtWait)
}

// unpark reconsiders t, which is parked and in no line. Where no job is left that could settle the doubt, the failure
// is the job's own if it is the only one or if others have succeeded meanwhile, and else an outage.
func (s *scheduler) unpark(t *task) {
	v := &s.servers[t.server]
	switch {
	case s.witnesses() > 0:
		t.ready = s.tick.Add(doubtWait)
		s.delay(t)
	case s.alone(&v.health) || v.health.successes > t.doubt.begin || !t.verdict.inDoubt():
		s.vacate(t)
		s.lose(t)
	default:
		s.servers[t.server].ready.push(t)
		s.openBreaker(t.server, t.verdict.Err)
	}
}

// isOut reports whether the failures since the last success, of which that of t is the latest, make an outage.
func (s *scheduler) isOut(v *server, t *task) bool {
	h := &v.health
	if s.inARow(v) {
		if h.grace > 2*quickFailure || len(v.inFlight) == 0 {
			return true
		}
		// Those in flight may have gone at the same moment as those that failed: which of them get through?
		h.judgeAt = s.tick.Add(h.grace)
		return false
	}
	// With fewer jobs, if there is no other to wait for.
	few := s.witnesses() == 0 || s.cfg.Size == 1
	return few && h.failures >= h.outageJobs(0) && (h.innocent() > 1 || t.verdict.Origin == OfNetwork)
}

// judge decides about the servers whose verdict waited for calls in flight to end or grow old.
func (s *scheduler) judge() {
	for i := range s.servers {
		v := &s.servers[i]
		h := &v.health
		if h.settingsSuspected() && len(v.inFlight) == 0 && !s.paused() {
			s.blameSettings(i, h.alikeErr)
		}
		if h.judgeAt.IsZero() || h.judgeAt.After(s.tick) {
			continue
		}
		h.judgeAt = time.Time{}
		if !v.out() && s.inARow(v) {
			s.openBreaker(i, h.err)
		}
	}
}

// inARow reports whether enough different jobs have failed at a server to make an outage, counted since the last call
// that got through was sent, and apart from jobs with confirmed failures.
func (s *scheduler) inARow(v *server) bool {
	h := &v.health
	through := 0 // calls that got through and went since the first failure
	var last uint64
	for _, t := range v.inFlight {
		if s.tick.Sub(t.att.Dispatched) < h.grace {
			continue
		}
		last = max(last, t.seq)
		if t.att.Dispatched.After(h.since) {
			through++
		}
	}
	row := h.groups(func(t *task) bool { return t.doubt.firstSeq > last && t.doubt.first })
	return row >= h.outageJobs(through)
}

// outageJobs returns how many different jobs in a row must fail to make an outage, where through is how many calls got
// through since the first failure.
func (h *health) outageJobs(through int) int {
	share := h.before
	if through > 0 { // then half of all at most, as far as is known
		share = max(share, min(0.5, float64(h.failures)/float64(h.failures+through)))
	}
	n := math.Ceil(math.Log(outageChance) / math.Log(min(max(share, 1e-9), 0.999)))
	return int(min(max(n, outageJobsMin), outageJobsMax))
}

// attempts returns how many failures of the server use up a job.
func (s *scheduler) attempts(h *health) int {
	if h.proven && h.share.unhealthy() {
		return unhealthyAttempts * s.cfg.Retry.MaxAttempts
	}
	return s.cfg.Retry.MaxAttempts
}

// alone reports whether all jobs that are left have failed, and all but one while others succeeded: no job can settle
// the doubt about their failures.
func (s *scheduler) alone(h *health) bool { return s.witnesses() == 0 && h.innocent() <= 1 }

// innocent returns how many jobs have failed without a success of others since: groups of them, unless all are of one.
func (h *health) innocent() int {
	is := func(t *task) bool { return t.doubt.first && t.doubt.begin == h.successes }
	if n := h.groups(is); n != 1 {
		return n
	}
	n := 0
	for _, t := range h.doubted {
		if is(t) {
			n++
		}
	}
	return n
}

// groups returns how many groups the jobs are of that match and have failures in doubt, see [Grouped].
func (h *health) groups(match func(*task) bool) (n int) {
	var seen map[any]bool
	for _, t := range h.doubted {
		if !match(t) || t.group != nil && seen[t.group] {
			continue
		}
		if n++; t.group != nil {
			if seen == nil {
				seen = make(map[any]bool)
			}
			seen[t.group] = true
		}
	}
	return n
}

// witnesses returns how many jobs there are that have not failed, apart from the one that is in no line at present.
func (s *scheduler) witnesses() int {
	jobs := s.waiting() - s.fresh.singles.size + s.counts.InFlight
	return jobs + 1 - s.marked
}

// succeeded records a success of t at a server, which confirms failures of others that were in doubt.
func (s *scheduler) succeeded(t *task) {
	h := &s.servers[t.att.Server].health
	h.proven, h.run, h.runJobs = true, "", 0
	took := t.ended.Sub(t.att.Dispatched)
	if h.callTime == 0 {
		h.callTime = took
	}
	h.callTime += (took - h.callTime) / callTimeCalls
	h.successes++
	h.through = max(h.through, t.seq)
	h.failures = 0
	s.forget(t)
	s.confirm(h, func(d *task) bool { return d.doubt.seq < t.seq })
}

// confirm counts the failures in doubt against the jobs that match.
func (s *scheduler) confirm(h *health, match func(*task) bool) {
	for _, t := range extract(&h.doubted, match) {
		d := s.clear(t, t.doubt.strikes)
		if !d.parked {
			continue
		}
		s.delayed.take(t)
		if d.final || t.failures >= s.attempts(h) {
			s.vacate(t)
			s.lose(t)
		} else { // the server has turned out to be unhealthy since
			s.servers[t.server].ready.push(t)
		}
	}
}

// acquit drops the failures in doubt, and returns how many of them were sent. Their jobs may go again at once, whatever
// wait they had.
func (s *scheduler) acquit(v *server) (lost int) {
	doubted := v.health.doubted
	v.health.doubted, v.health.failures, v.health.judgeAt = nil, 0, time.Time{}
	v.health.alike, v.health.alikeJobs = "", 0
	v.breaker.voided = append(v.breaker.voided, doubted...)
	for _, t := range doubted {
		lost += s.clear(t, 0).lost
		if s.delayed.take(t) {
			s.servers[t.server].ready.push(t)
		}
	}
	return lost
}

// forget drops what is in doubt about t, which ends or moves to another server.
func (s *scheduler) forget(t *task) {
	if t.doubt.failed {
		h := &s.servers[t.doubt.at].health
		h.doubted = slices.DeleteFunc(h.doubted, func(d *task) bool { return d == t })
		s.clear(t, 0)
	}
	s.mark(t, false)
}

// clear drops the suspicion of t, counts this many failures against it, and returns what the suspicion was.
func (s *scheduler) clear(t *task, failures int) suspicion {
	d := t.doubt
	t.doubt = suspicion{}
	if d.parked {
		s.parked--
	}
	t.failures += failures
	s.mark(t, t.failures > 0)
	return d
}

// lose fails t, or moves it to the next server, for failures that are its own.
func (s *scheduler) lose(t *task) {
	if s.allAlike(t) {
		return
	}
	if t.verdict.Class == Permanent {
		s.finish(t, t.verdict.Err, Permanent, t.ended)
		return
	}
	s.moveOn(t)
}

// mark records whether a job counts as one that has failed.
func (s *scheduler) mark(t *task, failed bool) {
	if t.marked && !failed {
		s.marked--
	} else if failed && !t.marked {
		s.marked++
	}
	t.marked = failed
}
