// Package health decides whose failure an error is, and what state a server is in. It
// stands beside the law of a pool: the law (package aimd) decides how fast calls may go,
// this package decides what their ends mean.
//
// The end of one call does not show whether the job or the server caused it. A 502 may be
// the answer to one poisoned job, or the first sign of an outage. So a failure is judged
// by what happens to other jobs at the same server. Until that is known it is in doubt:
//
//	             own failure (a 400) ────────────────────────────────> counted
//	                                   ┌─ another job succeeds later ─> counted
//	call ends ─> failure of the server ┤
//	                   (a 502)         └─ five jobs fail in a row ────> void: the server is out
//
// A pool reports two events, [Server.Sent] and [Server.Ended]. After a failure it asks
// [Server.Failed] what to do: count it, hold the job until the doubt is settled, or put
// the job back because the failure is void. [Monitor.Settled] has the other jobs about
// which an event has settled the doubt:
//
//	m := health.New(health.Config{Servers: 1, Attempts: 3})
//	server := m.Server(0)
//	server.Sent(now, &job.Job, false)
//	server.Ended(now, &job.Job, health.Verdict{Sign: health.Sick, Err: err}, took)
//	switch server.Failed(now, &job.Job, others) { ... }
//	for _, j := range m.Settled() { ... }
//
// The package is pure: it has no goroutine, no clock and no randomness, instants come in as
// arguments. One goroutine must own a [Monitor] with its servers and jobs.
//
// Each rule has a file, with its constants: doubt.go decides whose failure an error is,
// outage.go when a server is out, settings.go when the settings are wrong, refusal.go
// when refusals are about one job rather than the server, slow.go when a server is in a
// brown-out. failing.go measures how many calls fail, breaker.go decides when probes go.
package health

import (
	"slices"
	"time"
)

// Config is what the rules must know about the pool.
type Config struct {
	// Servers is the number of servers. The first is number 0, the others are its
	// fallbacks.
	Servers int
	// Sequential means that the pool makes one call at a time, so no other job can
	// succeed while one fails.
	Sequential bool
	// Attempts is the number of failures that use up a job at one server.
	Attempts int
	// BlameSettings allows the conclusion that the settings are wrong, see settings.go.
	BlameSettings bool
	// SlowAfter is how long a server must be in a brown-out before jobs go past it.
	SlowAfter time.Duration
}

// A Sign is what the end of a call shows about the server that was called.
type Sign uint8

// The signs. The zero value is NoEvidence.
const (
	NoEvidence Sign = iota // the call was cut off, or never sent
	Success                // the job is done
	Answered               // the server answered about this very job, which failed
	Refused                // the server had no room
	Sick                   // the server failed on the call, or something answered in its place
	Unreached              // no answer came: no connection, or one that broke before an answer
)

// Verdict is what the end of a call shows, as far as health is concerned.
type Verdict struct {
	Sign Sign
	// Final means that the job is not tried again if the failure is its own.
	Final bool
	// Unsent means that the request did not reach the server, so it cannot have been paid
	// for.
	Unsent bool
	// Absent means that nothing listens at the server's address.
	Absent bool
	// Alike names an error that all jobs meet where the settings are wrong. It is empty
	// for any other error.
	Alike string
	// Err is the failure, for reports of an outage.
	Err error
}

// InDoubt reports whether the server may have caused the failure rather than the job.
func (v *Verdict) InDoubt() bool { return v.Sign == Sick || v.Sign == Unreached }

// A Decision is what becomes of a job after a failure.
type Decision uint8

// The decisions.
const (
	// Void means that the failure counts against nobody, and that the job goes back into
	// its line.
	Void Decision = iota
	// Outage is Void, and the server has been found to be out.
	Outage
	// Hold means that it is in doubt whose failure it is. A job that is [Job.UsedUp] waits
	// for the answer, see [Monitor.Await]. Any other may be tried again.
	Hold
	// Count means that the failure is the job's own. A job that is [Job.UsedUp] has failed
	// for good at this server.
	Count
)

// Monitor has the health of all servers of a pool.
type Monitor struct {
	cfg     Config
	servers []Server

	// WrongSettings is set by the pool while it is paused because of its settings. Then
	// neither an error that wrong settings cause nor a failure in doubt counts against a
	// job.
	WrongSettings bool

	failed   int    // the number of jobs with Job.failed
	awaiting int    // the number of jobs with doubt.awaits
	settled  []*Job // what [Monitor.Settled] returns next
}

// New returns a monitor of servers of which nothing is known yet.
func New(cfg Config) *Monitor {
	m := &Monitor{cfg: cfg, servers: make([]Server, cfg.Servers)}
	for i := range m.servers {
		m.servers[i] = Server{m: m, index: i}
	}
	return m
}

// Server returns the health of one server.
func (m *Monitor) Server(i int) *Server { return &m.servers[i] }

// Awaiting returns how many jobs have used up their attempts and wait until the doubt about
// their failures is settled.
func (m *Monitor) Awaiting() int { return m.awaiting }

// Settled returns the jobs about which an event since the last call has settled the
// doubt, so that they need not wait any longer: those that are [Job.UsedUp] have failed.
func (m *Monitor) Settled() []*Job {
	settled := m.settled
	m.settled = nil
	return settled
}

// Move makes another server the one at which a job waits: failures count there from the
// start.
func (m *Monitor) Move(j *Job, to int) {
	m.Forget(j)
	j.server, j.failures, j.usedUp, j.outage = to, 0, false, 0
}

// Forget drops all that is known of a job, which has ended.
func (m *Monitor) Forget(j *Job) {
	m.servers[j.server].refusals.forgive(j)
	m.forgetDoubt(j)
}

// Owner is the pool's own record of a job.
type Owner interface {
	// Weight is the weight of a call for the job at a server, such as its tokens.
	Weight(server int) int64
}

// Job is what the rules remember of one job. The pool's record of the job contains it.
type Job struct {
	Owner Owner
	// Group is shared by jobs that may fail through one cause of their own. Where several
	// jobs must fail before a server is suspected, those of one group count as one. A job
	// with nil is a group of its own.
	Group any
	// Key names the jobs that are refused together, see refusal.go. Without a key a job
	// is refused by itself.
	Key string
	// Single marks a job that is one call whatever happens, so it is never in doubt.
	Single bool
	// Attempts is the job's own number of attempts, in place of Config.Attempts. A job
	// with 0 has none of its own.
	Attempts int

	server   int  // where it waits
	failures int  // at that server, those that are its own
	usedUp   bool // the last failure left it no further attempt
	failed   bool // it has failed, in doubt or not; counted in Monitor.failed
	outage   int  // the number of the latest outage of the server that voided its failures
	doubt    doubt
	refusals refusals

	// These describe the last call.
	tries  int // calls so far, at any server
	call   call
	probed time.Time // when it was a probe last
	last   Verdict
}

// call is one call at a server.
type call struct {
	number    uint64    // among the calls at the server, from 1
	slot      int       // its place in Server.inFlight
	successes uint64    // of the server when the call went
	probe     bool      // it finds out whether a problem is over
	sent      time.Time // when it went
	took      time.Duration
}

// Server returns the number of the server at which the job waits. A call may go past it,
// to a later one.
func (j *Job) Server() int { return j.server }

// Failures returns how many failures of the job at its server are known to be its own.
func (j *Job) Failures() int { return j.failures }

// UsedUp reports whether the last failure has left the job no further attempt at its
// server.
func (j *Job) UsedUp() bool { return j.usedUp }

// Server is the health of one server.
type Server struct {
	m     *Monitor
	index int

	// These are about the calls to the server.
	inFlight  []*Job // inFlight[j.call.slot] == j for each
	calls     uint64 // sent so far
	successes uint64
	proven    bool          // it has had a success
	callTime  time.Duration // the mean duration of successes; 0 before the first
	latest    uint64        // the highest number of a call that succeeded

	failing  failing
	suspects suspects
	alike    alike
	refusals refused
	capacity capacity

	// Outage is the breaker that is open while the server is out. Then no job is in doubt.
	Outage  Breaker
	outages int // so far, those that may have been false alarms included
	proved  int // the number of the latest outage that was certainly no false alarm
}

// InFlight returns the number of calls in flight at the server.
func (s *Server) InFlight() int { return len(s.inFlight) }

// Sent records that a call for a job goes to the server now.
func (s *Server) Sent(now time.Time, j *Job, probe bool) {
	s.calls++
	j.tries++
	j.call = call{number: s.calls, slot: len(s.inFlight), successes: s.successes, probe: probe, sent: now}
	s.inFlight = append(s.inFlight, j)
	s.refusals.retried = j.tries > 1
	s.capacity.count(1)
	if !probe {
		s.failing.sent()
	}
}

// Report is what the end of a call means for the law of the server.
type Report struct {
	// Spared means that the law must not learn of a refusal, because it is about the job.
	Spared bool
	// Restart means that what the law has learned is void: the server is back from an
	// outage, or only this job was refused.
	Restart bool
	// Over means that an outage is over.
	Over bool
}

// Ended records how the call for a job ended, and how long it took. If it failed, the
// pool asks [Server.Failed] next.
func (s *Server) Ended(now time.Time, j *Job, v Verdict, took time.Duration) (r Report) {
	last := s.inFlight[len(s.inFlight)-1]
	s.inFlight[j.call.slot], last.call.slot = last, j.call.slot
	s.inFlight = slices.Delete(s.inFlight, len(s.inFlight)-1, len(s.inFlight))
	j.last, j.call.took = v, took
	if v.Sign == NoEvidence && v.Unsent {
		j.tries--
	}
	if j.server == s.index {
		r.Restart = s.learn(j)
	}
	r.Spared = v.Sign == Refused && j.refusals.spared
	s.capacity.ended(now, v.Sign, r.Spared)
	if !j.call.probe && (v.Sign == NoEvidence || v.Sign == Refused) {
		s.failing.void()
	}
	if s.Out() {
		r.Over = s.endsOutage(now, j)
		r.Restart = r.Restart || r.Over
	}
	switch {
	case v.Sign == Success:
		s.succeeded(j)
	case j.Single && v.InDoubt() && !s.Out():
		s.failing.failed() // counted here, because Failed is never asked about a single call
	}
	return r
}

// succeeded records the success of a call.
func (s *Server) succeeded(j *Job) {
	s.proven = true
	s.alike.run = run{}
	if s.callTime == 0 {
		s.callTime = j.call.took
	}
	s.callTime += (j.call.took - s.callTime) / callTimeCalls
	s.successes++
	s.latest = max(s.latest, j.call.number)
	s.suspects.failures = 0
	s.m.forgetDoubt(j)
	s.confirm(func(other *Job) bool { return other.doubt.lastCall < j.call.number })
}

const (
	// several cases of the same trouble in a row are no accident, be it jobs that fail or
	// retries that are refused. Four rules begin with that number, and each may change it
	// by itself: outageJobs, fewJobs, alikeFirst and vainRetries.
	several = 5
	// callTimeCalls is the number of calls over which the mean duration of a call is
	// taken.
	callTimeCalls = 16
)

// sooner returns the earlier of two instants. A zero instant stands for none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
