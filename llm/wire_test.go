package llm

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/llm-stage/stage/llm/schema"
)

// now is when every scripted reply comes.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// TestReplies runs the replies of testdata/replies, one file a provider in each directory. A reply is written as in
// HTTP: headers, an empty line, the body. A body that is no plain text is quoted, as in Go.
func TestReplies(t *testing.T) {
	datadriven.Walk(t, "testdata/replies", func(t *testing.T, path string) {
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		var wire Wire = ChatCompletions{}
		if provider, ok := LookupProvider(name); ok {
			wire = provider.wire(&ProviderConfig{})
		} else if name == "vertex-anthropic" {
			wire = Messages{Vertex: VertexAI{Region: vertexGlobal}}
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "usage" {
				return usageOf(t, wire, d.Input)
			}
			return judged(t, wire, d)
		})
	})
}

// judged returns the verdict on a reply, and how it changes once a call has succeeded or where truncated answers are
// accepted.
func judged(t *testing.T, wire Wire, d *datadriven.TestData) string {
	t.Helper()
	status, err := strconv.Atoi(d.Cmd)
	if err != nil {
		d.Fatalf(t, "%q is no status", d.Cmd)
	}
	headers, body, ok := strings.Cut(d.Input, "\n\n")
	if !ok {
		headers, body = "", d.Input
	}
	if d.HasArg("quoted") {
		body = must.Value(strconv.Unquote(body))(t)
	}
	known := Known{Proven: d.HasArg("proven"), RowModel: d.HasArg("row-model"), AcceptTruncated: d.HasArg("accept-truncated")}
	d.MaybeScanArgs(t, "bytes", &known.RequestBytes)
	d.MaybeScanArgs(t, "texts", &known.Inputs)
	if d.HasArg("keep") {
		known.Keep = ^Keep(0)
	}
	h := headersOf(t, headers)
	r, err := ParseReply(wire, known, now, status, h, []byte(body))
	text := verdict(r, err)
	if known.Keep != 0 && err == nil {
		text += keptParts(r)
	}
	if e, ok := errors.AsType[*Error](err); ok {
		known.Proven = true
		_, err := ParseReply(wire, known, now, status, h, []byte(body))
		if proven, ok := errors.AsType[*Error](err); !ok || proven.Class != e.Class || proven.Reason != e.Reason {
			text += fmt.Sprintf("proven: %v %s\n", proven.Class, proven.Reason)
		}
		known.AcceptTruncated = true
		if accepted, err := ParseReply(wire, known, now, status, h, []byte(body)); err == nil {
			text += fmt.Sprintf("accept-truncated: ok %q\n", accepted.Text)
		}
	}
	return text
}

// usageOf reads a usage object, and reads it again from where a result has it.
func usageOf(t *testing.T, wire Wire, body string) string {
	t.Helper()
	var r Reply
	wire.readReply(fmt.Appendf(nil, `{"usage":%s,"usageMetadata":%s}`, body, body), &r, new(ending))
	text := string(r.Usage.AppendJSON(nil))
	var again *Usage
	if err := json.Unmarshal([]byte(text), &again); err != nil || string(again.AppendJSON(nil)) != text {
		t.Errorf("%s read back: %s, %v", text, again.AppendJSON(nil), err)
	}
	return text + "\n"
}

// headersOf reads headers as they are written in HTTP.
func headersOf(t *testing.T, lines string) http.Header {
	t.Helper()
	return http.Header(must.Value(textproto.NewReader(bufio.NewReader(strings.NewReader(lines + "\n\n"))).ReadMIMEHeader())(t))
}

// keptParts lists what is kept of a reply beside its end and its id, which verdict shows,
// and the whole.
func keptParts(r *Reply) string {
	values := r.Values(^Keep(0))
	var b strings.Builder
	for _, name := range keepNames {
		if value := values[name]; string(value) != "null" && name != "raw" && name != "id" && name != "finish_reason" {
			fmt.Fprintf(&b, "%s=%s\n", name, value)
		}
	}
	return b.String()
}

var originNames = [...]string{OfRequest: "request", OfServer: "server", OfNetwork: "network", OfHost: "host"}

func verdict(r *Reply, err error) string {
	var b strings.Builder
	if err == nil {
		fmt.Fprintf(&b, "ok %q\n", r.Text)
		fmt.Fprintf(&b, "model=%s id=%s finish=%s\n", r.Model, r.ID, r.FinishReason)
		for _, vector := range r.Vectors {
			fmt.Fprintf(&b, "vector %s\n", vector)
		}
	}
	if e, ok := errors.AsType[*Error](err); ok {
		fmt.Fprintf(&b, "%v %s", e.Class, e.Reason)
		if e.Origin != OfRequest {
			fmt.Fprintf(&b, " origin=%s", originNames[e.Origin])
		}
		if e.Alike != "" {
			fmt.Fprintf(&b, " alike=%q", e.Alike)
		}
		if e.RetryAfter != 0 {
			fmt.Fprintf(&b, " retry-after=%v", e.RetryAfter)
		}
		if e.Remaining0 {
			fmt.Fprintf(&b, " remaining=0 reset=%v", e.Reset)
		}
		fmt.Fprintf(&b, "\n%v\n", e)
		if len(e.Facts) > 0 {
			facts, err := json.Marshal(e.Facts)
			if err != nil {
				facts = []byte(err.Error())
			}
			fmt.Fprintf(&b, "%s\n", facts)
		}
	}
	if r != nil && r.Usage != nil {
		usage, _ := json.Marshal(r.Usage)
		fmt.Fprintf(&b, "usage %s\n", usage)
	}
	return b.String()
}

// TestRequests compares every provider's requests with testdata/requests.
func TestRequests(t *testing.T) {
	closed := schemaOf(t, `{"type":"object","properties":{"mood":{"type":"string","enum":["good","bad"]}},"required":["mood"],"additionalProperties":false}`)
	open := schemaOf(t, `{"type":"object","properties":{"stars":{"type":"integer","minimum":1}}}`)
	requests := map[string]Request{
		"plain": {Prompt: "Say \"hi\"\n\tto <Zoë> & \\ \x01 \xff 日本 \u2028"},
		"full": {
			System: "Be brief.", Context: "It rains.", Prompt: "What now?",
			Temperature: new(0.2), MaxTokens: new(64), Schema: closed,
		},
		"again": {
			System: "Be brief.", Prompt: "How many stars?", Schema: open,
			Rejected: "five", Complaint: "Your reply is not one JSON value.",
		},
		"extra": {
			Prompt: "Hi.", Temperature: new(1.0), MaxTokens: new(50),
			ExtraBody: json.RawMessage(`{"seed": 7, "temperature": 0, "generationConfig": {"topK": 3, "maxOutputTokens": 9}}`),
		},
		"other-model": {Model: "tuned/über 1", Prompt: "Hi."},
		"tools": {
			Prompt: "Label it.", ToolChoice: ToolChoice{Mode: ToolsFunction, Function: "label"},
			Tools: []Tool{
				{Name: "label", Description: "Label the \"ticket\".", Parameters: json.RawMessage(`{"type":"object","properties":{"team":{"type":"string"}}}`), Strict: true},
				{Name: "skip"},
			},
		},
		"tool-required": {Prompt: "Label it.", ToolChoice: ToolChoice{Mode: ToolsRequired}, Tools: []Tool{{Name: "skip"}}},
	}
	providers := map[string]ProviderConfig{
		OpenAI:          {},
		"openai-server": {BaseURL: "http://localhost:11434/v1/"},
		OpenAIResponses: {},
		OpenRouter:      {},
		Azure:           {BaseURL: "https://res.openai.azure.com/"},
		"azure-dated":   {BaseURL: "https://res.openai.azure.com", AzureAPIVersion: "2024-10-21"},
		Anthropic:       {},
		Gemini:          {},
		Bedrock:         {Region: "eu-central-1"},
		Vertex:          {Region: "europe-west4", Project: "my-project"},

		"vertex-anthropic": {Project: "my-project", Model: "anthropic/claude-sonnet-4-5@20250929"},
	}
	for name, cfg := range providers {
		t.Run(name, func(t *testing.T) {
			cfg.APIKey, cfg.Model = redact.NewSecret("secret-key"), cmp.Or(cfg.Model, "model-1")
			provider, _, _ := strings.Cut(name, "-")
			if name == OpenAIResponses {
				provider = name
			}
			c := newClient(t, provider, cfg)
			var b bytes.Buffer
			for _, title := range []string{"plain", "full", "again", "extra", "other-model", "tools", "tool-required"} {
				r := requests[title]
				if provider == Vertex && r.Model != "" {
					r.Model = "google/über 1"
				}
				p, err := c.Prepare(&r)
				if err != nil {
					t.Fatalf("%s: %v", title, err)
				}
				var body bytes.Buffer
				if err := json.Indent(&body, p.Body, "", "  "); err != nil {
					t.Fatalf("%s: %v in %s", title, err, p.Body)
				}
				fmt.Fprintf(&b, "=== %s\nPOST %s://%s\n", title, p.url.Scheme, p.Target())
				must.Do(t, c.login.Load().header.Write(&b))
				fmt.Fprintf(&b, "\n%s\n\n", &body)
			}
			golden.Check(t, filepath.Join("testdata", "requests", name+".txt"), strings.ReplaceAll(b.String(), "\r\n", "\n"))
		})
	}
}

// newClient is a client that is closed when the test ends.
func newClient(tb testing.TB, provider string, cfg ProviderConfig) *Client {
	tb.Helper()
	c := must.Value(NewProvider(provider, cfg))(tb)
	tb.Cleanup(c.Close)
	return c
}

func schemaOf(t *testing.T, source string) *schema.Schema {
	t.Helper()
	s := must.Value(schema.Parse([]byte(source), "schema"))(t)
	return s
}
