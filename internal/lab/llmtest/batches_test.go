package llmtest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/stagetest/must"
)

// testbed is a client of a server's Batch APIs in a bubble.
type testbed struct {
	*testing.T
	server *llmtest.Server
	client *http.Client
}

type object = map[string]any

func newTestbed(t *testing.T, cfg batches.Config) *testbed {
	t.Helper()
	server := must.Value(llmtest.New(llmtest.Config{Seed: 7, Batches: cfg}))(t)
	pipe, stop := server.Pipe()
	transport := &http.Transport{DialContext: pipe.DialContext, DisableKeepAlives: true}
	t.Cleanup(func() { transport.CloseIdleConnections(); stop() })
	return &testbed{T: t, server: server, client: &http.Client{Transport: transport}}
}

// send makes a request and returns the status, 0 without an answer, and what came of the body.
func (b *testbed) send(method, path string, header http.Header, body string) (status int, reply string, _ http.Header, cut bool) {
	b.Helper()
	r := must.Value(http.NewRequestWithContext(b.Context(), method, "http://llm.test"+path, strings.NewReader(body)))(b)
	maps.Copy(r.Header, header)
	r.Header.Set("Anthropic-Version", "2023-06-01")
	res, err := b.client.Do(r)
	if err != nil {
		return 0, "", nil, true
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	return res.StatusCode, string(data), res.Header, err != nil
}

// call is send for JSON, which must succeed.
func (b *testbed) call(method, path, body string) object {
	b.Helper()
	status, reply, _, _ := b.send(method, path, nil, body)
	var o object
	if err := json.Unmarshal([]byte(reply), &o); err != nil || status != 200 {
		b.Fatalf("%s %s: %d %s", method, path, status, reply)
	}
	return o
}

// refused is send for what must fail; it returns status and body.
func (b *testbed) refused(method, path, body string) string {
	b.Helper()
	status, reply, _, _ := b.send(method, path, nil, body)
	if status < 400 {
		b.Fatalf("%s %s: %d %s, want a refusal", method, path, status, reply)
	}
	return fmt.Sprint(status, " ", reply)
}

// dialect drives the API of one provider.
type dialect struct {
	name, root string
	line       func(id, text string) string
	submit     func(b *testbed, token string, lines []string) (id string)
	get        func(id string) string
	cancel     func(id string) string
	state      func(o object) string
	results    func(b *testbed, id string) []string
	words      [3]string // of completed, expired and cancelled
}

func (b *testbed) upload(root, name, content string) string {
	b.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	_ = w.WriteField("purpose", "batch")
	part, _ := w.CreateFormFile("file", name)
	_, _ = io.WriteString(part, content)
	_ = w.Close()
	query := ""
	if root == "/openai" {
		query = "?api-version=2024-10-21"
	}
	status, reply, _, _ := b.send("POST", root+"/files"+query, http.Header{"Content-Type": {w.FormDataContentType()}}, form.String())
	var o object
	_ = json.Unmarshal([]byte(reply), &o)
	if status != 200 {
		b.Fatalf("upload: %d %s", status, reply)
	}
	return o["id"].(string)
}

func openAILike(name, root, query, url, body string) dialect {
	return dialect{
		name: name, root: root, words: [3]string{"completed", "expired", "cancelled"},
		line: func(id, text string) string {
			return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":%q,"body":`+body+"}\n", id, url, text)
		},
		submit: func(b *testbed, token string, lines []string) string {
			b.Helper()
			file := b.upload(root, token+".jsonl", strings.Join(lines, ""))
			o := b.call("POST", root+"/batches"+query, fmt.Sprintf(
				`{"input_file_id":%q,"endpoint":%q,"completion_window":"24h","metadata":{"token":%q}}`, file, url, token))
			return o["id"].(string)
		},
		get:    func(id string) string { return root + "/batches/" + id + query },
		cancel: func(id string) string { return root + "/batches/" + id + "/cancel" + query },
		state:  func(o object) string { return strings.ToLower(o["status"].(string)) },
		results: func(b *testbed, id string) (lines []string) {
			b.Helper()
			o := b.call("GET", root+"/batches/"+id+query, "")
			for _, file := range []any{o["output_file_id"], o["error_file_id"]} {
				if file != nil {
					lines = append(lines, b.lines(root+"/files/"+file.(string)+"/content"+query)...)
				}
			}
			return lines
		},
	}
}

// lines downloads results.
func (b *testbed) lines(path string) []string {
	b.Helper()
	status, reply, _, cut := b.send("GET", path, nil, "")
	if status != 200 || cut {
		b.Fatalf("GET %s: %d %s, cut %v", path, status, reply, cut)
	}
	return strings.Split(strings.TrimSuffix(reply, "\n"), "\n")
}

const (
	chatBody     = `{"model":"m","messages":[{"role":"user","content":%q}]}`
	messageBody  = `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":%q}]}`
	responseBody = `{"model":"m","input":[{"role":"user","content":%q}]}`
	geminiBody   = `{"contents":[{"role":"user","parts":[{"text":%q}]}]}`
)

func anthropicDialect() dialect {
	const root = "/v1/messages/batches"
	return dialect{
		name: "anthropic", root: root, words: [3]string{"ended", "ended", "ended"},
		line: func(id, text string) string {
			return fmt.Sprintf(`{"custom_id":%q,"params":`+messageBody+`}`, id, text)
		},
		submit: func(b *testbed, _ string, lines []string) string {
			b.Helper()
			return b.call("POST", root, `{"requests":[`+strings.Join(lines, ",")+`]}`)["id"].(string)
		},
		get:    func(id string) string { return root + "/" + id },
		cancel: func(id string) string { return root + "/" + id + "/cancel" },
		state:  func(o object) string { return o["processing_status"].(string) },
		results: func(b *testbed, id string) []string {
			b.Helper()
			url := b.call("GET", root+"/"+id, "")["results_url"].(string)
			return b.lines(strings.TrimPrefix(url, "http://llm.test"))
		},
	}
}

func geminiDialect() dialect {
	const root = "/v1beta"
	return dialect{
		name: "gemini", root: root, words: [3]string{"SUCCEEDED", "EXPIRED", "CANCELLED"},
		line: func(id, text string) string { return fmt.Sprintf(`{"key":%q,"request":`+geminiBody+"}\n", id, text) },
		submit: func(b *testbed, token string, lines []string) string {
			b.Helper()
			_, _, h, _ := b.send("POST", "/upload/v1beta/files", http.Header{"X-Goog-Upload-Command": {"start"}, "X-Goog-Upload-Protocol": {"resumable"}},
				fmt.Sprintf(`{"file":{"displayName":%q}}`, token))
			_, reply, _, _ := b.send("POST", strings.TrimPrefix(h.Get("X-Goog-Upload-Url"), "http://llm.test"),
				http.Header{"X-Goog-Upload-Command": {"upload, finalize"}, "X-Goog-Upload-Offset": {"0"}}, strings.Join(lines, ""))
			var o struct {
				File struct {
					Name string `json:"name"`
				} `json:"file"`
			}
			if err := json.Unmarshal([]byte(reply), &o); err != nil || o.File.Name == "" {
				b.Fatalf("upload: %s", reply)
			}
			name := b.call("POST", root+"/models/m:batchGenerateContent",
				fmt.Sprintf(`{"batch":{"displayName":%q,"inputConfig":{"fileName":%q}}}`, token, o.File.Name))["name"].(string)
			return strings.TrimPrefix(name, "batches/")
		},
		get:    func(id string) string { return root + "/batches/" + id },
		cancel: func(id string) string { return root + "/batches/" + id + ":cancel" },
		state: func(o object) string {
			_, state, _ := strings.Cut(o["metadata"].(object)["state"].(string), "_STATE_")
			return state
		},
		results: func(b *testbed, id string) []string {
			b.Helper()
			response, _ := b.call("GET", root+"/batches/"+id, "")["response"].(object)
			if response == nil {
				return nil
			}
			return b.lines("/download/v1beta/" + response["responsesFile"].(string) + ":download?alt=media")
		},
	}
}

func dialects() []dialect {
	return []dialect{
		openAILike("openai", "/v1", "", "/v1/chat/completions", chatBody),
		openAILike("openai-responses", "/v1", "", "/v1/responses", responseBody),
		openAILike("azure", "/openai/v1", "", "/v1/chat/completions", chatBody),
		openAILike("azure-dated", "/openai", "?api-version=2024-10-21", "/chat/completions", chatBody),
		anthropicDialect(), geminiDialect(),
	}
}

// requests are n lines with the ids t-0, t-1 and so on.
func (d dialect) requests(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = d.line(fmt.Sprintf("t-%d", i), fmt.Sprintf("prompt %d", i))
	}
	return lines
}

// each runs a test for each provider in a bubble of its own.
func each(t *testing.T, cfg batches.Config, test func(b *testbed, d dialect)) {
	t.Helper()
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(newTestbed(t, cfg), d) })
		})
	}
}
