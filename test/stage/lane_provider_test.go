package stage_test

import (
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/ops/verify"
)

// llmConfig is how the provider behaves: a fifth of its batches expires, a twentieth of the lines fails.
func (s *laneSim) llmConfig() llmtest.Config {
	return llmtest.Config{
		Seed: s.seed,
		Batches: batches.Config{
			Delay: batchDelay, Expire: .2, Fail: map[int]float64{400: .01, 429: .02, 500: .015, 503: .005}, Missing: .003, Doubled: .005, Foreign: .003, Torn: .002,
			LoseCreate: .1, ListLag: 5 * time.Second, Hidden: 3 * time.Second, BadGateway: .1, CutContent: .1, CancelDelay: time.Minute,
		},
		Script: func(c llmtest.Call) *llmtest.Step {
			s.call(c)
			return nil
		},
	}
}

// checkBilling checks by the provider's own count that no batch was submitted twice, and no line billed twice.
func (s *laneSim) checkBilling(report *verify.Report) {
	s.t.Helper()
	twice, first := 0, make(map[string]int)
	for id, n := range s.llm.Batches().Billed(nil) {
		if n > 1 {
			if twice++; twice <= 5 {
				s.t.Errorf("line %s was billed %d times", id, n)
			}
		}
	}
	all := s.llm.Batches().Batches()
	for _, b := range all {
		first[b.First]++
	}
	again := len(all) - len(first)
	if again > 0 {
		s.t.Errorf("%d of %d batches were submitted twice", again, len(all))
	}
	if d := report.Batches.Doubled; d > s.done["kill late create"] || d > 0 && s.provider != "anthropic" {
		s.t.Errorf("%d batches turned up after they had been given up, want none but where a creation was under way when its process died", d)
	}
	s.t.Logf("the provider's count: %+v, %d lines billed twice, %d batches submitted twice", s.llm.Batches().Stats(), twice, again)
}
