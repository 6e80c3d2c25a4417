package pool

import "github.com/llm-stage/stage/internal/retry"

// RetryConfig bounds the attempts at a job that meets transient errors and spreads them over time. It is not valid as
// its zero value: start from [DefaultRetry].
type RetryConfig = retry.Config

// DefaultRetry returns 3 attempts with a first wait of up to 2 s, doubled after each error and capped at a minute.
func DefaultRetry() RetryConfig { return retry.Default() }
