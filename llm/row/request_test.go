package row_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/llm-stage/stage/llm/row"
)

// documented are the members of CreateChatCompletionRequest in OpenAI's description 2.3.0,
// in its order, each with a value. test/sdk checks that the members of OpenAI's own library
// are among them.
var documented = []struct{ name, value string }{
	{"messages", `[{"role":"user","content":"other"}]`},
	{"model", `"gemini-2.5-flash"`},
	{"temperature", `0.5`},
	{"top_p", `0.9`},
	{"max_completion_tokens", `100`},
	{"max_tokens", `100`},
	{"stop", `["END"]`},
	{"seed", `7`},
	{"response_format", `{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}}}`},
	{"reasoning_effort", `"low"`},
	{"logprobs", `true`},
	{"top_logprobs", `2`},
	{"tools", `[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`},
	{"tool_choice", `"auto"`},
	{"stream", `true`},
	{"n", `2`},
	{"metadata", `{"a":"b"}`},
	{"user", `"u"`},
	{"safety_identifier", `"u"`},
	{"prompt_cache_key", `"k"`},
	{"prompt_cache_retention", `"24h"`},
	{"prompt_cache_options", `{"mode":"explicit"}`},
	{"service_tier", `"flex"`},
	{"modalities", `["text"]`},
	{"verbosity", `"low"`},
	{"frequency_penalty", `0.1`},
	{"presence_penalty", `0.1`},
	{"web_search_options", `{}`},
	{"audio", `{"voice":"v","format":"mp3"}`},
	{"store", `true`},
	{"moderation", `{"model":"m"}`},
	{"stream_options", `{"include_usage":true}`},
	{"logit_bias", `{"1":2}`},
	{"prediction", `{"type":"content","content":"c"}`},
	{"parallel_tool_calls", `false`},
	{"function_call", `"auto"`},
	{"functions", `[{"name":"f"}]`},
}

// wires are one provider of each wire format.
var wires = []struct{ provider, column string }{
	{llm.OpenAI, "chat completions"}, {llm.OpenAIResponses, "responses"}, {llm.Anthropic, "Anthropic"}, {llm.Gemini, "Gemini"}, {llm.Bedrock, "Bedrock"},
}

// aliases are providers whose models have the places of another one's. Vertex AI has the model in the path, and the
// schema of an answer of Anthropic's models in their system prompt.
var aliases = []struct{ provider, model, like, except string }{
	{llm.Vertex, "gemini-2.5-pro", llm.Gemini, ""},
	{llm.Vertex, "anthropic/claude", llm.Anthropic, "response_format"},
}

const membersOpen, membersClose = "<!-- members of a request, written by a test -->\n", "<!-- end of the members -->\n"

// TestMembersOfARequestHaveTheirPlaces writes, for each documented member and wire format,
// where the member goes, or that the row is refused by the member's name. There is nothing
// else: no member is dropped.
func TestMembersOfARequestHaveTheirPlaces(t *testing.T) {
	table := "| member | chat completions | responses | Anthropic | Gemini | Bedrock |\n| --- | --- | --- | --- | --- | --- |\n"
	for _, m := range documented {
		cells := make([]string, len(wires))
		for i, w := range wires {
			cells[i] = placesOf(t, w.provider, m.name, m.value)
		}
		table += fmt.Sprintf("| `%s` | %s |\n", m.name, strings.Join(cells, " | "))
		for _, a := range aliases {
			i := slices.IndexFunc(wires, func(w struct{ provider, column string }) bool { return w.provider == a.like })
			if m.name == "model" { // another format, perhaps
				continue
			}
			if got := placesOf(t, a.provider+": "+a.model, m.name, m.value); (got == cells[i]) == (m.name == a.except) {
				t.Errorf("%s of %s goes to %s, of %s to %s", m.name, a.model, got, a.like, cells[i])
			}
		}
	}
	const path = "../../docs/providers.md"
	text := must.Value(os.ReadFile(path))(t)
	before, rest, found := strings.Cut(string(text), membersOpen)
	_, after, closed := strings.Cut(rest, membersClose)
	if !found || !closed {
		t.Fatalf("%s has no place for the table of members", path)
	}
	golden.Check(t, path, before+membersOpen+table+membersClose+after)
}

// placesOf returns what becomes of a member: the places in the request that it changes.
func placesOf(t *testing.T, provider, name, value string) string {
	t.Helper()
	with, without := `{"`+name+`":`+value, `{"messages":[{"role":"user","content":"hi"}]`
	if name != "messages" {
		with += `,"messages":[{"role":"user","content":"hi"}]`
	}
	if name == "tool_choice" { // one among tools
		const tools = `,"tools":[{"type":"function","function":{"name":"f"}}]`
		with, without = with+tools, without+tools
	}
	base := prepared(t, provider, without+"}")
	if base.err != nil {
		t.Fatal(base.err)
	}
	got := prepared(t, provider, with+"}")
	if got.err != nil {
		failure, ok := errors.AsType[*llm.Error](got.err)
		if !ok || failure.Reason != llm.ReasonInvalidRow || !strings.Contains(failure.Error(), name) {
			t.Errorf("%s at %s: %v, want an invalid row that names it", name, provider, got.err)
		}
		return "–"
	}
	var places []string
	if got.target != base.target {
		places = append(places, "the address")
	}
	for _, leaf := range slices.Sorted(maps.Keys(got.leaves)) {
		if base.leaves[leaf] == got.leaves[leaf] {
			continue
		}
		steps := strings.Split(leaf, ".")
		place := steps[0]
		switch place {
		case "generationConfig", "reasoning", "output_config", "text", "inferenceConfig", "outputConfig", "toolConfig":
			place = strings.Join(steps[:2], ".")
		}
		if place = "`" + place + "`"; !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	if len(places) == 0 {
		t.Errorf("%s at %s changes nothing, and is not refused", name, provider)
	}
	return strings.Join(places, ", ")
}

// sent is what becomes of a request.
type sent struct {
	target string
	leaves map[string]string // values by the path that leads to them
	body   string
	err    error
}

// prepared reads a request out of a row and prepares it for a provider.
func prepared(t *testing.T, provider, request string) sent {
	t.Helper()
	provider, model, named := strings.Cut(provider, ": ")
	if !named {
		model = "m"
	}
	if provider == llm.Bedrock { // where a schema has a place with some models alone
		model = "anthropic.claude-sonnet-4-5"
	}
	client := must.Value(llm.NewProvider(provider, llm.ProviderConfig{Model: model, Region: "eu-central-1", Project: "p", APIKey: redact.NewSecret("sk-0123456789abcdef")}))(t)
	defer client.Close()
	parsed := must.Value(row.Parse([]byte(`{"body":` + request + `}`)))(t)
	var r llm.Request
	if err := new(row.Requests).Read(parsed, "body", &r); err != nil {
		return sent{err: err}
	}
	p, err := client.Prepare(&r)
	if err != nil {
		return sent{err: err}
	}
	s := sent{target: p.Target(), leaves: make(map[string]string), body: string(p.Body)}
	var value any
	if err := json.Unmarshal(p.Body, &value); err != nil {
		t.Fatalf("%s: %v: %s", provider, err, p.Body)
	}
	collect(s.leaves, "", value)
	return s
}

func collect(leaves map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			collect(leaves, strings.TrimPrefix(path+"."+name, "."), member)
		}
	case []any:
		for i, element := range v {
			collect(leaves, fmt.Sprint(path, ".", i), element)
		}
	}
	if text := fmt.Sprint(value); !strings.HasPrefix(text, "map[") && !strings.HasPrefix(text, "[") || text == "map[]" || text == "[]" {
		leaves[path] = text
	}
}

// What each wire format sends of options whose translation is more than a name.
func TestOptionsOfARowsRequest(t *testing.T) {
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	for _, tt := range []struct{ provider, request, want, err string }{
		{
			llm.OpenAI, `{"stop":"a","max_tokens":5,` + hi + `,"user":"u","top_k":3,"seed":null,"n":1,"stream":false}`,
			`{"model":"m",` + hi + `,"max_completion_tokens":5,"stop":["a"],"user":"u","top_k":3}`, "",
		},
		{llm.OpenAI, `{"response_format":{"type":"json_object"},` + hi + `}`, `{"model":"m",` + hi + `,"response_format":{"type":"json_object"}}`, ""},
		{
			llm.OpenAIResponses, `{"response_format":{"type":"json_object"},"logprobs":true,"reasoning_effort":"none",` + hi + `}`,
			`{"model":"m","input":[{"role":"user","content":"hi"}],"store":false,"reasoning":{"effort":"none"},"include":["message.output_text.logprobs"],"text":{"format":{"type":"json_object"}}}`, "",
		},
		{
			llm.OpenAIResponses, `{"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}},` + hi + `}`,
			`{"model":"m","input":[{"role":"user","content":"hi"}],"store":false,"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}}}`, "",
		},
		{
			llm.Anthropic, `{"reasoning_effort":"max","response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{},"additionalProperties":false}}},"logprobs":false,` + hi + `}`,
			`{"model":"m","max_tokens":4096,` + hi + `,"output_config":{"effort":"max","format":{"type":"json_schema","schema":{"type":"object","properties":{},"additionalProperties":false}}}}`, "",
		},
		{llm.Anthropic, `{"reasoning_effort":"minimal",` + hi + `}`, "", `anthropic: the request's member "reasoning_effort": minimal is not known to this provider`},
		{llm.Anthropic, `{"response_format":{"type":"json_object"},` + hi + `}`, "", `"response_format": this provider has nothing like json_object`},
		{llm.Anthropic, `{"top_k":null,"top_a":3,` + hi + `}`, "", `the request's member "top_a" has no place`},
		{
			llm.Gemini, `{"model":"gemini-2.5-pro","reasoning_effort":"medium","response_format":{"type":"json_object"},` + hi + `}`,
			`{"contents":[{"role":"user","parts":[{"text":"hi"}]}],"generationConfig":{"thinkingConfig":{"thinkingBudget":8192},"responseMimeType":"application/json"}}`, "",
		},
		{
			llm.Gemini, `{"model":"gemini-3-pro","reasoning_effort":"high",` + hi + `}`,
			`{"contents":[{"role":"user","parts":[{"text":"hi"}]}],"generationConfig":{"thinkingConfig":{"thinkingLevel":"HIGH"}}}`, "",
		},
		{llm.Gemini, `{"model":"gemini-3-pro","reasoning_effort":"none",` + hi + `}`, "", `"reasoning_effort": none is not known to the provider's model gemini-3-pro`},
		{llm.Gemini, `{"seed":2147483648,` + hi + `}`, "", `"seed": the seeds of this provider have 32 bits`},
		{llm.Gemini, `{"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"nothing"}}},` + hi + `}`, "", `"response_format": `},

		{
			llm.Bedrock, `{"model":"eu.anthropic.claude-sonnet-4-5-20250929-v1:0","reasoning_effort":"max","stop":["a"],"top_p":0.5,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{},"additionalProperties":false}}},"logprobs":false,` + hi + `}`,
			`{"inferenceConfig":{"stopSequences":["a"],"topP":0.5},"messages":[{"content":[{"text":"hi"}],"role":"user"}],"outputConfig":{"effort":"max","textFormat":{"structure":{"jsonSchema":{"name":"n","schema":"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}"}},"type":"json_schema"}}}`, "",
		},
		{llm.Bedrock, `{"model":"openai.gpt-oss-20b-1:0","reasoning_effort":"low",` + hi + `}`, `{"additionalModelRequestFields":{"reasoning_effort":"low"},"messages":[{"content":[{"text":"hi"}],"role":"user"}]}`, ""},
		{llm.Bedrock, `{"model":"openai.gpt-5.5","reasoning_effort":"none",` + hi + `}`, `{"additionalModelRequestFields":{"reasoning":{"effort":"none"}},"messages":[{"content":[{"text":"hi"}],"role":"user"}]}`, ""},
		{llm.Bedrock, `{"model":"us.amazon.nova-2-lite-v1:0","reasoning_effort":"low",` + hi + `}`, `{"additionalModelRequestFields":{"reasoningConfig":{"maxReasoningEffort":"low","type":"enabled"}},"messages":[{"content":[{"text":"hi"}],"role":"user"}]}`, ""},
		{llm.Bedrock, `{"model":"us.amazon.nova-2-lite-v1:0","reasoning_effort":"none",` + hi + `}`, `{"additionalModelRequestFields":{"reasoningConfig":{"type":"disabled"}},"messages":[{"content":[{"text":"hi"}],"role":"user"}]}`, ""},
		{llm.Bedrock, `{"reasoning_effort":"minimal",` + hi + `}`, "", `bedrock: the request's member "reasoning_effort": minimal is not known to the provider's model anthropic.claude-sonnet-4-5: there are low, medium, high, xhigh, max`},
		{llm.Bedrock, `{"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none",` + hi + `}`, `{"messages":[{"content":[{"text":"hi"}],"role":"user"}]}`, ""},
		{llm.Bedrock, `{"seed":7,` + hi + `}`, "", `the request's member "seed" has no place`},
		{llm.Bedrock, `{"response_format":{"type":"json_object"},` + hi + `}`, "", `"response_format": this provider has nothing like json_object`},
		{llm.Bedrock, `{"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"nothing"}}},` + hi + `}`, "", `"response_format": `},

		{llm.OpenAI, `{"messages":[{"role":"user","content":"hi"}],"messages":null}`, "", `the member "body.messages" must be a list of messages`},
		{llm.OpenAI, `{"input":"hi"}`, "", `the member "body.input" may not be set by a row`},
		{llm.OpenAI, `{}`, "", `the request "body": there is no list of messages`},
		{llm.OpenAI, `[]`, "", `there is no object "body": it must be a request of chat completions`},
		{llm.OpenAI, `{"Stream":true,` + hi + `}`, "", `the member "body.Stream" may not be set by a row`},
		{llm.OpenAI, `{"stream":true,` + hi + `}`, "", `the member "body.stream" is not supported`},
		{llm.OpenAI, `{"n":2,` + hi + `}`, "", `the member "body.n" must be 1`},
		{llm.OpenAI, `{"model":"",` + hi + `}`, "", `the member "body.model" must be the name of a model`},
		{llm.OpenAI, `{"max_tokens":1,"max_completion_tokens":1,` + hi + `}`, "", `max_tokens and max_completion_tokens are both set`},
		{llm.OpenAI, `{"max_tokens":0,` + hi + `}`, "", `the member "body.max_tokens" must be a whole number of at least 1`},
		{llm.OpenAI, `{"temperature":"1",` + hi + `}`, "", `the member "body.temperature" must be a number`},
		{llm.OpenAI, `{"stop":[1],` + hi + `}`, "", `the member "body.stop" must be a text or a list of texts`},
		{llm.OpenAI, `{"reasoning_effort":"lots",` + hi + `}`, "", `the member "body.reasoning_effort" must be one of none, minimal`},
		{llm.OpenAI, `{"response_format":{"type":"xml"},` + hi + `}`, "", `the member "body.response_format" has the type "xml"`},
	} {
		got := prepared(t, tt.provider, tt.request)
		if tt.err == "" && (got.err != nil || got.body != tt.want) || tt.err != "" && (got.err == nil || !strings.Contains(got.err.Error(), tt.err)) {
			t.Errorf("%s at %s:\ngot  %s, %v\nwant %s%s", tt.request, tt.provider, got.body, got.err, tt.want, tt.err)
		}
	}
}

// A row's request takes the place of what the settings say, and keeps the rest.
func TestARowsRequestGoesBeforeTheSettings(t *testing.T) {
	half, many := 0.5, 100
	for _, tt := range []struct{ request, want string }{
		{`{"messages":[{"role":"user","content":"hi"}]}`, "0.5 100 m plain"},
		{`{"messages":[{"role":"developer","content":"own"},{"role":"user","content":"hi"}],"temperature":0,"max_tokens":3,"model":"x"}`, "0 3 x "},
	} {
		parsed := must.Value(row.Parse([]byte(`{"body":` + tt.request + `}`)))(t)
		r := llm.Request{System: "plain", Temperature: &half, MaxTokens: &many, Model: "m"}
		must.Do(t, new(row.Requests).Read(parsed, "body", &r))
		if got := fmt.Sprintf("%v %v %v %v", *r.Temperature, *r.MaxTokens, r.Model, r.System); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.request, got, tt.want)
		}
	}
}

// A line of a batch file is answered only if it is a request of chat completions. Rows with
// some of its members are no such lines.
func TestLinesOfBatchFiles(t *testing.T) {
	for _, tt := range []struct{ members, err string }{
		{`"custom_id":"a","method":"POST","url":"/v1/chat/completions"`, ""},
		{`"custom_id":"a","method":"POST","url":"/chat/completions"`, ""},
		{`"url":"https://example.com"`, ""},
		{`"custom_id":"a","method":"POST","url":"/v1/embeddings"`, `the line's url is "/v1/embeddings": only requests to /v1/chat/completions`},
		{`"custom_id":"a","method":"GET","url":"/v1/chat/completions"`, `the line's method is "GET"`},
	} {
		parsed := must.Value(row.Parse([]byte(`{` + tt.members + `,"body":{"messages":[{"role":"user","content":"hi"}]}}`)))(t)
		err := new(row.Requests).Read(parsed, "body", new(llm.Request))
		if got := fmt.Sprint(err); tt.err == "" && err != nil || !strings.Contains(got, tt.err) {
			t.Errorf("%s: got %v, want %q", tt.members, err, tt.err)
		}
	}
}

// A history of calls and their answers, as each wire format writes it.
func TestHistoriesOfCalls(t *testing.T) {
	const calls = `[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},{"id":"c2","type":"function","function":{"name":"g","arguments":""}}]`
	const history = `[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":` + calls + `},{"role":"tool","tool_call_id":"c1","content":"one"},` +
		`{"role":"tool","tool_call_id":"c2","name":"g","content":[{"type":"text","text":"{\"two\":2}"}]},{"role":"assistant","content":"so","refusal":"no"},{"role":"user","content":"r"}]`
	for _, tt := range []struct{ provider, messages, want, err string }{
		{llm.OpenAI, history, `"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
			`{"role":"tool","content":"one","tool_call_id":"c1"},{"role":"tool","content":[{"type":"text","text":"{\"two\":2}"}],"name":"g","tool_call_id":"c2"},{"role":"assistant","content":"so","refusal":"no"},{"role":"user","content":"r"}]`, ""},
		{llm.OpenAIResponses, history, `"input":[{"role":"user","content":"q"},{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\": 1}"},{"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},` +
			`{"type":"function_call_output","call_id":"c1","output":"one"},{"type":"function_call_output","call_id":"c2","output":"{\"two\":2}"},{"role":"assistant","content":"so"},{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},{"role":"user","content":"r"}]`, ""},
		{llm.Anthropic, history, `"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"f","input":{"a": 1}},{"type":"tool_use","id":"c2","name":"g","input":{}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"one"},{"type":"tool_result","tool_use_id":"c2","content":"{\"two\":2}"}]},{"role":"assistant","content":[{"type":"text","text":"so"},{"type":"text","text":"no"}]},{"role":"user","content":"r"}]`, ""},
		{llm.Gemini, history, `"contents":[{"role":"user","parts":[{"text":"q"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{"a": 1}}},{"functionCall":{"name":"g","args":{}}}]},` +
			`{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"output":"one"}}},{"functionResponse":{"name":"g","response":{"two":2}}}]},{"role":"model","parts":[{"text":"so"},{"text":"no"}]},{"role":"user","parts":[{"text":"r"}]}]`, ""},

		{llm.Bedrock, history, "", `"messages[1]": this provider takes calls of tools and their answers only together with the tools`},
		{llm.Bedrock, history + `,"tools":[{"type":"function","function":{"name":"f"}}]`, `{"messages":[{"content":[{"text":"q"}],"role":"user"},{"content":[{"toolUse":{"input":{"a": 1},"name":"f","toolUseId":"c1"}},{"toolUse":{"input":{},"name":"g","toolUseId":"c2"}}],"role":"assistant"},` +
			`{"content":[{"toolResult":{"content":[{"text":"one"}],"toolUseId":"c1"}},{"toolResult":{"content":[{"text":"{\"two\":2}"}],"toolUseId":"c2"}}],"role":"user"},{"content":[{"text":"so"},{"text":"no"}],"role":"assistant"},{"content":[{"text":"r"}],"role":"user"}],"toolConfig":`, ""},
		{llm.Bedrock, history + `,"tool_choice":"none","tools":[{"type":"function","function":{"name":"f"}}]`, "", `"tool_choice": this provider can't forbid calls of the tools that the conversation has called`},
		{llm.Bedrock, `[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},{"role":"assistant","content":"c"}]`, `{"messages":[{"content":[{"text":"a"},{"text":"b"}],"role":"user"},{"content":[{"text":"c"}],"role":"assistant"}]}`, ""},
		{llm.Bedrock, `[{"role":"assistant","content":"a"},{"role":"user","content":"b"}]`, "", `the conversation begins with a message of the assistant`},
		{llm.Bedrock, `[{"role":"user","content":"a"},{"role":"system","content":"b"}]`, "", `message 2 is a system message behind others`},

		{llm.OpenAI, `[{"role":"user","content":"q","name":"ann"}]`, `"messages":[{"role":"user","content":"q","name":"ann"}]`, ""},
		{llm.Anthropic, `[{"role":"user","content":"q","name":"ann"}]`, "", `the request's member "messages[0].name" has no place`},
		{
			llm.OpenAI, `[{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"not JSON"}}]}]`,
			`"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"not JSON"}}]}]`, "",
		},
		{
			llm.Anthropic, `[{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"not JSON"}}]}]`, "",
			`"messages[0].tool_calls[0].function.arguments": this provider takes an object alone`,
		},
		{llm.Gemini, `[{"role":"tool","tool_call_id":"c","content":"x"}]`, "", `"messages[0].tool_call_id": no earlier message makes this call`},
		{llm.OpenAI, `[{"role":"user","content":"x","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}]`, "", `"tool_calls" and "refusal" are for the role assistant`},
		{llm.OpenAI, `[{"role":"user","content":"x","tool_call_id":"c"}]`, "", `"tool_call_id" is for the role tool`},
		{llm.OpenAI, `[{"role":"user","content":"x","audio":{}}]`, "", `"audio" is not supported`},
	} {
		got := prepared(t, tt.provider, `{"messages":`+tt.messages+`}`)
		if tt.err == "" && (got.err != nil || !strings.Contains(got.body, tt.want)) || tt.err != "" && (got.err == nil || !strings.Contains(got.err.Error(), tt.err)) {
			t.Errorf("%s at %s:\ngot  %s, %v\nwant %s%s", tt.messages, tt.provider, got.body, got.err, tt.want, tt.err)
		}
	}
}
