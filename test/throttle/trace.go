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
	share   schedule // of calls that are refused at random
}

// Sample is the state of the law at an instant, in seconds since the beginning.
type Sample struct {
	At     float64
	PerSec float64 // the law's rate
	Phase  aimd.Phase
	Belief aimd.Belief
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
		tr.Samples = append(tr.Samples, Sample{r.now(), float64(time.Second) / float64(law.Stats().CurrentDelay), law.Phase(), law.Stats().Belief})
	}
	r.do(ctx, Adaptive)
	for _, a := range r.arrivals {
		tr.Calls = append(tr.Calls, Call{a.at, a.accepted})
	}
	server := r.plan.server
	if n, ok := server.(*varyingNoise); ok {
		tr.share, server = n.share, n.server
	}
	tr.rate = server.(*bucket).rate
	return tr
}

// Believed is a server about which the law has much to learn: 20/s, behind which a fifth is
// refused at random after 40 s, and 10/s after 100 s, until the noise ends at 150 s.
func Believed() *Scenario {
	return scenario("20/s, then with noise, then 10/s", "", func(_ *Scenario, seed uint64) plan {
		limited := newBucket(schedule{{0, 20}, {100, 10}}, 5)
		return plan{server: &varyingNoise{server: limited, share: schedule{{0, 0}, {40, .2}, {150, 0}}, seed: seed}, ends: 200}
	})
}

// varyingNoise refuses a share of all calls that changes with time, before they reach the
// server.
type varyingNoise struct {
	server

	share schedule
	seed  uint64
}

func (n *varyingNoise) admit(now float64, id callID) bool {
	if id.rand(n.seed, 1).Float64() < n.share[n.share.at(now)].rate {
		return false
	}
	return n.server.admit(now, id)
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
