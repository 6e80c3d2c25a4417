package app

import (
	"github.com/llm-stage/stage/llm"
)

// bytesPerToken is the rule of thumb for English text; a dry run says roughly.
const bytesPerToken = 4

func estimateTokens(p *llm.Prepared, r *llm.Request) int64 {
	tokens := int64(len(p.Body)) / bytesPerToken
	if most := r.MaxTokens; most != nil {
		tokens += int64(*most)
	}
	return tokens
}
