// Package aimd decides when the next attempt may go to a server whose capacity is unknown
// and changes.
//
// The idea is TCP's: additive increase, multiplicative decrease. A capacity error
// multiplies the delay between dispatches, a success takes a fixed step off it, so a
// caller backs off fast and speeds up slowly instead of oscillating at the limit.
//
// [Classic] is that idea alone. [Adaptive] stays closer to the server's true capacity: it
// keeps one belief about the server (its limit, refusals at random, its slots, and who
// else uses it), and the rate follows from that. Both are laws built for a pacer: it
// reports every attempt and its outcome, and they decide at which instant the next one
// may go.
//
// The package is pure. It starts no goroutine and reads no clock: every instant is an
// argument, so that the laws run the same in production, in tests and in simulations.
//
//	law, err := aimd.NewClassic(aimd.Default())
//	...
//	waitUntil(law.Next(now(), 0))
//	ticket := law.Sent(now(), 1)
//	if overloaded(call()) { law.Rejected(now(), ticket, aimd.Hint{}) } else { law.Accepted(now(), ticket) }
//
// Other programs may rely on both laws with their settings, [Ticket], [Hint] and [Stats].
// The rates that a law finds may change with any release, and so may the names that only
// package fleet uses: Epoch, Estimate, Idle, Limit, Rate, Resume and Ticket.Turn.
package aimd

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config holds the four settings that every law here obeys. The zero value is not valid;
// start from [Default].
type Config struct {
	// MinDelay is the floor of the delay between two dispatches, at least 0. At 0 a law
	// that meets no errors dispatches without delay.
	MinDelay time.Duration
	// MaxDelay is the ceiling of that delay, at least MinDelay.
	MaxDelay time.Duration
	// Multiplier is the factor by which a capacity error lengthens the delay, above 1 and
	// finite.
	Multiplier float64
	// RecoveryStep is subtracted from the delay by each success. It is also the first
	// delay after none: with 25 ms and a multiplier of 2, two errors give 25 ms and 50
	// ms, and one success goes back to 25 ms. It is at least 0, and above 0 if MinDelay
	// is 0, because no error would otherwise ever lead to a delay.
	RecoveryStep time.Duration
}

// Default returns the settings that suit most servers: no floor, at most 5 s, times 2,
// minus 50 ms.
func Default() Config {
	return Config{MaxDelay: 5 * time.Second, Multiplier: 2, RecoveryStep: 50 * time.Millisecond}
}

// validate returns nil, or all problems of c joined into one error, each naming its field.
func (c Config) validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf("aimd: "+format, args...))
		}
	}
	check(c.MinDelay >= 0, "MinDelay is %v, must be at least 0", c.MinDelay)
	check(c.MaxDelay >= c.MinDelay, "MaxDelay is %v, must be at least MinDelay (%v)", c.MaxDelay, c.MinDelay)
	check(c.Multiplier > 1 && !math.IsInf(c.Multiplier, 0), "Multiplier is %v, must be above 1 and finite", c.Multiplier) // false for NaN
	check(c.RecoveryStep >= 0, "RecoveryStep is %v, must be at least 0", c.RecoveryStep)
	check(c.RecoveryStep != 0 || c.MinDelay != 0, "RecoveryStep is 0, must be above 0 where MinDelay is 0, else the delay stays 0 for ever")
	return errors.Join(problems...)
}

// Stats are the counters of a law since it was made.
type Stats struct {
	// CapacityRetries counts capacity errors. Each of them leads to one retry.
	CapacityRetries uint64
	// Successes counts attempts that the server accepted.
	Successes uint64
	// PeakDelay is the longest delay so far, at least CurrentDelay.
	PeakDelay time.Duration
	// CurrentDelay is the delay between dispatches right now.
	CurrentDelay time.Duration
	// Concurrency is the number of attempts in flight that the law has found the server
	// to make use of, where the server lets more than that wait; 0 means no such number
	// is known, or the law does not look for one.
	Concurrency int
	// PausedUntil is when a pause that the server asked for ends, as of the last instant
	// that was passed to the law; zero if there is none, or if the law has no pauses.
	PausedUntil time.Time
	// PauseReason is the hint that caused that pause; empty where PausedUntil is zero.
	PauseReason PauseReason
	// Belief is what the law believes about the server; the zero value of a law that does
	// not measure it.
	Belief Belief
}

// PauseReason is the kind of hint that made a law pause.
type PauseReason string

// The reasons.
const (
	// PauseRetryAfter: the server sent a Retry-After with several refusals in a row.
	PauseRetryAfter PauseReason = "retry_after"
	// PauseLimitReset: the server reported that no requests remain until its limit is
	// reset.
	PauseLimitReset PauseReason = "limit_reset"
)

// Ticket is what a law issues for an attempt when it is sent and receives with the
// verdict, so that it can judge the verdict by its state at that time. Use it once and
// with the law that made it.
type Ticket struct {
	// Sent is the instant at which the attempt went.
	Sent time.Time
	// InFlight is the number of attempts in flight from then on, this one included.
	InFlight int
	// Output is how long the reply is that the caller got, in a unit of its choice, such
	// as tokens; the caller sets it before Accepted. It is 0 if unknown.
	Output int64
	// Turn identifies the attempt for laws outside this package.
	Turn uint64

	mark mark // what Adaptive records
}

// Hint is what the server reported with a capacity error. The zero value: nothing.
type Hint struct {
	// RetryAfter is the least wait before this row's next attempt; 0 or less: not
	// reported. The caller delays the row. [Adaptive] delays all attempts by it, but in an
	// outage only.
	RetryAfter time.Duration
	// Remaining0 is set when the server reported that no requests remain before Reset has
	// passed.
	Remaining0 bool
	// Reset is the time until the server's limit is reset. It is used with Remaining0
	// only.
	Reset time.Duration
}
