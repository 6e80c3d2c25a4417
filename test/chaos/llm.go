package main

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/llm-stage/stage/test/gateway"
)

const (
	// callTimeout is STAGE_LLM_TIMEOUT: how long a call that is never answered holds its
	// slot.
	callTimeout = 8 * time.Second
	// healingLLM is what an outage of the LLM may cost beyond its end: the next probe
	// goes within 1.25 s, and where the LLM was silent, calls that it never answers hold
	// all slots and the first row.
	healingLLM       = 2 * time.Second
	healingSilentLLM = callTimeout + healingLLM
	// outProbes is how many probes may go in an outage of any length beside one a second;
	// the waits between them grow.
	outProbes = 20
)

// takeLLMOut takes the LLM out for some seconds. No row may fail of it.
func (s *site) takeLLMOut(ctx context.Context, random *rand.Rand) error {
	trouble, d := gateway.Troubles[random.IntN(len(gateway.Troubles))], between(random, 200*time.Millisecond, 8*time.Second)
	if s.plan.chain {
		// As the first stage stands still, the later ones run dry, and the last row of
		// one is alone there.
		trouble = gateway.Refused
	}
	if !s.darkness.TryLock() {
		return errNotYet
	}
	defer s.darkness.Unlock()
	healing := healingLLM
	if trouble == gateway.Silent {
		healing = healingSilentLLM
	}
	began, starts := time.Now(), s.starts()
	s.watched.begin()
	defer func() {
		now := time.Now()
		s.watched.excuse(now.Add(healing))
		s.watched.end(now)
		s.llmWasOut(trouble, now.Sub(began), s.starts()-starts)
	}()
	if err := s.model.gate.Set(trouble); err != nil {
		return err
	}
	pause(ctx, d)
	s.notes.did(llmOut, "%s for %v", trouble, d.Round(time.Millisecond))
	return s.model.gate.Set(gateway.Open)
}

// llmWasOut adds what an outage of the LLM may cost. Refusal cuts the calls in flight,
// which are made again. The calls that meet an outage are, of each process, those by
// which it detects the outage (as many as it has slots, and some more) and probes.
func (s *site) llmWasOut(trouble gateway.State, lasted time.Duration, starts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if trouble == gateway.Refused {
		s.allowance += s.plan.inFlight() * len(s.stages) * min(s.plan.replicas, s.plan.partitions)
	}
	s.turnable += (len(s.replicas) + starts) * (2*s.plan.pool + outProbes + int(lasted.Seconds()))
	if s.plan.lane { // looks at batches, and retries
		s.turnable += (s.plan.partitions + starts) * laneOpen * (1 + 2*int(lasted/lanePoll))
	}
}

// starts is how many processes of the stage have been started.
func (s *site) starts() (sum int) {
	for _, r := range s.replicas {
		r.mu.Lock()
		sum += r.starts
		r.mu.Unlock()
	}
	return sum
}
