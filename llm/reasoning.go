package llm

import (
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// Servers that run a reasoning model without a reasoning parser leave its thoughts in the
// answer, in front of it:
//
//	<think>
//	The customer is angry, so …
//	</think>
//
//	{"mood": "bad"}
//
// The stage takes such a block off, for every wire format and for the lines of a batch,
// so that results, journal and dedupe store hold only the answer. The audit keeps the
// provider's bytes.

// reasoningTags are the names of the tags that begin and end a block of reasoning.
var reasoningTags = [...]string{"think", "thinking", "reasoning"}

// splitReasoning splits a reply that begins with a block of reasoning into the block's
// text and the answer behind it. Only the first closing tag counts: otherwise reasoning
// that mentions its own opening tag would never end. A block without a closing tag is
// reasoning to its end, as vLLM's and SGLang's parsers see it. found is false for any
// other reply, which is all answer.
func splitReasoning(text string) (reasoning, answer string, found bool) {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(text, jsonbytes.IsInvisible), "<")
	if !ok { // as nearly all are
		return "", text, false
	}
	for _, tag := range reasoningTags {
		if inner, ok := strings.CutPrefix(rest, tag+">"); ok {
			reasoning, answer, _ = strings.Cut(inner, "</"+tag+">")
			return strings.TrimFunc(reasoning, jsonbytes.IsInvisible),
				strings.TrimLeftFunc(answer, jsonbytes.IsInvisible), true
		}
	}
	return "", text, false
}

// ReasoningBefore returns the reasoning in front of an answer that satisfies a schema,
// where a chat template has taken the opening tag into the prompt, so that the reply
// begins in the middle of its reasoning. It is empty for any other reply.
func ReasoningBefore(s *schema.Schema, text string) string {
	answer, found := afterReasoning(text)
	if !found {
		return ""
	}
	if _, err := s.Validate(text); err == nil {
		return ""
	}
	before := strings.TrimSuffix(text, answer)
	return strings.TrimFunc(before[:strings.LastIndex(before, "</")], jsonbytes.IsInvisible)
}

// afterReasoning returns what follows the last closing tag of reasoning in a reply. It is
// for replies with a schema only, where the value that follows proves that the tag ends
// reasoning: some chat templates put the opening tag into the prompt, so the reply begins
// in the middle of the block. Without a schema a lone closing tag may be part of an answer,
// such as one that explains the tag.
func afterReasoning(text string) (answer string, found bool) {
	end := 0
	for _, tag := range reasoningTags {
		closing := "</" + tag + ">"
		if i := strings.LastIndex(text, closing); i >= 0 {
			end = max(end, i+len(closing))
		}
	}
	return text[end:], end > 0
}
