package call

import "github.com/llm-stage/stage/llm"

// BytesPerToken is the rule of thumb for English text, for estimates before the provider
// has counted.
const BytesPerToken = 4

// EstimateTokens estimates the tokens of a call before it is made. It adds the request's
// tokens by its bytes, its media's by the provider's rule, and the most that the reply may
// have, if the request bounds that. For example, 4000 bytes with a max_tokens of 200 are
// 1200 tokens.
func EstimateTokens(p *llm.Prepared, r *llm.Request) int64 {
	tokens := promptTokens(p)
	if most := r.MaxTokens; most != nil {
		tokens += int64(*most)
	}
	return tokens
}

func promptTokens(p *llm.Prepared) int64 { return int64(len(p.Body))/BytesPerToken + p.MediaTokens }
