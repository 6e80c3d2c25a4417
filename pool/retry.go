package pool

import "github.com/llm-stage/stage/internal/retry"

// RetryConfig bounds the attempts at a job that meets transient errors and spreads them over time: MaxAttempts, of which
// each is followed by a wait between 0 and BaseDelay × BackoffFactor^(n-1) after the n-th, at most MaxDelay. The zero
// value is not valid: start from [DefaultRetry].
type RetryConfig = retry.Config

// DefaultRetry returns 3 attempts with a first wait of up to 2 s, doubled after each error and capped at a minute.
func DefaultRetry() RetryConfig { return retry.Default() }
