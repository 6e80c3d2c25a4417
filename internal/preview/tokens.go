package preview

import (
	"fmt"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
)

// sizes estimates the tokens of the prompts of calls, by their bytes.
type sizes struct {
	calls int64
	bytes int64 // of all prompts, with what is sent along with each
	each  int   // bytes sent along with each prompt: system prompt and schema
}

// newSizes returns the sizes of no calls yet.
func newSizes(p *executor.Prompt) sizes {
	s := sizes{each: len(p.Base.System)}
	if p.Base.Schema != nil {
		s.each += len(p.Base.Schema.Source())
	}
	return s
}

// add adds a call with the prompt.
func (s *sizes) add(prompt string) {
	s.calls++
	s.bytes += int64(len(prompt) + s.each)
}

// tokens estimates the prompt tokens of all calls.
func (s *sizes) tokens() int64 { return (s.bytes + call.BytesPerToken - 1) / call.BytesPerToken }

// text describes the estimate, of all calls and of each.
func (s *sizes) text(cfg *config.ForeachConfig) string {
	text := fmt.Sprintf("about %d prompt tokens", s.tokens())
	if s.calls < 2 {
		return text
	}
	one := "a row"
	if cfg.Field != "" {
		one = "an element"
	}
	each := s.calls * call.BytesPerToken
	return fmt.Sprintf("%s, %d %s", text, (s.bytes+each-1)/each, one)
}
