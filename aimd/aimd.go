// Package aimd decides when the next attempt may go to a server whose capacity is unknown and changes.
//
// The idea is TCP's: additive increase, multiplicative decrease. A capacity error multiplies the delay between
// dispatches, a success takes a fixed step off it, so a caller gives way fast and comes back slowly instead of
// riding the edge.
//
// [Throttle] is that state machine alone: a delay that goes up and down. [Classic] and [Adaptive] are laws built for
// a pacer: they are told of every attempt and its outcome, and say at which instant the next one may go.
//
// The package is pure. It starts no goroutine and reads no clock: every instant is an argument, so that the laws run
// the same in production, in tests and in simulations.
//
//	throttle, err := aimd.NewThrottle(aimd.Default())
//	...
//	wait(throttle.Delay())
//	if overloaded(call()) { throttle.CapacityError() } else { throttle.Success() }
package aimd

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config holds the four settings that every law here obeys. The zero value is not valid; start from [Default].
type Config struct {
	// MinDelay is the floor of the delay between two dispatches, at least 0. At 0 an untroubled law dispatches
	// without delay.
	MinDelay time.Duration
	// MaxDelay is the ceiling of that delay, at least MinDelay.
	MaxDelay time.Duration
	// Multiplier is the factor by which a capacity error lengthens the delay, above 1 and finite.
	Multiplier float64
	// RecoveryStep is what a success takes off the delay, and the first delay after an untroubled time. It is at
	// least 0, and above 0 where MinDelay is 0: else no error would ever lead to a delay.
	RecoveryStep time.Duration
}

// Default returns the settings that suit most servers: no floor, at most 5 s, times 2, minus 50 ms.
func Default() Config {
	return Config{MaxDelay: 5 * time.Second, Multiplier: 2, RecoveryStep: 50 * time.Millisecond}
}

// Validate returns nil, or every fault of c joined into one error, each naming its field.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("aimd: "+format, args...)) }
	if c.MinDelay < 0 {
		fault("MinDelay is %v, must be at least 0", c.MinDelay)
	}
	if c.MaxDelay < c.MinDelay {
		fault("MaxDelay is %v, must be at least MinDelay (%v)", c.MaxDelay, c.MinDelay)
	}
	if !(c.Multiplier > 1) || math.IsInf(c.Multiplier, 0) { // written so that NaN is a fault too
		fault("Multiplier is %v, must be above 1 and finite", c.Multiplier)
	}
	switch {
	case c.RecoveryStep < 0:
		fault("RecoveryStep is %v, must be at least 0", c.RecoveryStep)
	case c.RecoveryStep == 0 && c.MinDelay == 0:
		fault("RecoveryStep is 0, must be above 0 where MinDelay is 0, else the delay stays 0 for ever")
	}
	return errors.Join(faults...)
}

// Stats are the counters of a law since it was made or last reset.
type Stats struct {
	// CapacityRetries counts capacity errors. Each of them leads to one retry.
	CapacityRetries uint64
	// Successes counts attempts that the server accepted.
	Successes uint64
	// PeakDelay is the longest delay so far, at least CurrentDelay.
	PeakDelay time.Duration
	// CurrentDelay is the delay between dispatches right now.
	CurrentDelay time.Duration
	// PausedUntil is when a pause that the server asked for ends, as of the last instant that the law was told; zero:
	// there is none, or the law knows no pauses.
	PausedUntil time.Time
	// PauseReason says what the server told to cause that pause; empty where PausedUntil is zero.
	PauseReason PauseReason
}

// PauseReason is what a server told that made a law pause.
type PauseReason string

// The reasons.
const (
	// PauseRetryAfter: it said how long to wait, and refused again and again.
	PauseRetryAfter PauseReason = "retry_after"
	// PauseLimitReset: it said that no requests remain until its allowance is renewed.
	PauseLimitReset PauseReason = "limit_reset"
)

// Ticket is what a law hands out for an attempt when it is sent, and gets back with the verdict, so that it can
// judge the verdict by the state of affairs at that time. Use it once and with the law that made it.
type Ticket struct {
	// Sent is the instant at which the attempt went.
	Sent time.Time
	// InFlight is the number of attempts in the air from then on, this one included.
	InFlight int

	mark mark // what Adaptive notes
}

// Hint is what the server told along with a capacity error. The zero value says that it told nothing.
type Hint struct {
	// RetryAfter is the least wait before this row's next attempt; 0 or less: none was told. Keeping the row back
	// is the caller's part, a law only draws conclusions from it.
	RetryAfter time.Duration
	// Remaining0 is set when the server said that no requests remain before Reset has passed.
	Remaining0 bool
	// Reset is the time until the server's allowance is renewed. It has a meaning with Remaining0 only.
	Reset time.Duration
}
