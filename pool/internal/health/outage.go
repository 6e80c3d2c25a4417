package health

import (
	"math"
	"time"
)

// A server is out when outageJobs different jobs fail in a row. At a server that fails
// often that many fail by chance, so there it takes more: as many as fail by chance less
// than once in outageChance. With the share p of calls that fail it takes n jobs, where
// pⁿ < outageChance. For example, five at a server that fails 6% of its calls, and 20 at
// one that fails half of them.
//
// Failures are in a row if no call between them, in the order in which they went, got
// through, however far apart in time they are. A call has got through when it has
// succeeded, or when it is in flight for twice as long as failures take. Where failures
// are quick, several calls may have gone at the same moment, of which some have failed and
// the others will succeed: so the decision waits until those in flight are that old.
//
// Where nothing listens at the first server, and it has had no success, one failure is an
// outage.

const (
	// outageJobs is how many different jobs must fail in a row at a sound server.
	outageJobs = several
	// outageJobsMost is how many are enough however often the server fails.
	outageJobsMost = 64
	// outageChance is the probability below which failures in a row are no accident.
	outageChance = 1e-6
	// quickFailure is the longest time that a quick failure takes. No call in flight
	// counts as having got through before it is that old.
	quickFailure = 100 * time.Millisecond
	// falseAlarmProbes is the most probes, the successful one included, of an outage that
	// may have been a false alarm: it lasted 3 s.
	falseAlarmProbes = 4
)

// Out reports whether the server is in an outage.
func (s *Server) Out() bool { return s.Outage.IsOpen() }

// isOut reports whether the failures since the last success make an outage. The latest
// failure is j's. Where quick calls in flight may still show that there is none, it sets
// judgeAt instead, and [Server.Look] decides.
func (s *Server) isOut(now time.Time, j *Job, others int) bool {
	u := &s.suspects
	if s.inARow(now) {
		if u.grace > 2*quickFailure || len(s.inFlight) == 0 {
			return true
		}
		u.judgeAt = now.Add(u.grace)
		return false
	}
	// Fewer jobs are enough if there is no other to wait for.
	few := s.m.witnesses(others) == 0 || s.m.cfg.Sequential
	return few && u.failures >= u.jobsOfAnOutage(0) && (s.innocent() > 1 || j.last.Sign == Unreached)
}

// inARow reports whether enough different jobs have failed to make an outage, counted
// since the last call that got through was sent. Jobs with failures of their own do not
// count.
func (s *Server) inARow(now time.Time) bool {
	u := &s.suspects
	through := 0 // calls that got through and went since the first failure
	var last uint64
	for _, j := range s.inFlight {
		if now.Sub(j.call.sent) < u.grace {
			continue
		}
		last = max(last, j.call.number)
		if j.call.sent.After(u.since) {
			through++
		}
	}
	row := u.groups(func(j *Job) bool { return j.doubt.innocent && j.doubt.firstCall > last })
	return row >= u.jobsOfAnOutage(through)
}

// jobsOfAnOutage returns how many different jobs in a row must fail to make an outage,
// where through is the number of calls that got through since the first failure.
func (u *suspects) jobsOfAnOutage(through int) int {
	share := u.before
	if through > 0 { // then half of all at most, as far as is known
		share = max(share, min(0.5, float64(u.failures)/float64(u.failures+through)))
	}
	n := math.Ceil(math.Log(outageChance) / math.Log(min(max(share, 1e-9), 0.999)))
	return int(min(max(n, outageJobs), outageJobsMost))
}

// Look decides whether the server is out, where that has waited for calls in flight to end
// or grow old. The decision is Outage or, where nothing is to be decided yet and where it
// is not out, Void.
func (s *Server) Look(now time.Time) Decision {
	u := &s.suspects
	if u.judgeAt.IsZero() || u.judgeAt.After(now) {
		return Void
	}
	u.judgeAt = time.Time{}
	if s.Out() || !s.inARow(now) {
		return Void
	}
	s.open(now, u.err)
	return Outage
}

// JudgeAt returns the instant from which jobs may go to the server, because until then it
// is being decided whether it is out. It is zero if nothing is being decided.
func (s *Server) JudgeAt() time.Time { return s.suspects.judgeAt }

// open begins an outage. The failures in doubt no longer count against their jobs, which
// wait and lose no attempt.
func (s *Server) open(now time.Time, err error) {
	since, absent := s.suspects.since, s.suspects.absent
	s.outages++
	lost := s.acquit()
	s.Outage = NewBreaker(now, since, err, 0)
	s.Outage.Lost = lost
	s.Outage.patience = s.callTime
	s.Outage.noteAbsent(absent, now)
}

// endsOutage records how a call ended while the server is out, and reports whether that
// ends the outage. The answer of a healthy server to a probe does, also one that refuses
// the job or is an error about it. So does the success of another call that went after the
// first failure. A call that went before may have been served before the outage.
func (s *Server) endsOutage(now time.Time, j *Job) bool {
	b, v := &s.Outage, &j.last
	probe := j.call.probe && !j.call.sent.Before(b.opened)
	if j == b.probe {
		b.probe = nil
	}
	switch v.Sign {
	case NoEvidence:
		if probe {
			b.Next = now // another probe must find out
		}
	case Sick, Unreached:
		if probe {
			b.Err, b.unreached = v.Err, v.Sign == Unreached
			b.noteAbsent(v.Absent && !s.proven, now)
		}
		if !v.Unsent {
			b.Lost++
		}
	case Success, Answered, Refused:
		if probe || v.Sign == Success && j.call.sent.After(b.Since) {
			s.close(v.Sign == Success)
			return true
		}
	}
	return false
}

// close ends an outage. In a sequential pool, which has no other call in flight, one of a
// few probes may have been a false alarm, caused by adjacent jobs that always fail. If
// these fail again after it, they cause no further outage. Otherwise one would follow the
// other.
func (s *Server) close(success bool) {
	if !success || !s.m.cfg.Sequential || s.Outage.Probes > falseAlarmProbes {
		s.proved = s.outages
	}
	s.Outage = Breaker{}
}
