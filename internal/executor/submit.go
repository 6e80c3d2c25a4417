package executor

import (
	"context"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
)

// submit hands jobs to the pool, except those that share the call of another. It does not
// block, even if the pool's queue has filled up since: a job kept here could not be
// recalled, and would block those of other partitions.
func (e *Executor) submit(ctx context.Context, jobs []*job) {
	for len(jobs) > 0 {
		j := jobs[0]
		jobs = jobs[1:]
		switch {
		case ctx.Err() != nil || !j.row.Wanted():
			e.giveBack(j)
		case e.share(j):
		case e.unaffordable(j):
		default:
			if err := e.Pool.Add(j, e.done); err != nil { // it has stopped
				e.done(result{In: j, Class: pool.Cancelled})
			}
		}
		if requeued := e.flights.takeRequeued(); len(requeued) > 0 {
			jobs = append(requeued, jobs...) // they are older
		}
	}
}

// unaffordable answers a row that names a model without a price where there is a cost
// ceiling.
func (e *Executor) unaffordable(j *job) bool {
	err := e.caller.Affordable(j.model)
	if err == nil {
		return false
	}
	r := e.uncalled(j)
	r.Err, r.Class = err, pooled.Judge(call.AsError(err), &llm.Exchange{}).Class
	e.finishFlight(r)
	e.answerError(j, err, r, "")
	return true
}
