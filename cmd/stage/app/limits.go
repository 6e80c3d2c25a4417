package app

import (
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// newGates makes the limits of the configuration, for each target. Calls and tokens a minute are those of the process, so
// all targets share them; calls at a time are those of a provider.
func newGates(cfg *Config, targets []*target) [][]pool.Gate {
	var process []pool.Gate
	if cfg.LLM.RPM > 0 {
		process = append(process, pool.NewCallsPerMinute(cfg.LLM.RPM))
	}
	if cfg.LLM.TPM > 0 {
		process = append(process, pool.NewPerMinute(cfg.LLM.TPM))
	}
	providers := map[string]pool.Gate{}
	gates := make([][]pool.Gate, len(targets))
	for i, t := range targets {
		gates[i] = append(gates[i], process...)
		limit := cfg.LLM.MaxConcurrency[t.Provider()]
		if limit == 0 {
			continue
		}
		if providers[t.Provider()] == nil {
			providers[t.Provider()] = pool.NewAtMost(limit)
		}
		gates[i] = append(gates[i], providers[t.Provider()])
	}
	return gates
}

// Weight estimates the tokens of the job's next call: those of the request by its length, and as many as the reply may
// have. It implements [pool.Weighted]; the reply's usage corrects it.
func (j *job) Weight(int) int64 {
	if j.prepared == nil {
		return 0
	}
	return estimateTokens(j.prepared, &j.request)
}

func estimateTokens(p *llm.Prepared, r *llm.Request) int64 {
	tokens := int64(len(p.Body)) / bytesPerToken
	if most := r.MaxTokens; most != nil {
		tokens += int64(*most)
	}
	return tokens
}
