package llmtest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/schema"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg llmtest.Config, provider string) (*llm.Client, *llmtest.Server) {
	t.Helper()
	server := must.Value(llmtest.New(cfg))(t)
	pipe, stop := server.Pipe()
	t.Cleanup(stop)
	client := must.Value(llm.NewProvider(provider, llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext, Model: "m", Concurrency: 1000}))(t)
	t.Cleanup(client.Close)
	return client, server
}

// ask returns the exchange and the error's status, 0 for none.
func ask(t *testing.T, c *llm.Client, r llm.Request) (*llm.Exchange, int) {
	t.Helper()
	p := must.Value(c.Prepare(&r))(t)
	x, err := c.Do(t.Context(), p)
	if e, ok := errors.AsType[*llm.Error](err); ok {
		return x, e.Status
	}
	return x, 0
}

func TestSamePromptSameAnswerInBothDialects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const prompt = "Is \"Zoë's <b>toaster</b>\" good?\nIt broke after a day, and nobody at the shop would take it back."
		for _, provider := range []string{llm.Mock, llm.Anthropic} {
			client, _ := start(t, llmtest.Config{}, provider)
			for range 2 {
				x, status := ask(t, client, llm.Request{System: "Be brief.", Context: "It rains.", Prompt: prompt})
				if status != 0 || x.Reply.Text != llmtest.Answer(prompt) {
					t.Fatalf("%s: status %d, reply %+v, want %q", provider, status, x.Reply, llmtest.Answer(prompt))
				}
				if u := x.Reply.Usage; u == nil || u.PromptTokens == 0 || u.CompletionTokens == 0 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
					t.Errorf("%s: usage %+v", provider, u)
				}
			}
		}
		if a, b := llmtest.Answer("one"), llmtest.Answer("two"); a == b {
			t.Errorf("two prompts, one answer: %q", a)
		}
	})
}

func TestRateIsAdmittedAndTheRestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := start(t, llmtest.Config{Rate: 20, Burst: 4, RetryAfter: 1500 * time.Millisecond}, llm.Mock)
		got := map[int]int{}
		for i := range 100 * 4 { // 100 calls a second for four seconds
			x, status := ask(t, client, llm.Request{Prompt: fmt.Sprint(i)})
			got[status]++
			if status == 429 && x.RetryAfter != 1500*time.Millisecond {
				t.Fatalf("retry after %v", x.RetryAfter)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if want := 4 + 20*4; got[0] < want-1 || got[0] > want || got[0]+got[429] != 400 {
			t.Errorf("%d admitted and %d refused, want about %d and the rest", got[0], got[429], want)
		}
		if s := server.Stats(); s.Answered != int64(got[0]) || s.RateLimited != int64(got[429]) || s.Rejected() != s.RateLimited || s.InFlight != 0 {
			t.Errorf("stats %+v, want those of %v", s, got)
		}
	})
}

func TestScheduleRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		phases := must.Value(llmtest.ParseSchedule("20:4s, 5:4s"))(t)
		client, _ := start(t, llmtest.Config{Schedule: phases, Burst: 1}, llm.Mock)
		var got []int
		for range 4 { // phases
			admitted := 0
			for range 50 * 4 {
				if _, status := ask(t, client, llm.Request{Prompt: "x"}); status == 0 {
					admitted++
				}
				time.Sleep(20 * time.Millisecond)
			}
			got = append(got, admitted)
		}
		for i, want := range []int{80, 20, 80, 20} {
			// Asking every 20 ms meets at most one refill every 60 ms of 20 a second.
			if got[i] > want+1 || got[i] < want*8/10 {
				t.Errorf("admitted %v, want about 80, 20, 80, 20", got)
				break
			}
		}
	})
}

func TestNothingIsAdmittedAtRateZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := start(t, llmtest.Config{Schedule: []llmtest.Phase{{Rate: 0, For: time.Minute}, {Rate: 1, For: time.Minute}}, Burst: 1}, llm.Mock)
		var got []int
		for range 4 {
			_, status := ask(t, client, llm.Request{Prompt: "x"})
			got = append(got, status)
			time.Sleep(25 * time.Second)
		}
		if want := []int{0, 429, 429, 0}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestConcurrencyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := start(t, llmtest.Config{MaxConcurrent: 3, Latency: time.Second}, llm.Mock)
		var mu sync.Mutex
		got := map[int]int{}
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				_, status := ask(t, client, llm.Request{Prompt: fmt.Sprint(i)})
				mu.Lock()
				got[status]++
				mu.Unlock()
			})
		}
		wg.Wait()
		if s := server.Stats(); got[0] != 3 || got[429] != 7 || s.TooConcurrent != 7 || s.MaxInFlight != 3 {
			t.Errorf("got %v, stats %+v, want 3 answered and 7 refused", got, server.Stats())
		}
	})
}

func TestErrorsAndLatenciesRepeatBySeed(t *testing.T) {
	run := func(seed uint64, calls int) (statuses []int, latencies []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			client, _ := start(t, llmtest.Config{
				Latency: time.Second, LatencySigma: 0.5, Seed: seed,
				Errors: map[int]float64{429: .2, 500: .1, 401: .05},
			}, llm.Mock)
			for range calls {
				x, status := ask(t, client, llm.Request{Prompt: "x"})
				statuses = append(statuses, status)
				latencies = append(latencies, x.Latency)
			}
		})
		return statuses, latencies
	}
	statuses, latencies := run(1, 1000)
	again, _ := run(1, 100)
	other, _ := run(2, 100)
	if !slices.Equal(statuses[:100], again) || slices.Equal(again, other) {
		t.Error("equal seeds differ, or different ones do not")
	}
	count := map[int]int{}
	var served []time.Duration
	for i, status := range statuses {
		count[status]++
		if status == 0 {
			served = append(served, latencies[i])
		}
	}
	for status, want := range map[int]int{0: 650, 429: 200, 500: 100, 401: 50} {
		if math.Abs(float64(count[status]-want)) > 4*math.Sqrt(float64(want)) {
			t.Errorf("%d calls with %d, want about %d", count[status], status, want)
		}
	}
	slices.Sort(served)
	if median := served[len(served)/2]; median < 900*time.Millisecond || median > 1100*time.Millisecond {
		t.Errorf("median latency %v, want about 1s", median)
	}
	if low := served[len(served)/6]; low < 500*time.Millisecond || low > 750*time.Millisecond {
		t.Errorf("latency one sigma below the median is %v, want about 607ms", low)
	}
}

func TestAnswerSatisfiesTheSchema(t *testing.T) {
	schema := must.Value(schema.Parse([]byte(`{"type":"object","properties":{
		"mood":{"type":"string","enum":["good","bad"]},"stars":{"type":"integer"},"tags":{"type":"array","items":{"$ref":"#/$defs/tag"}},
		"spam":{"type":["boolean","null"]},"note":{"anyOf":[{"type":"string"},{"type":"null"}]},"kind":{"type":"string","const":"review"}},
		"required":["mood","stars","tags","spam","note","kind"],"additionalProperties":false,"$defs":{"tag":{"type":"string"}}}`), "schema"))(t)
	synctest.Test(t, func(t *testing.T) {
		for _, provider := range []string{llm.Mock, llm.Anthropic} {
			client, _ := start(t, llmtest.Config{}, provider)
			moods := map[string]bool{}
			for i := range 20 {
				x, status := ask(t, client, llm.Request{Prompt: fmt.Sprint(i), Schema: schema})
				if status != 0 {
					t.Fatalf("status %d", status)
				}
				value, err := schema.Validate(x.Reply.Text)
				if err != nil {
					t.Fatalf("%s: %v in %s", provider, err, x.Reply.Text)
				}
				var v struct{ Mood string }
				must.Do(t, json.Unmarshal(value, &v))
				moods[v.Mood] = true
			}
			if len(moods) != 2 {
				t.Errorf("%s: always the same value", provider)
			}
		}
	})
}

func TestRequestsThatARealServerRefusesAreRefused(t *testing.T) {
	server := must.Value(llmtest.New(llmtest.Config{}))(t)
	tests := []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`, 200},
		{"POST", "/v1/chat/completions", `{"model":"m","messages":[]}`, 400},
		{"POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}]}`, 400},
		{"POST", "/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`, 400},
		{"POST", "/v1/chat/completions", `not JSON`, 400},
		{"GET", "/v1/chat/completions", ``, 405},
		{"POST", "/v1/audio/speech", `{}`, 404},
		{"POST", "/v1/messages", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, 200},
		{"POST", "/v1/messages", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, 400},
		{"POST", "/v1/publishers/google/models/m:generateContent", `{"contents":[{"parts":[{"text":"hi"}]}]}`, 400},
		{"POST", "/v1/publishers/google/models/m:generateContent", `{"contents":[{"role":"user","parts":[{"fileData":{"fileUri":"gs://b/a.png"}}]}]}`, 400},
		{"POST", "/v1/projects/p/locations/l/publishers/anthropic/models/m:rawPredict", `{"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, 400},
		{"POST", "/v1/projects/p/locations/l/publishers/anthropic/models/m:rawPredict", `{"anthropic_version":"vertex-2023-10-16","model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, 400},
		{"POST", "/v1/projects/p/locations/l/publishers/google/models/m:rawPredict", `{"anthropic_version":"vertex-2023-10-16","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[{"role":"user","content":[{"text":"hi"}]}]}`, 200},
		{"POST", "/model/arn%3Aaws%3Abedrock%2Fm/converse", `{"messages":[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"text":"a"}]},{"role":"user","content":[{"text":"b"}]}]}`, 200},
		{"POST", "/model//converse", `{"messages":[{"role":"user","content":[{"text":"hi"}]}]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[{"role":"assistant","content":[{"text":"hi"}]}]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[{"role":"user","content":[{"text":"a"}]},{"role":"user","content":[{"text":"b"}]}]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[{"role":"user","content":[{"text":" "}]}]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[{"role":"user","content":[]}]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[{"role":"user","content":[{"toolResult":{"toolUseId":"t","content":[{"text":"a"}]}}]}]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[{"role":"user","content":[{"document":{"format":"pdf","name":"a","source":{"bytes":"YQ=="}}}]}]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[{"role":"user","content":[{"text":"hi"},{"document":{"format":"pdf","name":"a_b","source":{"bytes":"YQ=="}}}]}]}`, 400},
		{"POST", "/model/m/converse", `{"messages":[{"role":"user","content":[{"text":"hi"},{"video":{}}]}]}`, 400},
		{"GET", "/stats", ``, 200},
	}
	for _, tt := range tests {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, strings.NewReader(tt.body)))
		if w.Code != tt.want || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %s %s = %d %s, want %d", tt.method, tt.path, tt.body, w.Code, w.Body, tt.want)
		}
	}
	if s := server.Stats(); s.Received != 26 || s.Answered != 4 || s.Invalid != 22 || s.InFlight != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestSettingsAreParsedOrRefused(t *testing.T) {
	for s, want := range map[string]int{"": 0, "20:60s,5:1m30s": 2, "0:1s": 1} {
		if got, err := llmtest.ParseSchedule(s); err != nil || len(got) != want {
			t.Errorf("ParseSchedule(%q) = %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"20", "20:", ":60s", "-1:60s", "NaN:60s", "20:0s", "20:60s,", "20:60s;5:60s"} {
		if got, err := llmtest.ParseSchedule(s); err == nil {
			t.Errorf("ParseSchedule(%q) = %v, want an error", s, got)
		}
	}
	shares, err := llmtest.ParseErrors("500=.01, 429=.2")
	if err != nil || !maps.Equal(shares, map[int]float64{429: 0.2, 500: 0.01}) {
		t.Errorf("ParseErrors = %v, %v", shares, err)
	}
	for _, s := range []string{"429", "x=.1", "429=x", "200=.1", "429=-1", "429=NaN", "429=.6,500=.6", "429=.1,429=.1"} {
		if got, err := llmtest.ParseErrors(s); err == nil {
			t.Errorf("ParseErrors(%q) = %v, want an error", s, got)
		}
	}
	_, err = llmtest.New(llmtest.Config{Rate: -1, Burst: -1, MaxConcurrent: -1, Latency: -1, LatencySigma: -1, RetryAfter: -1, Schedule: []llmtest.Phase{{}}, Errors: map[int]float64{7: 2}})
	if err == nil || strings.Count(err.Error(), "\n") != 9 {
		t.Errorf("want ten problems at once, got %v", err)
	}
}

func TestListenerRefusesAfterClose(t *testing.T) {
	l := llmtest.NewPipeListener()
	must.Do(t, l.Close())
	if _, err := l.DialContext(t.Context(), "tcp", "x:1"); err == nil {
		t.Error("dial after close: no error")
	}
	if _, err := l.Accept(); err == nil {
		t.Error("accept after close: no error")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func ExampleServer() {
	flaky, err := llmtest.New(llmtest.Config{Rate: 1, Burst: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(flaky)
	defer server.Close()
	for range 3 {
		const body = `{"model": "mock", "messages": [{"role": "user", "content": "Say hello."}]}`
		resp, err := http.Post(server.URL+"/v1/chat/completions", "application/json", strings.NewReader(body)) //nolint:noctx // an example
		if err != nil {
			fmt.Println(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	fmt.Println(flaky.Stats().RateLimited, "refused")
	// Output:
	// 200
	// 200
	// 429
	// 1 refused
}

func BenchmarkServer(b *testing.B) {
	server := must.Value(llmtest.New(llmtest.Config{}))(b)
	const body = `{"model":"m","messages":[{"role":"user","content":"Is this review good or bad?"}]}`
	b.ReportAllocs()
	for b.Loop() {
		server.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(body)))
	}
}

func TestItSaysWhatItSaw(t *testing.T) {
	const picture = "iVBORw0KGgo=" // the first bytes of a PNG
	const seen = "8 bytes, sha256 4c4b6a3be1314ab86138bef4314dde022e600960d8689a2c8f8631802d20dab6"
	tests := map[string]struct{ path, body, want string }{
		"chat": {
			"/v1/chat/completions", `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},
			{"role":"user","content":[{"type":"text","text":"c"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + picture + `"}},
			{"type":"input_audio","input_audio":{"data":"` + picture + `","format":"wav"}},{"type":"file","file":{"file_data":"data:application/pdf;base64,` + picture + `"}}]}]}`,
			"system, user, assistant, user (image/png, " + seen + ") (audio/wav, " + seen + ") (application/pdf, " + seen + ")",
		},
		"responses": {
			"/v1/responses", `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"c"},
			{"type":"input_image","image_url":"https://host/a.png"},{"type":"input_file","file_data":"data:application/pdf;base64,` + picture + `"}]}]}`,
			"user (https://host/a.png) (application/pdf, " + seen + ")",
		},
		"messages": {
			"/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"c"},
			{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + picture + `"}},{"type":"document","source":{"type":"url","url":"https://host/a.pdf"}}]}]}`,
			"user (image/png, " + seen + ") (https://host/a.pdf)",
		},
		"gemini": {
			"/v1beta/models/m:generateContent", `{"contents":[{"role":"model","parts":[{"text":"b"}]},{"role":"user","parts":[{"text":"c"},
			{"inlineData":{"mimeType":"image/png","data":"` + picture + `"}},{"fileData":{"fileUri":"https://host/a.mp3"}}]}]}`,
			"model, user (image/png, " + seen + ") (https://host/a.mp3)",
		},
		"vertex": {
			"/v1/projects/p/locations/l/publishers/google/models/m:generateContent", `{"contents":[{"role":"model","parts":[{"text":"b"}]},{"role":"user","parts":[{"text":"c"},
			{"fileData":{"fileUri":"gs://bucket/a.mp3","mimeType":"audio/mp3"}}]}]}`, "model, user (gs://bucket/a.mp3)",
		},
		"converse": {
			"/model/m/converse", `{"system":[{"text":"s"}],"messages":[{"role":"user","content":[{"text":"a"}]},{"role":"assistant","content":[{"text":"b"}]},
			{"role":"user","content":[{"text":"c"},{"image":{"format":"png","source":{"bytes":"` + picture + `"}}},{"document":{"format":"pdf","name":"a","source":{"bytes":"` + picture + `"}}},
			{"audio":{"format":"mp3","source":{"bytes":"` + picture + `"}}}]}]}`,
			"system, user, assistant, user (image/png, " + seen + ") (application/pdf, " + seen + ") (audio/mp3, " + seen + ")",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			reply := answered(t, tt.path, tt.body)
			if want := llmtest.Answer("c") + " | saw " + tt.want; reply.Code != 200 || !strings.Contains(reply.Body.String(), want) {
				t.Errorf("answered %d %s\nwant %s", reply.Code, reply.Body, want)
			}
		})
	}
	for name, url := range map[string]string{"no base64": "data:image/png;base64,?", "nothing": "data:image/png;base64,", "a path": "a.png"} {
		t.Run(name, func(t *testing.T) {
			reply := answered(t, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+url+`"}}]}]}`)
			if reply.Code != 400 {
				t.Errorf("answered %d %s", reply.Code, reply.Body)
			}
		})
	}
}

// answered returns what a server that admits every call answers.
func answered(t *testing.T, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	server := must.Value(llmtest.New(llmtest.Config{}))(t)
	w := httptest.NewRecorder()
	server.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
	return w
}
