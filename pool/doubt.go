package pool

import (
	"math"
	"slices"
	"time"
)

// A failure that may be the server's is in doubt until another job's call tells whose it is: the success of one that went
// later confirms that it was the job's own, so it counts against the job; when different jobs fail in a row it is an
// outage, and none of them counts. What went before, and succeeds long after an outage has begun, confirms nothing. Without
// any success between them a job's failures count as one, whatever their number. A job that has used up its attempts waits
// for the verdict, and calls no more. Failures that reached no server never count.
//
// Errors that may be those of wrong settings are in doubt in the same way: see settings.go.

const (
	// So many different jobs fail in a row, by less than one chance in a million, before it is an outage: at a server
	// that hardly ever fails and at one that fails half of all calls.
	outageJobsMin, outageJobsMax = 5, 64
	outageChance                 = 1e-6
	// Failures are in a row if no call between them, in the order in which they went, got through: succeeded, or lasts
	// twice as long already as failures take. Where they take less than this, that is waited for.
	quickFailure = 100 * time.Millisecond
	leastGrace   = 20 * time.Millisecond
	// Where more than so large a share fails, the server is ill though it has successes, and a job gets so many times
	// its attempts: with half of all calls failing three attempts would lose one job in eight, and eighteen one in
	// 260,000.
	illShare, illAttempts = 1.0 / 3, 6
	// A job that has used up its attempts waits so long at least for another one's verdict.
	doubtWait = time.Second
	// A job that has failed so waits so long at most, beyond its backoff, for another one's success: its next failure would
	// not count, and each of its calls is to.
	tellWait, tellStep = 2 * time.Second, 50 * time.Millisecond
	// A call that lasts so many times as long as others has outlived them.
	longCall = 3
	// The time of a call is a mean over about so many.
	callTimeCalls = 16
)

// health is what the verdicts of a server say about the server itself.
type health struct {
	proven   bool          // it has had a success
	share    share         // of calls that fail in doubt
	before   float64       // the share of before the failures since the last success
	callTime time.Duration // of successes, a mean; 0: there was none

	successes uint64
	through   uint64        // the last call, in the order in which they went, that succeeded
	failures  int           // in doubt, since the last success
	doubted   []*task       // jobs that have failures in doubt
	since     time.Time     // the first failure since there were none
	grace     time.Duration // the age at which a call in flight has got through
	err       error         // the latest failure
	judgeAt   time.Time     // when calls in flight will be that old, and nothing goes before; zero: not awaited

	alike     string // before the first success: the error that all met
	alikeErr  error  // the latest of them
	alikeJobs int
	mixed     bool   // before the first success: there were different errors, so it is not the settings
	run       string // after it: the error of the last jobs that failed
	runJobs   int
}

// suspicion is what is in doubt about a job. The zero value: nothing.
type suspicion struct {
	failed   bool      // it is among the doubted
	first    bool      // nothing says yet that it is its own failure
	at       int       // of this server
	seq      uint64    // of the attempt that failed last
	firstSeq uint64    // and of the first
	strikes  int       // failures that count if they are confirmed
	vain     int       // failures since the last of these, which don't count
	lost     int       // failures that were sent
	seen     uint64    // successes of the server at the last one
	begin    uint64    // and when the first of these attempts went
	final    bool      // one of them is not to be tried again
	settings bool      // but for the settings the last one would be the job's own
	alike    bool      // it is counted among alikeJobs
	parked   bool      // it has used up its attempts and waits for the verdict
	until    time.Time // then its next attempt goes even if no other job has succeeded
}

// doubtful reports whether the verdict on t is in doubt.
func (s *scheduler) doubtful(t *task) bool {
	return t.verdict.inDoubt() || s.maybeSettings(t)
}

// doubt acts on a verdict on t that is in doubt.
func (s *scheduler) doubt(t *task) {
	v := &s.servers[t.att.Server]
	if v.out() || s.pause.Kind == WrongSettings {
		v.breaker.voided = append(v.breaker.voided, t)
		s.putBack(t)
		return
	}
	if t.server != t.att.Server { // sent there for want of capacity; now it belongs there
		s.goTo(t, t.att.Server)
	}
	h := &v.health
	settings := s.maybeSettings(t)
	if settings && h.alike != "" && h.alike != t.verdict.Alike {
		h.mixed = true
		s.confirm(h, func(t *task) bool { return t.doubt.settings })
		s.failed(t) // which is not the settings' any more
		return
	}
	s.suspect(t)
	if settings {
		h.alike, h.alikeErr = t.verdict.Alike, t.verdict.Err
		if !t.doubt.alike {
			t.doubt.alike = true
			h.alikeJobs++
		}
	}
	if !settings && t.verdict.inDoubt() && s.isOut(v, t) {
		s.putBack(t)
		s.openBreaker(t.att.Server, t.verdict.Err)
		return
	}
	switch limit := s.attempts(h); {
	case t.verdict.Origin == OfNetwork && t.server == 0:
		s.again(t, s.cfg.Retry.Wait(1, s.cfg.Rand())) // the breaker sees to longer waits
	case t.doubt.final || t.failures+t.doubt.strikes >= limit:
		s.usedUp(t)
	default:
		// A call that can't count may cost money all the same, so their number is unbounded but the waits grow.
		n := min(t.failures+t.doubt.strikes, s.cfg.Retry.MaxAttempts) + t.doubt.vain
		wait := max(s.cfg.Retry.Wait(n, s.cfg.Rand()), t.verdict.Hint.RetryAfter)
		t.doubt.until = s.tick.Add(wait + tellWait)
		s.again(t, wait)
	}
}

// untold reports whether t, which is in no line, is to wait on for the success of another job.
func (s *scheduler) untold(t *task) bool {
	return t.doubt.strikes > 0 && s.tick.Before(t.doubt.until) && s.cfg.Size > 1 &&
		s.servers[t.server].health.successes == t.doubt.seen && s.witnesses() > 0
}

// suspect notes a failure of t that is in doubt.
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
	if !t.doubt.failed {
		t.doubt.failed, t.doubt.at, t.doubt.begin, t.doubt.firstSeq = true, t.server, t.seen, t.seq
		h.doubted = append(h.doubted, t)
		t.doubt.first = t.failures == 0 && !t.suspect && !h.outlived(t)
		s.mark(t)
	}
	alone := s.cfg.Size == 1 || s.alone(h) // else others could have told meanwhile
	told := h.successes > t.doubt.seen
	t.doubt.seq, t.doubt.seen = t.seq, h.successes
	t.doubt.settings = !t.verdict.inDoubt()
	if !t.verdict.Unsent {
		t.doubt.lost++
	}
	if told || t.doubt.strikes == 0 {
		h.share.failed() // a job that fails again and again while no other succeeds counts once
	}
	switch {
	case t.verdict.Origin == OfNetwork && t.server == 0: // at a fallback they count: elsewhere it has used up its attempts
	case t.verdict.Class == Permanent:
		t.doubt.strikes, t.doubt.final = 1, true
	case t.doubt.strikes == 0 || told || alone:
		t.doubt.strikes++
		t.doubt.vain = 0
	default:
		t.doubt.vain++
	}
}

// outlived reports whether calls that went after the one of t, which has failed, were done long before it: it took a time
// in which they all were, so they have told.
func (h *health) outlived(t *task) bool {
	return t.seq < h.through && h.callTime > 0 && t.ended.Sub(t.att.Dispatched) > longCall*h.callTime
}

// usedUp parks t until its failures are confirmed, where it can't go on at the next server.
func (s *scheduler) usedUp(t *task) {
	if !t.doubt.final && s.nextServer(t) >= 0 {
		s.moveOn(t)
		return
	}
	t.doubt.parked = true
	s.parked++
	s.again(t, doubtWait)
}

// unpark looks again at t, which is parked and in no line. Where nobody is left who could tell, it is the job's own
// failure if it is the only one or if others have had successes meanwhile, and an outage else.
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
	if row, through := s.inARow(v); row >= h.outageJobs(through) {
		if h.grace > 2*quickFailure || len(v.inFlight) == 0 {
			return true
		}
		// Those in flight may have gone at the same moment as those that failed: which of them get through?
		h.judgeAt = s.tick.Add(h.grace)
		return false
	}
	// With fewer jobs, if there is no other to ask.
	few := s.witnesses() == 0 || s.cfg.Size == 1
	return few && h.failures >= h.outageJobs(0) && (h.innocent() > 1 || t.verdict.Origin == OfNetwork)
}

// judge decides about the servers whose calls in flight had to end or grow old for it.
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
		if row, through := s.inARow(v); !v.out() && row >= h.outageJobs(through) {
			s.openBreaker(i, h.err)
		}
	}
}

// inARow returns how many different jobs, apart from those with confirmed failures, have failed at a server since the
// last call that got through went, and how many calls got through that went since the first failure.
func (s *scheduler) inARow(v *server) (row, through int) {
	h := &v.health
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
	for _, t := range h.doubted {
		if t.doubt.firstSeq > last && t.doubt.first {
			row++
		}
	}
	return row, through
}

// outageJobs returns how many different jobs in a row must fail to make an outage, where so many calls are in flight that
// got through since the first failure.
func (h *health) outageJobs(through int) int {
	share := h.before
	if through > 0 { // then half of all at most, as far as is known
		share = max(share, min(0.5, float64(h.failures)/float64(h.failures+through)))
	}
	n := math.Ceil(math.Log(outageChance) / math.Log(min(max(share, 1e-9), 0.999)))
	return int(min(max(n, outageJobsMin), outageJobsMax))
}

// attempts returns the number of failures of the server that a job may meet.
func (s *scheduler) attempts(h *health) int {
	if h.proven && h.share.ill() {
		return illAttempts * s.cfg.Retry.MaxAttempts
	}
	return s.cfg.Retry.MaxAttempts
}

// alone reports whether all jobs that are left have failed, and all but one while others succeeded: nobody can tell about
// their failures.
func (s *scheduler) alone(h *health) bool { return s.witnesses() == 0 && h.innocent() <= 1 }

// innocent returns how many jobs have failed without a success of others since.
func (h *health) innocent() (n int) {
	for _, t := range h.doubted {
		if t.doubt.first && t.doubt.begin == h.successes {
			n++
		}
	}
	return n
}

// witnesses returns how many jobs there are that have not failed, apart from the one that is in no line at present.
func (s *scheduler) witnesses() int {
	jobs := s.waiting() - s.fresh.singles.size + s.counts.InFlight
	return jobs + 1 - s.marked
}

// succeeded takes a success of t at a server for what it says about others: what was in doubt is confirmed.
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
	var confirmed []*task
	h.doubted = slices.DeleteFunc(h.doubted, func(t *task) bool {
		if !match(t) {
			return false
		}
		confirmed = append(confirmed, t)
		return true
	})
	for _, t := range confirmed {
		d := s.clear(t)
		t.failures += d.strikes
		if t.failures == 0 {
			s.unmark(t)
		}
		if !d.parked {
			continue
		}
		s.delayed.remove(func(x *task) bool { return x == t })
		if d.final || t.failures >= s.attempts(h) {
			s.vacate(t)
			s.lose(t)
		} else { // the server has proved ill since
			s.servers[t.server].ready.push(t)
		}
	}
}

// acquit drops the failures in doubt, and returns how many of them were sent. Their jobs may go again at once, whatever
// they were told to wait.
func (s *scheduler) acquit(v *server) (lost int) {
	doubted := v.health.doubted
	v.health.doubted, v.health.failures, v.health.judgeAt = nil, 0, time.Time{}
	v.health.alike, v.health.alikeJobs = "", 0
	v.breaker.voided = append(v.breaker.voided, doubted...)
	for _, t := range doubted {
		d := s.clear(t)
		lost += d.lost
		if t.failures == 0 {
			s.unmark(t)
		}
		if len(s.delayed.remove(func(x *task) bool { return x == t })) > 0 {
			s.servers[t.server].ready.push(t)
		}
	}
	return lost
}

// forget drops what is in doubt about t, for it ends or goes elsewhere.
func (s *scheduler) forget(t *task) {
	if t.doubt.failed {
		h := &s.servers[t.doubt.at].health
		h.doubted = slices.DeleteFunc(h.doubted, func(d *task) bool { return d == t })
		s.clear(t)
	}
	s.unmark(t)
}

// clear drops the suspicion of t, and returns what it was.
func (s *scheduler) clear(t *task) suspicion {
	d := t.doubt
	t.doubt = suspicion{}
	if d.parked {
		s.parked--
	}
	return d
}

// lose fails t, or takes it to the next server, for failures that are its own.
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

// mark counts a job as one that has failed.
func (s *scheduler) mark(t *task) {
	if !t.marked {
		t.marked = true
		s.marked++
	}
}

func (s *scheduler) unmark(t *task) {
	if t.marked {
		t.marked = false
		s.marked--
	}
}
