package pool

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/internal/retry"
)

// Config sets up a pool.
type Config struct {
	// Size is the most calls in flight, at least 1. With 1 the pool is sequential: a job
	// starts when the one before it is done, or waits for another's verdict, or as a
	// probe in an outage.
	Size int
	// Law paces all attempts at the first server, see [Server.Law].
	Law Law
	// Gates bound these attempts in addition, see [Server.Gates].
	Gates []Gate
	// Fallbacks are called in the server's place, in this order: when a job's transient
	// attempts at the one before are used up, and after FallbackAfter. There may be none.
	Fallbacks []Server
	// FallbackAfter is how long a server may be without capacity, counted from the first
	// capacity error since its last success, or in a brown-out, or in an outage, before
	// jobs go to the next. A brown-out is a time in which jobs wait and the server lets
	// in less than a quarter of what is usual. The server still gets all jobs that it has
	// capacity for, and the others back when the cause is over. With 0, jobs wait for
	// capacity without limit, but go past an outage at once.
	FallbackAfter time.Duration
	// Retry bounds the attempts at a job that meets transient errors. It has no default:
	// see [DefaultRetry].
	Retry RetryConfig
	// RowTimeout is how long after its first attempt a job may still wait for another;
	// pauses do not count. A call in flight at that moment is left to finish. 0 means no
	// limit.
	RowTimeout time.Duration
	// QueueLimit is the number of waiting jobs, retries included, at which Submit blocks.
	// Retries may exceed it by Size. The default is 1024.
	QueueLimit int
	// FailOnFatal has a fatal error of the first server fail the job, or send it to the
	// next fallback, while the pool keeps running. Without it such an error pauses the
	// pool: nothing goes but one attempt in every ProbeInterval, until a verdict is not
	// fatal. It is made for the oldest job that has been attempted before, or for the next
	// new one if there is none.
	// A fatal error of a fallback does not pause: the fallback is skipped for
	// ProbeInterval, and the job continues as if its attempts there were used up. A fatal
	// verdict with [Verdict.Unsent] pauses in any case.
	FailOnFatal bool
	// ProbeInterval is the time between a fatal verdict and the next attempt while the
	// pool is paused, and the longest time between two attempts at a server in an outage.
	// The default is one minute.
	ProbeInterval time.Duration
	// OutageHold is how long an outage may hold a job before it fails with an error that
	// wraps [ErrOutage] and the latest one of the server; it counts from the job's
	// arrival (see [Traits]), the start of the outage or the end of a halt (see
	// [Pool.Halt]), whichever is latest. 0 means no limit.
	OutageHold time.Duration
	// Rand draws the jitter, uniform in [0, 1). It is called from one goroutine. The
	// default is the generator of math/rand/v2.
	Rand func() float64
	// OnPause is called with the reason when the pool pauses. It runs on the pool's
	// goroutine and must not block. It may be nil.
	OnPause func(Pause)
	// OnResume is called with the pause that is over. It runs on the pool's goroutine and
	// must not block. It may be nil.
	OnResume func(Pause)
	// OnShortage is called with what this machine is short of when that begins to bound
	// the calls in flight, and with nil when it no longer does. It runs on the pool's
	// goroutine and must not block. It may be nil.
	OnShortage func(error)
	// Unkept returns how many slots are taken by calls that have ended already, because
	// their replies are not stored yet. [Pool.Wake] must be called when there may be
	// fewer. It runs on the pool's goroutine and must not block. Without it none is taken.
	Unkept func() int
	// Expected reports whether the caller is about to add another job, where it adds jobs
	// only as [Pool.Room] allows. While there is doubt whether a job or the server is to
	// blame for a failure, such a job counts as one that may settle it. It runs on the
	// pool's goroutine and must not block. Without it no job is expected.
	Expected func() bool
	// OnRoom is called after jobs have left the queue, when [Pool.Room] may have grown.
	// It runs on the pool's goroutine and must not block. It may be nil.
	OnRoom func()
}

// Server is what a pool must know of a server that it calls.
type Server struct {
	// Law paces all attempts at the server. It belongs to this server of this pool, which
	// calls it from one goroutine. The default is [aimd.Classic] with its default
	// settings.
	Law Law
	// Gates bound the attempts in addition, whatever the server reports. Servers may
	// share them, and there may be none.
	Gates []Gate
}

// Gate bounds what goes out, beside a law that learns. For example, package gate has one
// for calls a minute. The pool calls a gate from one goroutine.
type Gate interface {
	// Next returns the instant at which an attempt of this weight may go, at once if it
	// is not after now. It may be far in the future; the pool calls Next again after each
	// event.
	Next(now time.Time, weight int64) time.Time
	// Sent is called when an attempt of this weight goes.
	Sent(now time.Time, weight int64)
	// Ended is called when the attempt has ended, with what it weighed in the end.
	Ended(now time.Time, weight, actual int64)
}

// Law decides when the next attempt may go. The laws of package aimd are documented there.
type Law interface {
	// Next returns the instant at which one attempt may go, at once if it is not after
	// now. It may be far in the future; the pool calls Next again after each event.
	Next(now time.Time, inFlight int) time.Time
	// Sent is called when an attempt goes, which inFlight counts.
	Sent(now time.Time, inFlight int) aimd.Ticket
	// Accepted is called when the attempt has met no capacity error.
	Accepted(now time.Time, t aimd.Ticket)
	// Rejected is called when the attempt has met a capacity error.
	Rejected(now time.Time, t aimd.Ticket, h aimd.Hint)
	// Dropped is called when the end of the attempt shows nothing about the capacity: it
	// was cut off, reached no server, or was refused for the sake of its job alone.
	Dropped(now time.Time, t aimd.Ticket)
	// Restart is called when what was learned about the server is void, for example after
	// an outage.
	Restart(now time.Time)
	// Stats returns the law's statistics.
	Stats() aimd.Stats
}

// validate returns all problems of c in one error.
func (c *Config) validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf("pool: "+format, args...))
		}
	}
	check(c.Size >= 1, "Size is %d, must be at least 1", c.Size)
	for _, err := range c.Retry.Problems() {
		check(false, "Retry.%w", err)
	}
	check(c.RowTimeout >= 0, "RowTimeout is %v, must be at least 0", c.RowTimeout)
	check(c.QueueLimit >= 0, "QueueLimit is %d, must be at least 1, or 0 for the default", c.QueueLimit)
	check(c.FallbackAfter >= 0, "FallbackAfter is %v, must be at least 0", c.FallbackAfter)
	check(c.OutageHold >= 0, "OutageHold is %v, must be at least 0", c.OutageHold)
	check(c.ProbeInterval >= 0, "ProbeInterval is %v, must be above 0, or 0 for the default", c.ProbeInterval)
	return errors.Join(problems...)
}

// complete fills in the defaults, and callbacks that do nothing.
func (c *Config) complete() {
	c.QueueLimit = cmp.Or(c.QueueLimit, 1024)
	c.ProbeInterval = cmp.Or(c.ProbeInterval, time.Minute)
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	if c.OnPause == nil {
		c.OnPause = func(Pause) {}
	}
	if c.OnResume == nil {
		c.OnResume = func(Pause) {}
	}
	if c.OnShortage == nil {
		c.OnShortage = func(error) {}
	}
	if c.Unkept == nil {
		c.Unkept = func() int { return 0 }
	}
	if c.Expected == nil {
		c.Expected = func() bool { return false }
	}
	if c.OnRoom == nil {
		c.OnRoom = func() {}
	}
}

// RetryConfig bounds the attempts at a job that meets transient errors and spreads them
// over time. MaxAttempts, at least 1, is the number of attempts, the first included, that
// may meet such an error. After the n-th one the job waits for a time uniform in [0,
// BaseDelay × BackoffFactor^(n-1)], the upper end capped at MaxDelay; delays are at least
// 0, the factor is at least 1 and finite. The zero value is not valid: start from
// [DefaultRetry].
type RetryConfig = retry.Config

// DefaultRetry returns 3 attempts with a first wait of up to 2 s, doubled after each
// error and capped at a minute.
func DefaultRetry() RetryConfig { return retry.Default() }
