package pool

import (
	"fmt"
	"math"
	"time"
)

// RetryConfig bounds the attempts at a job that meets transient errors and spreads them: after the n-th such error
// the job waits a time uniform in [0, BaseDelay × BackoffFactor^(n-1)], that upper end being at most MaxDelay. The
// zero value is not valid; start from [DefaultRetry].
type RetryConfig struct {
	// MaxAttempts is the number of attempts, the first included, that may meet a transient error; at least 1.
	MaxAttempts int
	// BaseDelay is the longest wait after the first, at least 0.
	BaseDelay time.Duration
	// BackoffFactor is by how much that grows with each further one, at least 1 and finite.
	BackoffFactor float64
	// MaxDelay is the longest wait ever, at least 0.
	MaxDelay time.Duration
}

// DefaultRetry returns 3 attempts, the first wait up to 2 s, doubled after each, never more than a minute.
func DefaultRetry() RetryConfig {
	return RetryConfig{MaxAttempts: 3, BaseDelay: 2 * time.Second, BackoffFactor: 2, MaxDelay: time.Minute}
}

// Faults returns every fault of c. Each error begins with the name of the field.
func (c RetryConfig) Faults() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.MaxAttempts < 1 {
		fault("MaxAttempts is %d, must be at least 1", c.MaxAttempts)
	}
	if c.BaseDelay < 0 {
		fault("BaseDelay is %v, must be at least 0", c.BaseDelay)
	}
	if !(c.BackoffFactor >= 1) || math.IsInf(c.BackoffFactor, 0) { // so that NaN is a fault too
		fault("BackoffFactor is %v, must be at least 1 and finite", c.BackoffFactor)
	}
	if c.MaxDelay < 0 {
		fault("MaxDelay is %v, must be at least 0", c.MaxDelay)
	}
	return faults
}

// Wait returns the wait after the n-th error, where u is uniform in [0, 1).
func (c RetryConfig) Wait(n int, u float64) time.Duration {
	if c.BaseDelay == 0 {
		return 0 // and not 0 times a power that may be infinite
	}
	longest := float64(c.BaseDelay) * math.Pow(c.BackoffFactor, float64(n-1))
	return time.Duration(u * min(longest, float64(c.MaxDelay)))
}
