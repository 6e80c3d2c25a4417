package health

import (
	"cmp"
	"slices"
	"time"
)

// A failure that the server may have caused is in doubt until another job's call settles
// it:
//
//   - A call for another job that went later succeeds. Then the server was well, and the failure
//     was the job's own. A call that went earlier shows nothing: it may have been served before
//     an outage began.
//   - Different jobs fail in a row. Then the server is out, and none of the failures counts.
//
// While no other job succeeds, the failures of one job count as one, whatever their
// number: it may have met one and the same outage again and again.
//
// A job that has used up its attempts with failures in doubt makes no more calls, and
// waits for the answer. Where no other job is left that could give it, see
// [Monitor.Await].
//
// Failures that reached no server never count at the first server, where their jobs wait
// until it is back. At a fallback they count like other failures in doubt.

const (
	// unhealthyShare is the share of failing calls above which the server is unhealthy
	// although it has successes. A job then gets unhealthyAttempts times its attempts:
	// with half of all calls failing, three attempts would lose one job in eight, and
	// eighteen lose one in 260,000.
	unhealthyShare    = 1.0 / 3
	unhealthyAttempts = 6
	// WitnessWait is how long a job with a failure in doubt waits, beyond its backoff,
	// for the success of another job. Without one its next failure would not count, so
	// the call would be wasted.
	WitnessWait = 2 * time.Second
	// longCall is how many times as long as others a call must last to have outlived
	// them: if calls that went later are done long before it fails, it is the job that is
	// slow.
	longCall = 3
	// fewJobs is the number of different jobs in doubt from which on only the success of a
	// later call shows that the server was well. While fewer are in doubt, and no other
	// job is left, the success of an earlier call shows it, too, see [Server.vouched]. So
	// up to four of the last jobs fail for good when an outage begins, as
	// docs/reliability.md says.
	fewJobs = several
)

// suspects is what is in doubt about the jobs of a server.
type suspects struct {
	jobs     []*Job        // exactly those with doubt.open at this server; none during an outage
	since    time.Time     // when the first of them failed
	failures int           // since the last success
	before   float64       // the share of failing calls before these failures
	grace    time.Duration // the age at which a call in flight counts as having got through
	absent   bool          // nothing listened at the server, which has never had a success
	err      error         // the latest failure
	// judgeAt is when the calls in flight will be as old as grace, so that they show
	// whether the failures are an outage. No call goes earlier. It is zero while there is
	// nothing to decide.
	judgeAt time.Time
}

// doubt is what is in doubt about one job. In the zero value nothing is.
type doubt struct {
	open      bool   // it is among suspects.jobs of its server; while false all else is zero
	innocent  bool   // there is no evidence yet that the failure is its own
	firstCall uint64 // the number of the call that failed first
	begin     uint64 // Server.successes when that call went
	lastCall  uint64 // the number of the call that failed last
	seen      uint64 // Server.successes when the last call failed

	strikes  int  // failures that count if they are confirmed
	vain     int  // failures since the last of these, which do not count
	lost     int  // failures of requests that were sent, and may have been paid for
	final    bool // one of the failures allows no further attempt
	settings bool // the last failure is in doubt only because the settings may be wrong
	alike    bool // it has met the error alike.first
	awaits   bool // it has used up its attempts, and waits; counted in Monitor.awaiting
}

// Failed decides what becomes of a job whose last call has failed. Others is the number of
// other jobs that the pool has.
func (s *Server) Failed(now time.Time, j *Job, others int) Decision {
	v := &j.last
	settings := s.maybeSettings(v)
	if !v.InDoubt() && !settings {
		return s.count(j)
	}
	if s.Out() {
		j.outage = s.outages
		return Void
	}
	if s.m.WrongSettings {
		return Void
	}
	s.belong(j)
	if settings && s.alike.first != "" && s.alike.first != v.Alike {
		// Jobs meet different errors, so the settings are not the cause. Failures that
		// were in doubt only for that reason are the jobs' own.
		s.alike.mixed = true
		s.confirm(func(other *Job) bool { return other.doubt.settings })
		return s.Failed(now, j, others)
	}
	s.suspect(now, j, others)
	if settings {
		s.meetsAlike(j)
	} else if s.suspects.absent && s.index == 0 || s.isOut(now, j, others) {
		s.open(now, v.Err)
		return Outage
	}
	j.usedUp = !s.unreached(v) && (j.doubt.final || j.failures+j.doubt.strikes >= s.attempts(j))
	return Hold
}

// count counts a failure that is certainly the job's own.
func (s *Server) count(j *Job) Decision {
	if j.usedUp = j.last.Final; !j.usedUp {
		s.belong(j)
		s.m.mark(j, true)
		j.failures++
		j.usedUp = j.failures >= s.m.attempts(j)
	}
	return Count
}

// belong makes a job that went past its server belong to this one, where it has failed.
func (s *Server) belong(j *Job) {
	if j.server != s.index {
		s.m.Move(j, s.index)
	}
}

// unreached reports whether a failure shows that the first server was not reached. Such a
// failure never counts against a job.
func (s *Server) unreached(v *Verdict) bool { return v.Sign == Unreached && s.index == 0 }

// suspect records a failure of a job that is in doubt.
func (s *Server) suspect(now time.Time, j *Job, others int) {
	v, d, u := &j.last, &j.doubt, &s.suspects
	if len(u.jobs) == 0 {
		u.since = now
	}
	if u.failures == 0 {
		u.before = s.failing.most()
	}
	u.failures++
	u.err, u.grace = v.Err, max(2*j.call.took, quickFailure)
	u.absent = v.Absent && !s.proven
	if !d.open {
		*d = doubt{open: true, firstCall: j.call.number, begin: j.call.successes}
		d.innocent = j.failures == 0 && j.outage <= s.proved && !s.outlived(j)
		u.jobs = append(u.jobs, j)
		s.m.mark(j, true)
	}
	d.settings = !v.InDoubt()
	witnesses := s.m.witnesses(others)
	only := s.m.cfg.Sequential || s.only(witnesses) || d.settings && witnesses == 0
	succeeded := s.successes > d.seen
	d.lastCall, d.seen = j.call.number, s.successes
	if !v.Unsent {
		d.lost++
	}
	if succeeded || d.strikes == 0 {
		s.failing.failed() // while no other job succeeds, the failures of a job count once
	}
	switch {
	case s.unreached(v):
	case v.Final:
		d.strikes, d.final = 1, true
	case d.strikes == 0 || succeeded || only:
		d.strikes++
		d.vain = 0
	default:
		d.vain++
	}
}

// outlived reports whether the failed call of a job lasted much longer than calls that went
// later and succeeded. So their successes are evidence about it.
func (s *Server) outlived(j *Job) bool {
	return j.call.number < s.latest && s.callTime > 0 && j.call.took > longCall*s.callTime
}

// attempts returns how many failures of the server use up a job.
func (s *Server) attempts(j *Job) int {
	if s.proven && s.failing.unhealthy() {
		return unhealthyAttempts * s.m.attempts(j)
	}
	return s.m.attempts(j)
}

// attempts returns how many failures use up a job at a server that is well.
func (m *Monitor) attempts(j *Job) int { return cmp.Or(j.Attempts, m.cfg.Attempts) }

// Tries returns the number of failures by which the wait for the next attempt grows. A
// call that cannot count may still cost money, and the number of these is unbounded, so
// they count here. Waits for a server that was not reached do not grow: the breaker takes
// care of them.
func (m *Monitor) Tries(j *Job) int {
	if m.servers[j.server].unreached(&j.last) {
		return 1
	}
	return min(j.failures+j.doubt.strikes, m.attempts(j)) + j.doubt.vain
}

// Final reports whether a failure of the job is one after which it is never tried again, at
// another server either.
func (j *Job) Final() bool { return j.last.Final || j.doubt.final }

// LacksWitness reports whether no other job has succeeded since the last failure of this
// one, which is in doubt, and another job still might.
func (m *Monitor) LacksWitness(j *Job, others int) bool {
	return j.doubt.strikes > 0 && !m.cfg.Sequential &&
		m.servers[j.server].successes == j.doubt.seen && m.witnesses(others) > 0
}

// Await makes a job that has used up its attempts with failures in doubt wait for the
// answer.
func (m *Monitor) Await(j *Job) {
	j.doubt.awaits = true
	m.awaiting++
}

// Awaits reports whether the job waits until the doubt about its failures is settled.
func (j *Job) Awaits() bool { return j.doubt.awaits }

// Settle decides about a job that awaits an answer, and is called from time to time.
// While there are other jobs that have not failed, the decision is Hold. If there are
// none it is Count in three cases: the job is the only one left in doubt, the success of
// another has vouched for the server, or the server can't have caused the failure.
// Otherwise several jobs have failed and none is left to show why, so it is an outage.
func (s *Server) Settle(now time.Time, j *Job, others int) Decision {
	witnesses := s.m.witnesses(others)
	switch {
	case witnesses > 0:
		return Hold
	case s.only(witnesses) || s.vouched(j, s.fewFail()) || !j.last.InDoubt():
		return Count
	default:
		s.open(now, j.last.Err)
		return Outage
	}
}

// witnesses returns how many of the other jobs have not failed. A job with a failure is
// at hand.
func (m *Monitor) witnesses(others int) int { return others - (m.failed - 1) }

// only reports whether all jobs that are left have failed, and all but one while others
// succeeded: then no job can settle the doubt about the one.
func (s *Server) only(witnesses int) bool { return witnesses == 0 && s.innocent() <= 1 }

// innocent returns how many jobs have failed and no success of others has vouched for the
// server since. Jobs of one group count as one, unless all are of that group.
func (s *Server) innocent() int {
	few := s.fewFail()
	is := func(j *Job) bool { return j.doubt.innocent && !s.vouched(j, few) }
	if n := s.suspects.groups(is); n != 1 {
		return n
	}
	n := 0
	for _, j := range s.suspects.jobs {
		if is(j) {
			n++
		}
	}
	return n
}

// fewFail reports whether fewer different jobs than fewJobs are in doubt.
func (s *Server) fewFail() bool {
	return s.suspects.groups(func(*Job) bool { return true }) < fewJobs
}

// vouched reports whether the success of another job shows that the server was well when
// a job failed. The success of a later call does. The success of an earlier call that has
// arrived since shows little, but it decides where few jobs fail and none is left to ask.
// Where many fail it must not:
//
//  1. A call is served, slowly. An outage begins.
//  2. All jobs that wait fail, several times each.
//  3. The slow reply arrives. If it showed that the server is well, they would all fail for good.
func (s *Server) vouched(j *Job, few bool) bool {
	return s.latest > j.doubt.firstCall || few && s.successes > j.doubt.begin
}

// groups returns how many groups the matching suspects belong to.
func (u *suspects) groups(match func(*Job) bool) (n int) {
	var known map[any]bool
	for _, j := range u.jobs {
		if !match(j) || j.Group != nil && known[j.Group] {
			continue
		}
		if n++; j.Group != nil {
			if known == nil {
				known = make(map[any]bool)
			}
			known[j.Group] = true
		}
	}
	return n
}

// confirm counts the failures in doubt against the jobs that match.
func (s *Server) confirm(match func(*Job) bool) {
	for _, j := range extract(&s.suspects.jobs, match) {
		d := s.m.clear(j, j.doubt.strikes)
		if d.awaits { // the server may have turned out to be unhealthy since
			j.usedUp = d.final || j.failures >= s.attempts(j)
			s.m.settled = append(s.m.settled, j)
		}
	}
}

// acquit drops the failures in doubt, and returns how many of them were sent. Their jobs
// need not wait any longer.
func (s *Server) acquit() (lost int) {
	jobs := s.suspects.jobs
	s.suspects.jobs, s.suspects.failures, s.suspects.judgeAt = nil, 0, time.Time{}
	s.alike.first, s.alike.jobs = "", 0
	for _, j := range jobs {
		lost += s.m.clear(j, 0).lost
		j.usedUp, j.outage = false, s.outages
	}
	s.m.settled = append(s.m.settled, jobs...)
	return lost
}

// forgetDoubt drops what is in doubt about a job, which ends or moves to another server.
func (m *Monitor) forgetDoubt(j *Job) {
	if j.doubt.open {
		u := &m.servers[j.server].suspects
		u.jobs = slices.DeleteFunc(u.jobs, func(other *Job) bool { return other == j })
		m.clear(j, 0)
	}
	m.mark(j, false)
}

// clear ends the doubt about a job, counts this many failures against it, and returns
// what was in doubt.
func (m *Monitor) clear(j *Job, failures int) doubt {
	d := j.doubt
	j.doubt = doubt{}
	if d.awaits {
		m.awaiting--
	}
	j.failures += failures
	m.mark(j, j.failures > 0)
	return d
}

// mark records whether a job has failed.
func (m *Monitor) mark(j *Job, failed bool) {
	if j.failed && !failed {
		m.failed--
	} else if failed && !j.failed {
		m.failed++
	}
	j.failed = failed
}

// extract deletes the jobs that match from a list and returns them.
func extract(list *[]*Job, match func(*Job) bool) (extracted []*Job) {
	*list = slices.DeleteFunc(*list, func(j *Job) bool {
		if match(j) {
			extracted = append(extracted, j)
			return true
		}
		return false
	})
	return extracted
}
