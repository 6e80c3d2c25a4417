package pool

const (
	// The share of calls that fail is a mean over about this many. It begins at a tenth, as nothing is known yet.
	shareCalls, shareAtFirst = 96, 0.1
	// A second mean over fewer calls notices sooner that a server becomes unhealthy. Alone it would, by chance, forget
	// that too soon.
	shareCallsLately = 32
)

// share is the share of a server's calls that fail in doubt, as two means.
//
// A call counts from when it goes, and its failure is added when that is known. Were verdicts counted instead,
// successes that take a second would count long after failures that take a few milliseconds: whenever the pool sends
// less, in an outage or at the end of a job, only successes would still arrive, and an unhealthy server would pass for
// a healthy one.
type share struct{ long, lately float64 }

func (s *share) sent() {
	s.long -= s.long / shareCalls
	s.lately -= s.lately / shareCallsLately
}

// void uncounts a call that is no evidence about the share.
func (s *share) void() {
	s.long += s.long / (shareCalls - 1)
	s.lately += s.lately / (shareCallsLately - 1)
}

func (s *share) failed() {
	s.long = min(1, s.long+1.0/shareCalls)
	s.lately = min(1, s.lately+1.0/shareCallsLately)
}

func (s *share) most() float64 { return max(s.long, s.lately) }

// unhealthy reports whether so many calls fail that the server counts as unhealthy.
func (s *share) unhealthy() bool { return s.most() > unhealthyShare }
