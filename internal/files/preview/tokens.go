package preview

import (
	"fmt"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/executor"
)

// sizes estimates the tokens of the prompts of calls, by their bytes.
type sizes struct {
	calls int64
	bytes int64 // of all prompts, including each for each of them
	each  int   // bytes that are sent along with each prompt: system prompt and schema
	media int64 // tokens of pictures, documents and sounds
}

func newSizes(p *executor.Prompt) sizes {
	s := sizes{each: len(p.Base.System)}
	if p.Base.Schema != nil {
		s.each += len(p.Base.Schema.Source())
	}
	return s
}

func (s *sizes) add(prompt rendered) {
	s.calls++
	s.bytes += int64(len(prompt.text) + s.each)
	s.media += prompt.mediaTokens
}

func (s *sizes) tokens() int64 { return s.bytes/call.BytesPerToken + s.media }

// text is the estimate as dry runs and try print it.
func (s *sizes) text() string { return fmt.Sprintf("about %d prompt tokens", s.tokens()) }
