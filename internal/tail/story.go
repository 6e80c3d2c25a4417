package tail

// StepKind is what happened to a row.
type StepKind string

// The kinds of steps.
const (
	StepQueued   StepKind = "queued"
	StepCall     StepKind = "call"
	StepFinished StepKind = "finished"
	StepWaited   StepKind = "waited"
	StepEmitted  StepKind = "emitted"
	StepOpen     StepKind = "open" // what is still to come
)
