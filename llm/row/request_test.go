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

	"github.com/cockroachdb/datadriven"
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

// nowhere is the place of a member that a provider has no place for.
const nowhere = "–"

const membersOpen, membersClose = "<!-- members of a request, written by a test -->\n", "<!-- end of the members -->\n"

// TestMembersOfARequestHaveTheirPlaces writes, for each documented member and wire format,
// where the member goes, or that the row is refused by the member's name. There is nothing
// else: no member is dropped.
func TestMembersOfARequestHaveTheirPlaces(t *testing.T) {
	table := "| member | chat completions | responses | Anthropic | Gemini | Bedrock |\n| --- | --- | --- | --- | --- | --- |\n"
	var chatAlone, refused []string // members that have no place elsewhere, or none at all
	for _, m := range documented {
		cells := make([]string, len(wires))
		for i, w := range wires {
			cells[i] = placesOf(t, w.provider, m.name, m.value)
		}
		switch own := "`" + m.name + "`"; {
		case slices.ContainsFunc(cells[1:], func(cell string) bool { return cell != nowhere }):
			table += fmt.Sprintf("| %s | %s |\n", own, strings.Join(cells, " | "))
		case cells[0] == own:
			chatAlone = append(chatAlone, own)
		case cells[0] == nowhere:
			refused = append(refused, own)
		default:
			t.Errorf("%s goes to %s of chat completions alone", m.name, cells[0])
		}
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
	others := strings.Repeat(" | "+nowhere, len(wires)-1) + " |\n"
	table += "| " + strings.Join(chatAlone, ", ") + " | the same" + others
	table += "| " + strings.Join(refused, ", ") + " | " + nowhere + others
	const path = "../../docs/requests.md"
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
		return nowhere
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

// TestRequestsOfRows runs testdata/requests.txt: the body that each wire format sends for a row's request, or why the row
// is refused.
func TestRequestsOfRows(t *testing.T) {
	datadriven.RunTest(t, "testdata/requests.txt", func(t *testing.T, d *datadriven.TestData) string {
		got := prepared(t, d.Cmd, d.Input)
		if got.err != nil {
			return fmt.Sprintf("refused: %v\n", got.err)
		}
		return got.body + "\n"
	})
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
