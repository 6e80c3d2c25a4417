//go:build long && !race

package stage_test

import (
	"flag"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/chain"
)

var makespanRows = flag.Int("makespan.rows", 200, "rows of each makespan")

// makespanMost is how much longer than its slowest stage alone a chain may take.
const makespanMost = 1.1

// TestAChainTakesAsLongAsItsSlowestStage runs each stage alone, with all its rows there from the start, and then all
// three together, and compares the times: a chain works as a pipeline, so only its first and last rows wait for others.
//
//	go test ./test/stage -run '^TestAChainTakesAsLongAsItsSlowestStage$' -v -makespan.rows 2000
func TestAChainTakesAsLongAsItsSlowestStage(t *testing.T) {
	for _, c := range []struct {
		name  string
		calls [chain.Stages]time.Duration // how long a call of each stage takes in the median
		keep  bool
	}{
		{"a is the slowest", [chain.Stages]time.Duration{6 * time.Second, 300 * time.Millisecond, time.Second}, true},
		{"b is the slowest", [chain.Stages]time.Duration{time.Second, 2 * time.Second, time.Second}, true},
		{"b is the slowest, rows fail", [chain.Stages]time.Duration{time.Second, 2 * time.Second, time.Second}, false},
		{"c is the slowest", [chain.Stages]time.Duration{time.Second, 300 * time.Millisecond, 6 * time.Second}, true},
		{"all are equally slow", [chain.Stages]time.Duration{4 * time.Second, time.Second, 4 * time.Second}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := chain.Pipeline{Seed: 1, Keep: c.keep}
			var alone [chain.Stages]time.Duration
			stagetest.Virtual(t, func(t *testing.T) {
				s := newMakespan(t, p, c.calls)
				for stage := range chain.Stages {
					alone[stage] = s.run(stage)
				}
				s.check()
			})
			var together time.Duration
			stagetest.Virtual(t, func(t *testing.T) {
				s := newMakespan(t, p, c.calls)
				together = s.run(chain.A, chain.B, chain.C)
				s.check()
			})
			slowest := max(alone[chain.A], alone[chain.B], alone[chain.C])
			ratio := together.Seconds() / slowest.Seconds()
			round := func(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
			t.Logf("| %s | %d | %v | %v | %v | %v | %.3f |", c.name, *makespanRows, round(alone[chain.A]), round(alone[chain.B]), round(alone[chain.C]), round(together), ratio)
			if ratio > makespanMost {
				t.Errorf("the chain took %v, %.3f times its slowest stage (%v); want %v at most", together, ratio, slowest, makespanMost)
			}
		})
	}
}

// makespan measures how long stages take.
type makespan struct{ *chainSite }

// newMakespan returns a chain with all its rows loaded. How long a call takes depends on its prompt alone.
func newMakespan(t *testing.T, p chain.Pipeline, calls [chain.Stages]time.Duration) *makespan {
	t.Helper()
	s := &makespan{}
	s.chainSite = newChainSite(t, p, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		step := s.counter.Script(c)
		ask, err := chain.Parse(c.Prompt)
		if err != nil {
			return step
		}
		if step == nil {
			step = &llmtest.Step{}
		}
		step.Delay = time.Duration(float64(calls[ask.Stage]) * p.Spread(ask))
		return step
	}})
	s.vars["STAGE_POOL_SIZE"], s.vars["STAGE_WINDOW"] = "4", "256"
	delete(s.vars, "STAGE_JOURNAL_AFTER")
	s.load(*makespanRows)
	return s
}

// run runs stages until the last of them has a result of each row, and returns how long that took.
func (s *makespan) run(stages ...int) time.Duration {
	s.t.Helper()
	began := time.Now()
	for _, stage := range stages {
		s.start(stage)
	}
	last := stages[len(stages)-1]
	s.until("the results of "+chain.Name(last), func() bool { return s.stored(last) >= s.rows })
	s.stop()
	stream := stagetest.Value(s.js.Stream(s.t.Context(), "RESULTS"))(s.t)
	end := stagetest.Value(stream.GetLastMsgForSubject(s.t.Context(), "results."+chain.Name(last)+".0.rows"))(s.t)
	return end.Time.Sub(began)
}
