package health

const (
	// failingCalls is the number of calls over which the share of failing ones is taken.
	failingCalls = 96
	// failingCallsLately is the number of calls of a second share, which notices sooner
	// that a server becomes unhealthy. Alone it would forget that too soon by chance: at a
	// server that fails half of its calls, it falls below a third once in a thousand calls.
	failingCallsLately = 32
)

// failing is the share of a server's calls that fail in doubt, as two means.
//
// A call counts from when it goes, and its failure is added when that is known. Were
// verdicts counted instead, successes that take a second would count long after failures
// that take a few milliseconds. Then whenever the pool sends less, in an outage or at the
// end of a job, only successes would still arrive, and an unhealthy server would pass for
// a healthy one.
type failing struct{ long, lately float64 }

func (f *failing) sent() {
	f.long -= f.long / failingCalls
	f.lately -= f.lately / failingCallsLately
}

// void uncounts a call that is no evidence about the share.
func (f *failing) void() {
	f.long += f.long / (failingCalls - 1)
	f.lately += f.lately / (failingCallsLately - 1)
}

func (f *failing) failed() {
	f.long = min(1, f.long+1.0/failingCalls)
	f.lately = min(1, f.lately+1.0/failingCallsLately)
}

func (f *failing) most() float64 { return max(f.long, f.lately) }

// unhealthy reports whether so many calls fail that the server counts as unhealthy.
func (f *failing) unhealthy() bool { return f.most() > unhealthyShare }
