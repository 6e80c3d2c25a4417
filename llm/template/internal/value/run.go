package value

import "fmt"

// Costs in units of work; a byte costs one.
const (
	StepCost = 64
	TurnCost = 512 // of a loop, beside the steps in it
	ItemCost = 16
)

// Run is one rendering, as far as operations know it: the work that is left to it.
type Run struct{ work, maxWork int }

// NewRun returns a rendering of so much work.
func NewRun(work int) Run { return Run{work: work, maxWork: work} }

// Spend pays for n units of work. Everything that takes time or memory does so through
// it, before it is done.
func (r *Run) Spend(n int) error {
	if n > r.work {
		r.work = 0
		return fmt.Errorf("the limit of %d units of work is exceeded", r.maxWork)
	}
	r.work -= n
	return nil
}

// SpendTimes pays for n things that cost each.
func (r *Run) SpendTimes(n, each int) error {
	if each > 0 && n > r.work/each {
		return r.Spend(r.work + 1)
	}
	return r.Spend(n * each)
}
