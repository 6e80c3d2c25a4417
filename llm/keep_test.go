package llm

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm/redact"
)

// What is kept goes into results, which are lines of files and rows of the next stage.
func TestPartsFitIntoALineAndARow(t *testing.T) {
	const all = 1<<len(keepNames) - 1
	deep := strings.Repeat("[", jsonbytes.DepthMax-2) + strings.Repeat("]", jsonbytes.DepthMax-2)
	body := `{
		"id": "1",
		"choices": [{"message": {"content": "a", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{\n \"a\":  1}"}},
			{"id": "d", "function": {"name": "g", "arguments": "` + deep + `"}}]}, "finish_reason": "tool_calls"}],
		"x": ` + deep + `
	}`
	r := must.Value(ParseReply(ChatCompletions{}, Known{Keep: all}, now, 200, nil, []byte(body)))(t)
	values := r.Values(all)
	if got, want := string(values["tool_calls"]), `[{"id":"c","name":"f","arguments":{"a":1}},{"id":"d","name":"g","arguments":"[[[`; !strings.HasPrefix(got, want) {
		t.Errorf("got %.90s, want %s", got, want)
	}
	if raw := values["raw"]; string(raw) != "null" { // as a result it would be no row
		t.Errorf("a reply that is nested too deep is kept: %.80s", raw)
	}
	r, err := ParseReply(ChatCompletions{}, Known{Keep: all}, now, 200, nil, []byte(strings.ReplaceAll(body, deep, "[ 1 ]")))
	if err != nil || strings.ContainsAny(string(r.Kept.Raw), "\n\t") || !json.Valid(r.Kept.Raw) {
		t.Errorf("raw: %v, %s", err, r.Kept.Raw)
	}
}

// A secret that a server repeats in any part gets into no result, even if only the parts of a text are it together.
func TestPartsHoldNoSecret(t *testing.T) {
	const secret = "sk-0123456789abcdef"
	const all = 1<<len(keepNames) - 1
	for provider, body := range map[string]string{
		OpenAI: `{"id":"` + secret + `","choices":[{"message":{"content":"a","reasoning":"<` + secret + `>","annotations":[{"type":"url_citation","url_citation":{"url":"https://host/` + secret + `"}}],
			"tool_calls":[{"id":"` + secret + `","function":{"name":"f","arguments":"{\"a\":\"sk-01234567\\u003889abcdef\"}"}}]},
			"logprobs":{"content":[{"token":"` + secret + `","logprob":-1}]},"finish_reason":"tool_calls"}]}`,
		Gemini: `{"candidates":[{"content":{"parts":[{"text":"is sk-01234567","thought":true},{"text":"89abcdef","thought":true},{"text":"a"}]},"finishReason":"STOP"}]}`,
	} {
		c := newClient(t, provider, ProviderConfig{APIKey: redact.NewSecret(secret), Model: "m"})
		p := must.Value(c.Prepare(&Request{Prompt: "hi", Keep: all}))(t)
		x := must.Value(c.ReadReply(p, 200, []byte(body)))(t)
		for name, value := range x.Reply.Values(all) {
			var text any
			if err := json.Unmarshal(value, &text); err != nil {
				t.Errorf("%s: %s: %v", provider, name, err)
			}
			if plain, _ := json.Marshal(text); strings.Contains(string(plain), secret) {
				t.Errorf("%s: %s: %s", provider, name, value)
			}
		}
	}
}

// Nothing is read, and nothing allocated, for what is not kept.
func TestPartsThatAreNotKeptCostNothing(t *testing.T) {
	body := []byte(`{"id":"1","model":"m","choices":[{"message":{"content":"Bad.","reasoning":"why","tool_calls":[]},"logprobs":{"content":[{"token":"a","logprob":-1}]},"finish_reason":"stop"}],"citations":["https://host"]}`)
	bare := []byte(`{"id":"1","model":"m","choices":[{"message":{"content":"Bad."},"finish_reason":"stop"}]}`)
	allocations := func(body []byte) float64 {
		return testing.AllocsPerRun(100, func() {
			if _, err := ParseReply(ChatCompletions{}, Known{}, now, 200, nil, body); err != nil {
				t.Fatal(err)
			}
		})
	}
	if got, want := allocations(body), allocations(bare); got != want {
		t.Errorf("%v allocations with parts, %v without", got, want)
	}
}
