package batchapi_test

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
	"github.com/llm-stage/stage/llm/redact"
)

var update = flag.Bool("update", false, "write testdata again")

const (
	secret = "sk-very-secret-0123456789"
	token  = "b7f3k9"
)

// recorder is a provider that answers by method and path, and writes down what it is asked.
type recorder struct {
	answers map[string]string // "GET /path" without query: a body, or a status and a body

	mu  sync.Mutex
	log bytes.Buffer
}

func (s *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(&s.log, "%s %s\n", r.Method, r.URL.RequestURI())
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if !slices.Contains([]string{"Accept-Encoding", "User-Agent"}, name) {
			fmt.Fprintf(&s.log, "%s: %s\n", name, r.Header.Get(name))
		}
	}
	if len(body) > 0 {
		if int64(len(body)) != r.ContentLength {
			fmt.Fprintf(&s.log, "content length %d, %d bytes\n", r.ContentLength, len(body))
		}
		fmt.Fprintf(&s.log, "\n%s\n", bytes.TrimSpace(bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n"))))
	}
	s.log.WriteString("\n")
	answer, ok := s.answers[r.Method+" "+r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		answer = `{"error":{"message":"no such thing"}}`
	}
	w.Header().Set("X-Goog-Upload-Url", "http://"+r.Host+"/upload-here")
	_, _ = io.WriteString(w, answer)
}

// open returns the API of a provider behind a server.
func open(t *testing.T, provider string, server *httptest.Server, cfg llm.ProviderConfig) batchapi.API {
	t.Helper()
	t.Cleanup(server.Close)
	return at(t, provider, server.URL, cfg)
}

// piped is open in a bubble, over pipes, so that no time-out is waited for.
func piped(t *testing.T, provider string, serve http.HandlerFunc) batchapi.API {
	t.Helper()
	pipe := llmtest.NewPipeListener()
	server := &http.Server{Handler: serve}
	go func() { _ = server.Serve(pipe) }()
	t.Cleanup(func() { _ = server.Close() })
	return at(t, provider, "http://llm.test", llm.ProviderConfig{DialContext: pipe.DialContext})
}

func at(t *testing.T, provider, url string, cfg llm.ProviderConfig) batchapi.API {
	t.Helper()
	path := map[string]string{llm.Azure: "", llm.Gemini: "/v1beta"}
	base, ok := path[provider]
	if !ok {
		base = "/v1"
	}
	cfg.BaseURL = url + base
	if cfg.Auth == nil {
		cfg.APIKey = redact.NewSecret(secret)
	}
	cfg.Model = cmp.Or(cfg.Model, "m")
	client := must.Value(llm.NewProvider(provider, cfg))(t)
	t.Cleanup(client.Close)
	return must.Value(batchapi.New(client))(t)
}

// linesOf is a batch of two rows.
func linesOf(t *testing.T, provider string, api batchapi.API, cfg llm.ProviderConfig) batchapi.Lines {
	t.Helper()
	cfg.BaseURL, cfg.Model, cfg.APIKey, cfg.Auth = "http://llm.test", "m", redact.NewSecret(secret), nil
	client := must.Value(llm.NewProvider(provider, cfg))(t)
	defer client.Close()
	var lines []byte
	for i, prompt := range []string{"one", "two"} {
		p := must.Value(client.Prepare(&llm.Request{Prompt: prompt}))(t)
		lines = api.AppendLine(lines, fmt.Sprintf("%s-%d", token, i+1), p)
	}
	return batchapi.Lines{Open: func() io.Reader { return bytes.NewReader(lines) }, Size: int64(len(lines)), Rows: 2}
}

// answersOf are what each provider answers, after its documentation.
var answersOf = map[string]map[string]string{
	"/v1": {
		"POST /v1/files":                           `{"id":"file-1","object":"file","bytes":9,"created_at":1700000000,"filename":"b7f3k9.jsonl","purpose":"batch","status":"processed"}`,
		"GET /v1/files":                            `{"object":"list","data":[{"id":"file-1","filename":"b7f3k9.jsonl"},{"id":"file-9","filename":"other.jsonl"}],"has_more":false}`,
		"DELETE /v1/files/file-1":                  `{"id":"file-1","deleted":true}`,
		"DELETE /v1/files/file-2":                  `{"id":"file-2","deleted":true}`,
		"POST /v1/batches":                         `{"id":"batch_1","object":"batch","status":"validating","created_at":1700000000,"input_file_id":"file-1","metadata":{"llm_stage_batch":"b7f3k9"}}`,
		"GET /v1/batches/batch_1":                  `{"id":"batch_1","status":"completed","input_file_id":"file-1","output_file_id":"file-2","request_counts":{"total":2,"completed":2,"failed":0}}`,
		"GET /v1/batches":                          `{"object":"list","data":[{"id":"batch_9","status":"in_progress","metadata":null},{"id":"batch_1","status":"in_progress","metadata":{"llm_stage_batch":"b7f3k9"}}],"has_more":false}`,
		"POST /v1/batches/batch_1/cancel":          `{"id":"batch_1","status":"cancelling"}`,
		"GET /v1/files/file-2/content":             `{"id":"r1","custom_id":"b7f3k9-2","response":{"status_code":200,"body":{"choices":[]}},"error":null}` + "\n" + `{"custom_id":"b7f3k9-1","response":null,"error":{"code":"batch_expired","message":"late"}}` + "\n",
		"POST /v1/messages/batches":                `{"id":"batch_1","type":"message_batch","processing_status":"in_progress","created_at":"2030-01-02T03:04:05.678Z","request_counts":{"processing":2,"succeeded":0,"errored":0,"canceled":0,"expired":0},"results_url":null}`,
		"GET /v1/messages/batches/batch_1":         `{"id":"batch_1","processing_status":"ended","created_at":"2030-01-02T03:04:05.678Z","request_counts":{"processing":0,"succeeded":2,"errored":0,"canceled":0,"expired":0},"results_url":"https://elsewhere.test/r"}`,
		"GET /v1/messages/batches":                 `{"data":[{"id":"batch_1","processing_status":"in_progress","created_at":"2030-01-02T03:04:05.678Z","request_counts":{"processing":2,"succeeded":0}},{"id":"batch_9","processing_status":"in_progress","created_at":"2030-01-02T03:04:05.678Z","request_counts":{"processing":3,"succeeded":0}}],"has_more":false}`,
		"DELETE /v1/messages/batches/batch_1":      `{"id":"batch_1","type":"message_batch_deleted"}`,
		"POST /v1/messages/batches/batch_1/cancel": `{"id":"batch_1","processing_status":"canceling"}`,
		"GET /v1/messages/batches/batch_1/results": `{"custom_id":"b7f3k9-2","result":{"type":"succeeded","message":{"content":[]}}}` + "\n" + `{"custom_id":"b7f3k9-1","result":{"type":"expired"}}`,
	},
	"/v1beta": {
		"POST /upload/v1beta/files":                  `{}`,
		"POST /upload-here":                          `{"file":{"name":"files/file-1","displayName":"b7f3k9"}}`,
		"GET /v1beta/files":                          `{"files":[{"name":"files/file-1","displayName":"b7f3k9"},{"name":"files/file-9","displayName":"other"}]}`,
		"DELETE /v1beta/files/file-1":                `{}`,
		"DELETE /v1beta/batches/batch_1":             `{}`,
		"POST /v1beta/models/m:batchGenerateContent": `{"name":"batches/batch_1","metadata":{"displayName":"b7f3k9","state":"BATCH_STATE_PENDING","inputConfig":{"fileName":"files/file-1"}}}`,
		"GET /v1beta/batches/batch_1":                `{"name":"batches/batch_1","done":true,"metadata":{"displayName":"b7f3k9","state":"BATCH_STATE_SUCCEEDED","inputConfig":{"fileName":"files/file-1"},"batchStats":{"requestCount":"2","successfulRequestCount":"2"}},"response":{"responsesFile":"files/batch-1"}}`,
		"GET /v1beta/batches":                        `{"operations":[{"name":"batches/batch_9","metadata":{"displayName":"x","state":"BATCH_STATE_RUNNING"}},{"name":"batches/batch_1","metadata":{"displayName":"b7f3k9","state":"BATCH_STATE_RUNNING"}}]}`,
		"POST /v1beta/batches/batch_1:cancel":        `{}`,
		"GET /v1beta/files/batch-1:download":         `{"key":"b7f3k9-2","response":{"candidates":[]}}` + "\n" + `{"error":{"code":1,"message":"cancelled"},"key":"b7f3k9-1"}` + "\n",
	},
}

// Each provider is asked in its own way; testdata has the requests.
func TestRequestsHaveTheProvidersShape(t *testing.T) {
	for name, tt := range map[string]struct {
		provider string
		cfg      llm.ProviderConfig
		answers  string
		move     [2]string // how the paths differ
	}{
		"openai":           {llm.OpenAI, llm.ProviderConfig{}, "/v1", [2]string{}},
		"openai-responses": {llm.OpenAIResponses, llm.ProviderConfig{}, "/v1", [2]string{}},
		"mock":             {llm.Mock, llm.ProviderConfig{}, "/v1", [2]string{}},
		"azure":            {llm.Azure, llm.ProviderConfig{}, "/v1", [2]string{" /v1", " /openai/v1"}},
		"azure-dated":      {llm.Azure, llm.ProviderConfig{AzureAPIVersion: "2024-10-21"}, "/v1", [2]string{" /v1", " /openai"}},
		"anthropic":        {llm.Anthropic, llm.ProviderConfig{}, "/v1", [2]string{}},
		"gemini":           {llm.Gemini, llm.ProviderConfig{}, "/v1beta", [2]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := &recorder{answers: map[string]string{}}
			for at, answer := range answersOf[tt.answers] {
				recorder.answers[strings.Replace(at, tt.move[0], tt.move[1], 1)] = answer
			}
			server := httptest.NewServer(recorder)
			api := open(t, tt.provider, server, tt.cfg)
			lines := linesOf(t, tt.provider, api, tt.cfg)
			wholeLife(t, api, lines)
			got := strings.ReplaceAll(recorder.log.String(), server.URL, "http://server")
			file := "testdata/" + name + ".txt"
			if *update {
				must.Do(t, os.WriteFile(file, []byte(got), 0o644))
			}
			if want, _ := os.ReadFile(file); got != string(want) {
				t.Errorf("requests differ from %s:\n%s", file, got)
			}
		})
	}
}

// wholeLife calls each method of an API once, and checks what it makes of the answers.
func wholeLife(t *testing.T, api batchapi.API, lines batchapi.Lines) {
	t.Helper()
	ctx, since := t.Context(), time.Date(2029, 1, 1, 0, 0, 0, 0, time.UTC)
	var err error
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	job := batchapi.Job{Token: token, Model: "m"}
	if api.Limits().Inline {
		job.Lines = lines
	} else {
		job.File, err = api.Upload(ctx, token, lines)
		check("upload", err)
	}
	made, err := api.Create(ctx, job)
	check("create", err)
	if made.ID == "" || made.State != batchapi.Running || api.Limits().Tokens && made.Token != token {
		t.Errorf("created %+v", made)
	}
	b, err := api.Get(ctx, made.ID)
	check("get", err)
	if b.State != batchapi.Ended || b.Rows != 2 || b.Answered != 2 || b.Output == "" {
		t.Errorf("got %+v", b)
	}
	found, err := api.Find(ctx, token, since, 2)
	check("find", err)
	if len(found) != 1 || found[0].ID != made.ID {
		t.Errorf("found %+v", found)
	}
	var got []batchapi.Line
	check("results", api.Results(ctx, b, func(l batchapi.Line) error { got = append(got, l); return nil }))
	if len(got) != 2 || got[0].ID != token+"-2" || got[0].Kind != batchapi.Answered || got[0].Status != 200 || got[1].Kind != batchapi.Lapsed {
		t.Errorf("results %+v", got)
	}
	check("cancel", api.Cancel(ctx, b.ID))
	certain, err := api.Withdraw(ctx, token, since)
	check("withdraw", err)
	if certain == api.Limits().Inline {
		t.Errorf("withdraw is certain: %t", certain)
	}
	check("delete", api.Delete(ctx, b))
	if _, err := api.Get(ctx, "none"); !errors.Is(err, batchapi.ErrNotFound) || batchapi.Uncertain(err) {
		t.Errorf("get of none: %v", err)
	}
}

func TestProvidersWithoutABatchAPIAreNamed(t *testing.T) {
	client := must.Value(llm.NewProvider(llm.OpenRouter, llm.ProviderConfig{APIKey: redact.NewSecret(secret), Model: "m"}))(t)
	defer client.Close()
	if _, err := batchapi.New(client); err == nil || !strings.Contains(err.Error(), `provider "openrouter" has no Batch API`) {
		t.Errorf("error %v", err)
	}
}

// The fingerprint tells accounts apart, and shows nothing of them.
func TestFingerprintTellsAccountsApart(t *testing.T) {
	seen := map[string]string{}
	for name, cfg := range map[string]llm.ProviderConfig{
		"one":     {APIKey: redact.NewSecret(secret)},
		"key":     {APIKey: redact.NewSecret(secret + "0")},
		"address": {APIKey: redact.NewSecret(secret), BaseURL: "https://eu.api.openai.com/v1"},
		"project": {APIKey: redact.NewSecret(secret), ExtraHeaders: redact.NewSecret(`{"OpenAI-Project":"p"}`)},
	} {
		cfg.Model = "m"
		client := must.Value(llm.NewProvider(llm.OpenAI, cfg))(t)
		mark := batchapi.Fingerprint(client)
		if other, ok := seen[mark]; ok || len(mark) != 32 {
			t.Errorf("%s and %s: %s", name, other, mark)
		}
		seen[mark] = name
		if _, err := client.SetLogin(redact.NewSecret("another"), redact.Secret{}); err != nil || batchapi.Fingerprint(client) == mark {
			t.Errorf("%s: same after another key, %v", name, err)
		}
		client.Close()
	}
}
