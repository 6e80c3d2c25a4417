package consumer

// StepAheadRead is reached only where results are not in stream order, and not at every take-over.
const StepAheadRead = "ahead read"

// Steps are the steps of the protocol that a test may crash at, in the order of a term.
var Steps = []string{
	"claiming", "claimed", "setting back", "set back", StepAheadRead, "journal read", "taken", "answered", "kept", "appending",
	"appended", "acked", "purged", "drained", "handing over",
}

// WithHook returns a configuration whose consumer calls hook at each step, from two goroutines.
func WithHook(cfg Config, hook func(step string)) Config {
	cfg.hook = hook
	return cfg
}
