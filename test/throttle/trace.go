package throttle

import (
	"context"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// Trace is what happened in a run of one client with the adaptive law.
type Trace struct {
	Samples []Sample
	Calls   []Call
	rate    schedule
}

// Sample is the state of the law at an instant, in seconds since the beginning.
type Sample struct {
	At     float64
	PerSec float64 // the law's rate
	Phase  aimd.Phase
}

// Call is a call as it arrived at the server.
type Call struct {
	At       float64
	Accepted bool
}

// RunTraced is Run for one client with the adaptive law at a server whose rate follows a
// schedule. It returns all that happened.
func RunTraced(ctx context.Context, sc *Scenario, seed uint64) Trace {
	var tr Trace
	r := newRun(sc, seed)
	r.watch = func(law *aimd.Adaptive) {
		tr.Samples = append(tr.Samples, Sample{r.now(), float64(time.Second) / float64(law.Stats().CurrentDelay), law.Phase()})
	}
	r.do(ctx, Adaptive)
	for _, a := range r.arrivals {
		tr.Calls = append(tr.Calls, Call{a.at, a.accepted})
	}
	tr.rate = r.plan.server.(*bucket).rate
	return tr
}

// watched shows a law to watch after each thing that happens to it.
type watched struct {
	*aimd.Adaptive
	watch func(*aimd.Adaptive)
}

func (w watched) Next(now time.Time, inFlight int) time.Time {
	defer w.watch(w.Adaptive)
	return w.Adaptive.Next(now, inFlight)
}

func (w watched) Sent(now time.Time, inFlight int) aimd.Ticket {
	defer w.watch(w.Adaptive)
	return w.Adaptive.Sent(now, inFlight)
}

func (w watched) Rejected(now time.Time, t aimd.Ticket, h aimd.Hint) {
	defer w.watch(w.Adaptive)
	w.Adaptive.Rejected(now, t, h)
}
