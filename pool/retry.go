package pool

import "github.com/llm-stage/stage/internal/retry"

// RetryConfig bounds the attempts at a job that meets transient errors and spreads them over time. MaxAttempts, at least
// 1, is the number of attempts, the first included, that may meet such an error. After the n-th one the job waits for a
// time uniform in [0, BaseDelay × BackoffFactor^(n-1)], the upper end capped at MaxDelay; delays are at least 0, the
// factor is at least 1 and finite. The zero value is not valid: start from [DefaultRetry].
type RetryConfig = retry.Config

// DefaultRetry returns 3 attempts with a first wait of up to 2 s, doubled after each error and capped at a minute.
func DefaultRetry() RetryConfig { return retry.Default() }
