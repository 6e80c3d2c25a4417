package executor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/schema"
)

// TestNoNoteOfASchemaThatIsNotSent: the extra body may take the schema out of the request.
func TestNoNoteOfASchemaThatIsNotSent(t *testing.T) {
	const (
		uri       = `{"type":"object","properties":{"a":{"type":"string","format":"uri"}},"required":["a"],"additionalProperties":false}`
		recursive = `{"type":"object","properties":{"a":{"$ref":"#"},"b":{"format":"x"}},"required":["a"],"additionalProperties":false}`
	)
	for _, tt := range []struct{ schema, provider, extra, want string }{
		{uri, llm.OpenAI, ``, "sent without strict"},
		{uri, llm.OpenAI, `{"top_p":1}`, "sent without strict"},
		{uri, llm.OpenAI, `{"text":null}`, "sent without strict"},
		{uri, llm.OpenAI, `{"response_format":{"type":"json_schema"}}`, "sent without strict"},
		{uri, llm.OpenAI, `{"response_format":null}`, ""},
		{uri, llm.OpenAI, `{"response_format": {"type":"json_object", "json_schema": null}}`, ""},
		{uri, llm.OpenRouter, `{"response_format":null}`, ""},
		{uri, llm.Azure, `{"response_format":null}`, ""},
		{uri, llm.OpenAIResponses, `{"response_format":null}`, "sent without strict"},
		{uri, llm.OpenAIResponses, `{"text":null}`, ""},
		{uri, llm.OpenAIResponses, `{"text":{"format":null}}`, ""},
		{uri, llm.Gemini, ``, "sent whole"},
		{uri, llm.Gemini, `{"generationConfig":{"responseJsonSchema":null}}`, ""},
		{recursive, llm.Gemini, `{"generationConfig":{"responseJsonSchema":null}}`, "sent in the system prompt"},
		{recursive, llm.Anthropic, `{"output_config":null}`, "sent in the system prompt"},
		{uri, llm.Anthropic, `{"output_config":null}`, ""},
	} {
		schema := stagetest.Value(schema.Parse([]byte(tt.schema), "schema"))(t)
		p := &Prompt{schema: schema, Base: llm.Request{ExtraBody: json.RawMessage(tt.extra)}}
		cfg := new(config.Config)
		cfg.LLM.Provider = tt.provider
		got := ""
		for _, note := range p.SchemaNotes(cfg) {
			got += note.Text
		}
		if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s, %s with %s: note %q, want %q", tt.schema, tt.provider, tt.extra, got, tt.want)
		}
	}
}

// TestAReplyNestedTooDeepIsNoValue: an element's result is read back when its row is answered, and the row's by the next
// stage.
func TestAReplyNestedTooDeepIsNoValue(t *testing.T) {
	anything := stagetest.Value(schema.Parse([]byte(`{}`), "schema"))(t)
	format := stagetest.Value(row.NewFormat("reply", row.Provenance{}))(t)
	p := &Prompt{schema: anything, format: format}
	accepted := 0
	for depth := jsonbytes.DepthMax - 4; depth <= jsonbytes.DepthMax; depth++ {
		j := &job{row: &consumer.Row{MaxBodyBytes: 1 << 20}, parsed: noMembers}
		body, _, err := p.result(j, &answer{Text: strings.Repeat("[", depth) + strings.Repeat("]", depth)})
		if err != nil {
			continue
		}
		accepted++
		a, ok := row.ReadAnswer(body, true)
		if !ok {
			t.Errorf("a reply %d deep is accepted, and its result can't be read back", depth)
			continue
		}
		if _, err := row.Parse(format.AppendItems(nil, noMembers, []*row.Answer{a})); err != nil {
			t.Errorf("a reply %d deep is accepted, and the result of its row is none: %.100s", depth, err)
		}
	}
	if accepted == 0 {
		t.Error("no reply was accepted")
	}
}

// What a request is made of: a conversation from a file or from the row, and a system prompt that may be a template.
func TestRequestsOfConversations(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		stagetest.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	messages := file("messages.yaml", "- {role: user, content: 'a {{ row.n }}'}\n- {role: assistant, content: 'b {{ item | default(0) }}'}\n- {role: user, content: c}\n")
	const own = `{"n":1,"list":[7],"own":{"top_p":1},"m":[{"role":"user","content":"hi"}],"s":[{"role":"system","content":"own"},{"role":"user","content":"hi"}]}`
	of := stagetest.Value(row.Parse([]byte(own)))(t)
	for _, tt := range []struct {
		name   string
		prompt config.PromptConfig
		item   string // the member whose first element is asked about
		want   string
	}{
		{"file", config.PromptConfig{MessagesFile: messages, SystemPrompt: "plain"}, "", "plain|[system]\nplain\n\n[user]\na 1\n\n[assistant]\nb 0\n\n[user]\nc"},
		{"element", config.PromptConfig{MessagesFile: messages, SystemPrompt: "item {{ item }}"}, "list", "item 7|[system]\nitem 7\n\n[user]\na 1\n\n[assistant]\nb 7\n\n[user]\nc"},
		{"row", config.PromptConfig{MessagesField: "m", SystemPrompt: "n is {{ row.n }}"}, "", "n is 1|hi"},
		{"row with its own system message", config.PromptConfig{MessagesField: "s", SystemPrompt: "plain"}, "", "|[system]\nown\n\n[user]\nhi"},
		{"system prompt from a file", config.PromptConfig{Template: "p {{ row.n }}", SystemFile: file("system.txt", "in a file\n")}, "", "in a file|p 1"},
		{"template of it from a file", config.PromptConfig{Template: "p", SystemFile: file("system.jinja", "n={{ row.n }}\n")}, "", "n=1|p"},
		{"parameters of the row", config.PromptConfig{Template: "p", ParamsField: "own"}, "", `|p{"top_p":1}`},
	} {
		cfg := &config.Config{Prompt: tt.prompt}
		cfg.Prompt.ResponseField, cfg.Foreach = "r", config.ForeachConfig{Field: tt.item, Max: 10}
		p := stagetest.Value(LoadPrompt(cfg))(t)
		r, _, err := p.Request(of)
		if tt.item != "" {
			r, _, err = p.ItemRequest(stagetest.Value(p.Items(of))(t), 0)
		}
		if got := r.System + "|" + r.Transcript(false) + string(r.ExtraBody); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

// All that is wrong with a conversation and the system prompt is said at the start, by variable.
func TestProblemsOfAConversationAreListed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "messages.yaml")
	stagetest.Must(t, os.WriteFile(path, []byte("- {role: usr, content: a}\n- {role: user, content: '{{ x }}'}\n"), 0o600))
	_, err := LoadPrompt(&config.Config{Prompt: config.PromptConfig{MessagesFile: path, SystemPrompt: "{{ row.", ResponseField: "r"}})
	for _, want := range []string{
		"STAGE_MESSAGES_FILE: line 1, column 10: the role \"usr\" is unknown", "line 2, column 25: undefined: x", "STAGE_SYSTEM_PROMPT: template: ", "the system prompt",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestResultsThatAreTooLargeNameTheSettingThatHelps: with a bucket the server's largest message is no bound.
func TestResultsThatAreTooLargeNameTheSettingThatHelps(t *testing.T) {
	var cfg config.Config
	for _, tt := range []struct {
		url    config.URLs
		bucket string
		want   string
	}{
		{nil, "", ""},
		{config.URLs{redact.NewSecret("nats://hub")}, "", "STAGE_RESULT_BUCKET"},
		{config.URLs{redact.NewSecret("nats://hub")}, "LARGE", "STAGE_WINDOW_BYTES"},
		{nil, "LARGE", "STAGE_WINDOW_BYTES"},
	} {
		cfg.NATS.URL, cfg.Result.Bucket = tt.url, tt.bucket
		if got := moreRoom(&cfg); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}
