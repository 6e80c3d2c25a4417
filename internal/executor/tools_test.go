package executor

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/schema"
)

// A reply in the journal is paid for: it serves whatever is kept now, and a schema is not applied to one that calls tools.
func TestAReplyOfTheJournalServesWhateverIsKeptNow(t *testing.T) {
	object := stagetest.Value(schema.Parse([]byte(`{"type":"object"}`), "schema"))(t)
	reasoned := map[string]json.RawMessage{"reasoning": json.RawMessage(`"why"`)}
	called := map[string]json.RawMessage{"tool_calls": json.RawMessage(`[{"id":"c","name":"f","arguments":{}}]`)}
	for name, c := range map[string]struct {
		then, now llm.Keep
		text      string
		kept      map[string]json.RawMessage
		schema    *schema.Schema
		want      string // of its result, behind the model
	}{
		"more is kept":                    {llm.KeepReasoning, llm.KeepReasoning | llm.KeepID, "hi", reasoned, nil, `"m","F_reasoning":"why","F_id":null}`},
		"less is kept":                    {llm.KeepReasoning, 0, "hi", reasoned, nil, `"m"}`},
		"kept by an earlier version":      {0, llm.KeepReasoning, "hi", nil, nil, `"m","F_reasoning":null}`},
		"a call where a schema is":        {llm.KeepToolCalls, llm.KeepToolCalls, "", called, object, `"m","F_tool_calls":[{"id":"c","name":"f","arguments":{}}]}`},
		"a value that is beside no calls": {llm.KeepToolCalls, llm.KeepToolCalls, `{"a":1}`, nil, object, `"m","F_tool_calls":null}`},
	} {
		promptOf := func(keep llm.Keep) *Prompt {
			p := &Prompt{schema: c.schema, format: stagetest.Value(row.NewFormat("F", row.Provenance{}))(t), llm: &config.LLMConfig{}}
			p.format.Keep = keep
			return p
		}
		then, now := promptOf(c.then), promptOf(c.now)
		j := &job{row: &consumer.Row{MaxBodyBytes: 1 << 20}, parsed: noMembers}
		a := &answer{Text: c.text, Model: "m", Kept: c.kept}
		body, _, err := then.result(j, a)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		j.row.Kept = &consumer.Kept{Reply: consumer.Reply{Body: body, Form: then.form(a)}}
		var reply consumer.Reply
		if ok := now.successAgain(j, &reply); !ok || !strings.HasSuffix(string(reply.Body), c.want) {
			t.Errorf("%s: %v, got %s\nwant … %s", name, ok, reply.Body, c.want)
		}
	}
}

// A stored reply without a part that is wanted now does not serve: the call that follows stores it with the part.
func TestAStoredReplyServesOnlyWithAllPartsThatAreWanted(t *testing.T) {
	a := &answer{Text: "hi", Kept: map[string]json.RawMessage{"reasoning": json.RawMessage("null"), "id": json.RawMessage(`"1"`)}}
	for parts, want := range map[llm.Keep]bool{
		0: true, llm.KeepReasoning: true, llm.KeepID | llm.KeepReasoning: true, llm.KeepID | llm.KeepRaw: false,
	} {
		if got := a.serves(parts); got != want {
			t.Errorf("parts %b: %v", parts, got)
		}
	}
}

func TestReasoningThatOnlyTheSchemaTellsApartIsKept(t *testing.T) {
	p := &Prompt{schema: stagetest.Value(schema.Parse([]byte(`{"type":"object"}`), "schema"))(t)}
	for text, want := range map[string]string{
		"It is angry.\n</think>\n{}": `"It is angry."`,
		"</think>{}":                 "null",
		`{"a":"</think>"}`:           "null",
		"no value":                   "null",
	} {
		a := &answer{Text: text, Kept: map[string]json.RawMessage{"reasoning": json.RawMessage("null")}}
		p.findReasoning(a)
		if got := string(a.Kept["reasoning"]); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestWhatTheExtraBodyAsksForAndNothingKeepsIsNamed(t *testing.T) {
	for _, c := range []struct {
		provider, body string
		keep           llm.Keep
		want           []string // parts
	}{
		{"openai", `{}`, 0, nil},
		{"openai", `{"logprobs":false,"top_logprobs":0,"temperature":1}`, 0, nil},
		{"openai", `{"logprobs":true,"top_logprobs":2}`, 0, []string{"logprobs"}},
		{"openai", `{"logprobs":true}`, llm.KeepLogprobs, nil},
		{"openai", `{"web_search_options":{"user_location":null}}`, 0, []string{"citations"}},
		{"openai-responses", `{"include":["message.output_text.logprobs"],"reasoning":{"effort":"low"}}`, 0, []string{"logprobs"}},
		{"openai-responses", `{"reasoning":{"effort":"low","summary":"auto"},"tools":[{"type":"web_search"},{"type":"function","name":"f"}]}`, 0, []string{"reasoning", "tool_calls", "citations"}},
		{"openrouter", `{"reasoning":{"effort":"low"}}`, 0, []string{"reasoning"}},
		{"openrouter", `{"reasoning":{"exclude":true}}`, 0, nil},
		{"anthropic", `{"thinking":{"type":"enabled","budget_tokens":1024}}`, 0, []string{"reasoning"}},
		{"anthropic", `{"thinking":{"type":"disabled"}}`, 0, nil},
		{"gemini", `{"generationConfig":{"responseLogprobs":true,"thinkingConfig":{"includeThoughts":true}},"tools":[{"googleSearch":{}}]}`, 0, []string{"logprobs", "reasoning", "citations"}},
		{"bedrock", `{"additionalModelRequestFields":{"thinking":{"type":"adaptive"}},"toolConfig":{"tools":[{"toolSpec":{"name":"f"}},{"systemTool":{"name":"nova_grounding"}}]}}`, 0, []string{"reasoning", "tool_calls", "citations"}},
		{"bedrock", `{"additionalModelRequestFields":{"reasoningConfig":{"type":"disabled"}}}`, 0, nil},
	} {
		p := &Prompt{llm: &config.LLMConfig{Provider: c.provider}, Base: llm.Request{ExtraBody: json.RawMessage(c.body), Keep: c.keep}}
		notes := p.KeepNotes()
		for _, part := range c.want {
			if !strings.Contains(strings.Join(notes, "\n"), "add "+part+" to STAGE_RESPONSE_KEEP") {
				t.Errorf("%s: %v does not name %s", c.body, notes, part)
			}
		}
		if len(notes) != len(c.want) {
			t.Errorf("%s: %v, want %v", c.body, notes, c.want)
		}
	}
}
