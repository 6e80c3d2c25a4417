package value

import "fmt"

// Costs in units of work; a byte costs one.
const (
	StepCost = 64
	TurnCost = 512 // of a loop, in addition to its steps
	ItemCost = 16
)

// Run counts the work that one rendering may still do.
type Run struct{ work, maxWork int }

// NewRun returns a run that may do so many units of work.
func NewRun(work int) Run { return Run{work: work, maxWork: work} }

// Spend pays n units of work. Everything that takes time or memory is paid for first.
func (r *Run) Spend(n int) error {
	if n > r.work {
		r.work = 0
		return fmt.Errorf("the limit of %d units of work is exceeded", r.maxWork)
	}
	r.work -= n
	return nil
}

// SpendTimes pays n times each units.
func (r *Run) SpendTimes(n, each int) error {
	if each > 0 && n > r.work/each {
		return r.Spend(r.work + 1)
	}
	return r.Spend(n * each)
}
