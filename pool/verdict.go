package pool

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool/internal/health"
)

// Class is what the verdict on an attempt means for its job.
type Class uint8

// The classes. The zero value is OK.
const (
	OK        Class = iota // the job is done
	Capacity               // the server had no room: retried without limit, and more slowly
	Transient              // a passing failure: retried a bounded number of times
	Permanent              // this job can never succeed
	Fatal                  // no job can succeed until someone fixes the cause: bad key, no credit
	Cancelled              // no verdict: the attempt was cut off
)

var classNames = [...]string{"ok", "capacity", "transient", "permanent", "fatal", "cancelled"}

// String returns the class in lower case.
func (c Class) String() string { return nameOf(c, classNames[:], "class") }

// nameOf returns the name of a constant, or the type and number of an unknown one.
func nameOf[K ~uint8](k K, names []string, kind string) string {
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("%s(%d)", kind, uint8(k))
}

// Origin is where a transient or permanent error comes from. An error of the job itself
// counts against the job, unless wrong settings may have caused it ([Verdict.Alike]). The
// others may have a cause that is not the job's, and then cost it no attempt.
type Origin uint8

// The origins. The zero value is OfJob.
const (
	OfJob     Origin = iota // the server answered about this very job
	OfServer                // the server is unhealthy: it failed on the call, or something else answered in its place
	OfNetwork               // no answer came: no server was reached, or the connection broke before
	OfHost                  // this machine is short of something; nothing was sent
)

var originNames = [...]string{"job", "server", "network", "host"}

// String returns the origin in lower case.
func (o Origin) String() string { return nameOf(o, originNames[:], "origin") }

// Verdict is a Func's judgement of its attempt. The zero value is success.
type Verdict struct {
	// Class is what it means for the job.
	Class Class
	// Origin is, with class Transient or Permanent, where the error comes from. With class
	// Capacity, OfHost means that this process caused the error and has removed the cause
	// since. For example, the server refused a key that has been replaced meanwhile. The
	// law learns nothing from the attempt, and the job is sent again at once.
	Origin Origin
	// Absent means, with origin OfNetwork, that nothing listens at the server's address.
	// Before the first success there the server is taken to be out at once, rather than
	// after several jobs have failed.
	Absent bool
	// Alike names, with class Transient or Permanent, an error that all jobs meet where
	// the settings are wrong: two errors with the same name are the same verdict. It is
	// empty for an error that wrong settings don't cause.
	Alike string
	// Err is the reason, for every class but OK.
	Err error
	// Hint is what the server reported with the error. A RetryAfter is the job's least
	// wait after a capacity or transient error.
	Hint aimd.Hint
	// Weight is what the attempt weighed in the end, for gates; 0 means as estimated, or
	// nothing after a capacity error.
	Weight int64
	// Output is the length of the reply, such as its tokens, or 0 if it is unknown. Laws
	// use it to tell long replies from slow ones.
	Output int64
	// Unsent means, with origin OfNetwork, that the request was not sent, so that it
	// cannot have been paid for; with class Fatal or Cancelled, that nothing was sent:
	// the attempt does not count and the law learns nothing from it. With class Fatal it
	// pauses the pool whichever server it was meant for, with Config.FailOnFatal as well.
	Unsent bool
}

// void reports whether the attempt is no evidence about the server, because nothing was
// sent.
func (v *Verdict) void() bool {
	return v.Unsent && (v.Class == Fatal || v.Class == Cancelled) || v.Origin == OfHost && (v.failed() || v.Class == Capacity)
}

func (v *Verdict) failed() bool { return v.Class == Transient || v.Class == Permanent }

// sign returns what the end of the attempt shows about the server.
func (v *Verdict) sign() health.Sign {
	switch {
	case v.void() || v.Class == Cancelled || isPanic(v.Err):
		return health.NoEvidence
	case v.Class == OK:
		return health.Success
	case v.Class == Capacity:
		return health.Refused
	case v.failed() && v.Origin == OfServer:
		return health.Sick
	case v.failed() && v.Origin == OfNetwork:
		return health.Unreached
	default:
		return health.Answered
	}
}

// health returns the verdict as far as the server's health is concerned.
func (v *Verdict) health() health.Verdict {
	return health.Verdict{
		Sign: v.sign(), Final: v.Class == Permanent, Unsent: v.Unsent, Absent: v.Absent,
		Alike: v.Alike, Err: v.Err,
	}
}

// Attempt describes to a Func the attempt that it makes.
type Attempt struct {
	// Number counts all attempts at the job from 1, this one included, whatever became of
	// them, but for those that do not count (see [Verdict.Unsent]).
	Number int
	// Server is the server to call: 0 is the first one, n the n-th fallback.
	Server int
	// Failures is the number of failures that count against the job at the server where it
	// waits. Failures in doubt are not among them.
	Failures int
	// CapacityRetries is the number of attempts before this one that met a capacity error.
	CapacityRetries int
	// Probe is set while the pool is paused or the server out: this attempt finds out
	// whether the cause has been fixed.
	Probe bool
	// DispatchDelay is the law's delay between dispatches at this one.
	DispatchDelay time.Duration
	// Belief is what the law believes about the server at this one.
	Belief aimd.Belief
	// Throttled is the pool's [Stats.ThrottleTime] at this one.
	Throttled time.Duration
	// Queued is the instant at which the running pool took the job up.
	Queued time.Time
	// Dispatched is the instant at which this attempt was given its slot.
	Dispatched time.Time
}

// Result is what became of a job.
type Result[In, Out any] struct {
	// In is the job, as it was submitted.
	In In
	// Out is what the last call returned; the zero value if none did.
	Out Out
	// Err is nil when the job succeeded. Otherwise it is the last verdict's error, or
	// wraps ErrHandedBack, ErrRowTimeout, ErrOutage or ErrPaused.
	Err error
	// Class is the class of the last verdict, or Cancelled for a job that was handed back.
	// With ErrOutage it is Transient. With ErrPaused alone it is Fatal.
	Class Class
	// Attempts counts the calls made for the job, apart from CapacityRetries.
	Attempts int
	// CapacityRetries counts the calls that met a capacity error.
	CapacityRetries int
	// Queued is the instant at which the running pool took the job up.
	Queued time.Time
	// Started is the instant of the first attempt. It is zero if there was none.
	Started time.Time
	// Finished is the instant at which the job had its last verdict, or was given up.
	Finished time.Time
	// Stats are the pool's statistics at that moment, this job counted in.
	Stats Stats
}
