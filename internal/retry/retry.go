// Package retry decides how often a call is repeated, and how long to wait before. Rows
// and batched prompts share it.
package retry

import (
	"fmt"
	"math"
	"time"
)

// Config bounds the attempts at a job and spreads them ("full jitter"): after the n-th
// error the job waits for a time uniform in [0, BaseDelay × BackoffFactor^(n-1)], the
// upper end capped at MaxDelay. The zero value is not valid; start from [Default].
type Config struct {
	// MaxAttempts is the number of attempts, the first included, that may fail; at least
	// 1.
	MaxAttempts int
	// BaseDelay is the longest wait after the first error, at least 0.
	BaseDelay time.Duration
	// BackoffFactor multiplies that with each further error, at least 1 and finite.
	BackoffFactor float64
	// MaxDelay caps the wait, at least 0.
	MaxDelay time.Duration
}

// Default returns 3 attempts with a first wait of up to 2 s, doubled after each error and
// capped at a minute.
func Default() Config {
	return Config{MaxAttempts: 3, BaseDelay: 2 * time.Second, BackoffFactor: 2, MaxDelay: time.Minute}
}

// Problems returns all problems of c. Each error begins with the name of the field.
func (c Config) Problems() (problems []error) {
	check := func(ok bool, name string, value any, must string) {
		if !ok {
			problems = append(problems, fmt.Errorf("%s is %v, must be %s", name, value, must))
		}
	}
	check(c.MaxAttempts >= 1, "MaxAttempts", c.MaxAttempts, "at least 1")
	check(c.BaseDelay >= 0, "BaseDelay", c.BaseDelay, "at least 0")
	check(c.BackoffFactor >= 1 && !math.IsInf(c.BackoffFactor, 0), "BackoffFactor", c.BackoffFactor, "at least 1 and finite") // false for NaN
	check(c.MaxDelay >= 0, "MaxDelay", c.MaxDelay, "at least 0")
	return problems
}

// Wait returns the wait after the n-th error, where u is uniform in [0, 1).
func (c Config) Wait(n int, u float64) time.Duration {
	if c.BaseDelay == 0 {
		return 0 // and not 0 times a power that may be infinite
	}
	longest := float64(c.BaseDelay) * math.Pow(c.BackoffFactor, float64(n-1))
	return time.Duration(u * min(longest, float64(c.MaxDelay)))
}
