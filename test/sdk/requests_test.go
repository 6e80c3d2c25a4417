package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/llm-stage/stage/llm/schema"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
)

const token = "b7f3k9"

// customID is what Anthropic takes, which has the narrowest rule.
var customID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// served starts the stand-in of all providers on loopback.
func served(t *testing.T, cfg batches.Config) *httptest.Server {
	t.Helper()
	stub := must.Value(llmtest.New(llmtest.Config{Batches: cfg}))(t)
	server := httptest.NewServer(stub)
	t.Cleanup(server.Close)
	return server
}

// sent is a request as it came.
type sent struct {
	at, kind string // method and path; media type
	body     []byte
}

// recorded is a stage's client of a provider at its own host, and what it sends.
type recorded struct {
	client *llm.Client
	api    batchapi.API
	left   string // the request that is left out

	mu   sync.Mutex
	sent []sent
}

func record(t *testing.T, provider, base string, cfg llm.ProviderConfig) *recorded {
	t.Helper()
	r := new(recorded)
	stub := served(t, batches.Config{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, rq *http.Request) {
		body, err := io.ReadAll(rq.Body)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.sent = append(r.sent, sent{rq.Method + " " + rq.URL.Path, rq.Header.Get("Content-Type"), body})
		r.mu.Unlock()
		rq.Body = io.NopCloser(bytes.NewReader(body))
		stub.Config.Handler.ServeHTTP(w, rq)
	}))
	t.Cleanup(server.Close)
	var dialer net.Dialer
	cfg.BaseURL, cfg.Model, cfg.APIKey = base, "m", redact.NewSecret("sk-0123456789abcdef")
	cfg.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, server.Listener.Addr().String())
	}
	r.client = must.Value(llm.NewProvider(provider, cfg))(t)
	t.Cleanup(r.client.Close)
	r.api = must.Value(batchapi.New(r.client))(t)
	return r
}

// last returns the body of the last request that was sent to a path with the ending, its media type, and how many were.
func (r *recorded) last(ending string) (body []byte, kind string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sent {
		if strings.HasSuffix(s.at, ending) {
			body, kind = s.body, s.kind
			n++
		}
	}
	return body, kind, n
}

// one is last where there is one such request alone.
func (r *recorded) one(t *testing.T, ending string) (body []byte, kind string) {
	t.Helper()
	body, kind, n := r.last(ending)
	if n != 1 {
		t.Fatalf("%d requests to %s: %v", n, ending, r.sent)
	}
	return body, kind
}

// requests are those that the provider knows all members of.
func (r *recorded) requests(t *testing.T) map[string]*llm.Request {
	t.Helper()
	all := requests(t)
	delete(all, r.left)
	return all
}

// requests have between them all that a request may hold.
func requests(t *testing.T) map[string]*llm.Request {
	t.Helper()
	strict := must.Value(schema.Parse([]byte(`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`), "strict"))(t)
	loose := must.Value(schema.Parse([]byte(`{"type":"object","patternProperties":{"^a":{"minimum":1}}}`), "loose"))(t)
	cold, most := .5, 100
	return map[string]*llm.Request{
		"prompt": {Prompt: "one"},
		"all":    {System: "be brief", Context: "before", Prompt: "two", Temperature: &cold, MaxTokens: &most, Schema: strict},
		"loose":  {System: "be brief", Prompt: "three", Schema: loose},
		"again":  {Prompt: "four", Rejected: "no", Complaint: "say yes"},
		"tools": {
			Prompt: "six", ToolChoice: llm.ToolChoice{Mode: llm.ToolsRequired},
			Tools: []llm.Tool{{Name: "label", Description: "d", Parameters: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`), Strict: true}, {Name: "skip"}},
		},
		"extended": {Prompt: "five", ExtraBody: json.RawMessage(`{"metadata":{"user_id":"u"}}`)},
	}
}

// live sends each request as a call, and returns what was sent by name.
func (r *recorded) live(t *testing.T, ending string) map[string][]byte {
	t.Helper()
	bodies := map[string][]byte{}
	for name, request := range r.requests(t) {
		p := must.Value(r.client.Prepare(request))(t)
		if _, err := r.client.Do(t.Context(), p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		bodies[name], _ = r.one(t, ending)
		r.sent = nil
	}
	return bodies
}

// submit sends the requests as a batch.
func (r *recorded) submit(t *testing.T) {
	t.Helper()
	var body []byte
	all := r.requests(t)
	for name, request := range all {
		p := must.Value(r.client.Prepare(request))(t)
		body = r.api.AppendLine(body, token+"-"+name, p)
	}
	lines := batchapi.Lines{Open: func() io.Reader { return bytes.NewReader(body) }, Size: int64(len(body)), Rows: len(all)}
	job := batchapi.Job{Token: token, Model: "m", Lines: lines}
	if !r.api.Limits().Inline {
		job.File = must.Value(r.api.Upload(t.Context(), token, lines))(t)
	}
	if b, err := r.api.Create(t.Context(), job); err != nil || b.Rows == 0 && b.State == batchapi.Refused {
		t.Fatalf("%+v, %v", b, err)
	}
}

// Requests of OpenAI and Azure, live and in batches, are what OpenAI's description allows.
func TestRequestsFitTheDescription(t *testing.T) {
	for name, tt := range map[string]struct {
		provider, base string
		cfg            llm.ProviderConfig
		live, endpoint string
		check          func(*testing.T, []byte)
		expires        bool
	}{
		"openai":      {provider: llm.OpenAI, base: "http://us.api.openai.com/v1", live: "/chat/completions", endpoint: "/v1/chat/completions", check: chat},
		"compatible":  {provider: llm.OpenAI, base: "http://llm.test/v1", live: "/chat/completions", endpoint: "/v1/chat/completions", check: chat},
		"responses":   {provider: llm.OpenAIResponses, base: "http://us.api.openai.com/v1", live: "/responses", endpoint: "/v1/responses", check: response},
		"azure":       {provider: llm.Azure, base: "http://x.openai.azure.com", live: "/chat/completions", endpoint: "/v1/chat/completions", check: chat, expires: true},
		"azure-dated": {provider: llm.Azure, base: "http://x.openai.azure.com", cfg: llm.ProviderConfig{AzureAPIVersion: "2024-10-21"}, live: "/chat/completions", endpoint: "/chat/completions", check: chat},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(t, tt.provider, tt.base, tt.cfg)
			calls := r.live(t, tt.live)
			r.submit(t)

			body, kind := r.one(t, "/files")
			fields, lines := form(t, body, kind)
			want := map[string]string{"purpose": string(openai.FilePurposeBatch)}
			if tt.expires { // by the names of Azure's guide, which are not OpenAI's
				want["expires_after.seconds"], want["expires_after.anchor"] = "2592000", "created_at"
			}
			if fmt.Sprint(fields) != fmt.Sprint(want) {
				t.Errorf("fields of the upload %v, want %v", fields, want)
			}
			for raw := range bytes.Lines(lines) {
				var line struct {
					CustomID string          `json:"custom_id"`
					Method   string          `json:"method"`
					URL      string          `json:"url"`
					Body     json.RawMessage `json:"body"`
				}
				strict(t, raw, &line)
				if !customID.MatchString(line.CustomID) || line.Method != http.MethodPost || line.URL != tt.endpoint {
					t.Errorf("line %s", raw)
				}
				row := strings.TrimPrefix(line.CustomID, token+"-")
				if !bytes.Equal(line.Body, calls[row]) {
					t.Errorf("%s: the line has\n%s, the call\n%s", row, line.Body, calls[row])
				}
				tt.check(t, line.Body)
				delete(calls, row)
			}
			if len(calls) > 0 {
				t.Errorf("no lines for %v", calls)
			}

			body, _ = r.one(t, "/batches")
			created := fits[openai.BatchNewParams](t, body)
			if string(created.Endpoint) != tt.endpoint || created.CompletionWindow != openai.BatchNewParamsCompletionWindow24h {
				t.Errorf("created by %s", body)
			}
		})
	}
}

// chat checks a request of /chat/completions.
func chat(t *testing.T, raw []byte) {
	t.Helper()
	fits[openai.ChatCompletionNewParams](t, raw)
}

// response checks a request of /responses. The SDK writes its messages but cannot read them, since they have no type,
// which may be left out: they are read apart.
func response(t *testing.T, raw []byte) {
	t.Helper()
	var rest map[string]json.RawMessage
	strict(t, raw, &rest)
	var messages []json.RawMessage
	strict(t, rest["input"], &messages)
	for _, m := range messages {
		fits[responses.EasyInputMessageParam](t, m)
	}
	delete(rest, "input")
	without, err := json.Marshal(rest)
	if err != nil || len(messages) == 0 {
		t.Fatal(len(messages), err)
	}
	fits[responses.ResponseNewParams](t, without)
}

// strict decodes a value without unknown members.
func strict(t *testing.T, raw []byte, v any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		t.Fatalf("%v:\n%s", err, raw)
	}
}

// form returns the fields of an upload, and its file.
func form(t *testing.T, body []byte, kind string) (fields map[string]string, file []byte) {
	t.Helper()
	_, params, err := mime.ParseMediaType(kind)
	if err != nil {
		t.Fatal(err)
	}
	f := must.Value(multipart.NewReader(bytes.NewReader(body), params["boundary"]).ReadForm(1 << 20))(t)
	fields = map[string]string{}
	for name, values := range f.Value {
		fields[name] = strings.Join(values, ",")
	}
	if len(f.File["file"]) != 1 {
		t.Fatalf("files %v", f.File)
	}
	open := must.Value(f.File["file"][0].Open())(t)
	defer func() { _ = open.Close() }()
	return fields, must.Value(io.ReadAll(open))(t)
}
