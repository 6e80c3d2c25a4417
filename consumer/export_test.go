package consumer

// StepAheadRead is reached only where results are not in stream order, and not at every take-over.
const StepAheadRead = "ahead read"

// Steps are the steps of the protocol that a test may crash at, in the order of a term.
var Steps = []string{
	"claiming", "claimed", "setting back", "set back", StepAheadRead, "journal read", "fetching", "taken", "answered", "stowing", "stowed", "kept", "appending",
	"appended", "acked", "tidied", "purged", "drained", "handing over",
}

// WithHook returns a configuration whose consumer calls hook at each step, from two goroutines.
func WithHook(cfg Config, hook func(step string)) Config {
	cfg.hook = hook
	return cfg
}

// Started reports whether all was well once, after [Consumer.Run] has returned: a problem
// that a person must fix ends it only before.
func Started(c *Consumer) bool { return c.started }
