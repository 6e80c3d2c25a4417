package call

import (
	"github.com/llm-stage/stage/llm"
)

// BytesPerToken is the rule of thumb for English text; a dry run says roughly.
const BytesPerToken = 4

func EstimateTokens(p *llm.Prepared, r *llm.Request) int64 {
	tokens := int64(len(p.Body)) / BytesPerToken
	if most := r.MaxTokens; most != nil {
		tokens += int64(*most)
	}
	return tokens
}
