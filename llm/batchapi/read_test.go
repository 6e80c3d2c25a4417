package batchapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

func clientOf(tb testing.TB, provider string, limit int64) caller {
	tb.Helper()
	client := must.Value(llm.NewProvider(provider, llm.ProviderConfig{BaseURL: "http://llm.test/v1", APIKey: redact.NewSecret("sk-secret-0123456789"), Model: "m", MaxReplyBytes: limit}))(tb)
	tb.Cleanup(client.Close)
	return caller{client}
}

func TestBatchesAreReadLeniently(t *testing.T) {
	for name, tt := range map[string]struct {
		provider, body, want string
	}{
		"openai": {
			llm.OpenAI, `{"id":"b1","status":"in_progress","created_at":1711471533,"input_file_id":"f1","output_file_id":null,"error_file_id":"","request_counts":{"total":100,"completed":95,"failed":5},"metadata":{"llm_stage_batch":"t"}}`,
			"b1 t running 2024-03-26T16:45:33Z in f1 out  err  rows 100 95 5",
		},
		"azure's sample": {
			llm.Azure, `{"cancelled_at":null,"created_at":"2024-07-19T17:13:57.2491382+00:00","error_file_id":null,"id":"b1","input_file_id":"f1","errors":null,"metadata":null,"output_file_id":null,"request_counts":{"total":null,"completed":null,"failed":null},"status":"Validating"}`,
			"b1  running 2024-07-19T17:13:57.2491382Z in f1 out  err  rows -1 -1 -1",
		},
		"azure, other words": {llm.Azure, `{"id":"b1","status":"Completed","output_file_id":"o","error_file_id":"e","request_counts":null}`, "b1  ended 0001-01-01T00:00:00Z in  out o err e rows -1 -1 -1"},
		"cancelled":          {llm.OpenAI, `{"id":"b1","status":"cancelled"}`, "b1  cancelled 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1"},
		"cancelling":         {llm.OpenAI, `{"id":"b1","status":"cancelling"}`, "b1  running 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1"},
		"expired":            {llm.OpenAI, `{"id":"b1","status":"expired","error_file_id":"e"}`, "b1  expired 0001-01-01T00:00:00Z in  out  err e rows -1 -1 -1"},
		"a word of tomorrow": {llm.OpenAI, `{"id":"b1","status":"pondering","request_counts":7,"created_at":{},"metadata":[]}`, "b1  running 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1"},
		"full queue": {
			llm.OpenAI, `{"id":"b1","status":"failed","errors":{"object":"list","data":[{"code":"token_limit_exceeded","message":"Enqueued token limit reached for m. Limit: 90,000 enqueued tokens.","line":null}]}}`,
			"b1  refused 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1; capacity true [] capacity token_limit_exceeded",
		},
		"many tasks": {llm.Azure, `{"id":"b1","status":"Failed","errors":[{"code":"too_many_tasks","message":"x"}]}`, "b1  refused 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1; capacity false [] permanent too_many_tasks"},
		"bad lines": {
			llm.OpenAI, `{"id":"b1","status":"failed","errors":{"data":[{"code":"invalid_json_line","message":"x","line":3},{"code":"duplicate_custom_id","line":7},{"code":"x","line":3}]}}`,
			"b1  refused 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1; capacity false [3 7] permanent invalid_json_line",
		},
		"no credit": {llm.OpenAI, `{"id":"b1","status":"failed","errors":{"data":[{"code":"x","line":1},{"code":"billing_hard_limit_reached","message":"y"}]}}`, "b1  refused 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1; capacity false [] fatal billing_hard_limit_reached"},
		"no reason": {llm.OpenAI, `{"id":"b1","status":"failed"}`, "b1  refused 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1; capacity false [] permanent "},
		"anthropic": {
			llm.Anthropic, `{"id":"b1","processing_status":"in_progress","created_at":"2024-08-20T18:37:24.100435Z","request_counts":{"processing":100,"succeeded":0,"errored":0,"canceled":0,"expired":0}}`,
			"b1  running 2024-08-20T18:37:24.100435Z in  out  err  rows 100 0 0",
		},
		"anthropic, expired": {llm.Anthropic, `{"id":"b1","processing_status":"ended","results_url":"u","request_counts":{"processing":0,"succeeded":50,"errored":30,"canceled":10,"expired":10}}`, "b1  expired 0001-01-01T00:00:00Z in  out u err  rows 100 50 30"},
		"gemini": {
			llm.Gemini, `{"name":"batches/b1","metadata":{"@type":"type.googleapis.com/x","displayName":"t","createTime":"2025-09-07T11:55:07.827892252Z","batchStats":{"requestCount":"5","pendingRequestCount":"5"},"state":"BATCH_STATE_PENDING","inputConfig":{"fileName":"files/f"}}}`,
			"batches/b1 t running 2025-09-07T11:55:07.827892252Z in files/f out  err  rows 5 -1 -1",
		},
		"gemini, inlined":   {llm.Gemini, `{"name":"batches/b1","done":true,"metadata":{"state":"JOB_STATE_PARTIALLY_SUCCEEDED"},"response":{"inlinedResponses":{"inlinedResponses":[]}}}`, "batches/b1  ended 0001-01-01T00:00:00Z in  out inlined err  rows -1 -1 -1"},
		"gemini, expired":   {llm.Gemini, `{"name":"batches/b1","done":true,"metadata":{"state":"BATCH_STATE_EXPIRED"}}`, "batches/b1  expired 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1"},
		"gemini, cancelled": {llm.Gemini, `{"name":"batches/b1","done":true,"error":{"code":1,"message":"x"}}`, "batches/b1  cancelled 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1"},
		"gemini, full":      {llm.Gemini, `{"name":"batches/b1","done":true,"metadata":{"state":"BATCH_STATE_FAILED"},"error":{"code":8,"message":"x"}}`, "batches/b1  refused 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1; capacity true [] capacity RESOURCE_EXHAUSTED"},
		"gemini, bad file":  {llm.Gemini, `{"name":"batches/b1","done":true,"error":{"code":3,"message":"x"}}`, "batches/b1  refused 0001-01-01T00:00:00Z in  out  err  rows -1 -1 -1; capacity false [] permanent INVALID_ARGUMENT"},
	} {
		t.Run(name, func(t *testing.T) {
			c := clientOf(t, tt.provider, 0)
			var b Batch
			var err error
			switch tt.provider {
			case llm.Anthropic:
				var m messageBatch
				err = json.Unmarshal([]byte(tt.body), &m)
				b = m.batch()
			case llm.Gemini:
				var op operation
				err = json.Unmarshal([]byte(tt.body), &op)
				b = (&geminiBatches{c}).batch(&op)
			default:
				var o batchObject
				err = c.read(&llm.RawReply{Status: 200, Body: []byte(tt.body)}, &o)
				b = newOpenAI(c, "").batch(&o)
			}
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%s %s %s %s in %s out %s err %s rows %d %d %d", b.ID, b.Token, b.State, b.Created.Format(time.RFC3339Nano), b.Input, b.Output, b.Errors, b.Rows, b.Answered, b.Failed)
			if r := b.Refusal; r != nil {
				word := r.Err.Code
				if word == "" {
					word = r.Err.Type
				}
				got += fmt.Sprintf("; capacity %t %v %v %s", r.Capacity, r.Lines, r.Err.Class, word)
			}
			if got != tt.want {
				t.Errorf("got\n%s, want\n%s", got, tt.want)
			}
		})
	}
}

func TestLinesAreRead(t *testing.T) {
	for name, tt := range map[string]struct {
		read func([]byte) Line
		line string
		want Line
	}{
		"openai":            {openAILine, `{"id":"r","custom_id":"a-1","response":{"status_code":200,"request_id":"q","body":{"x":1}},"error":null}`, Line{"a-1", Answered, 200, []byte(`{"x":1}`)}},
		"openai, 400":       {openAILine, `{"custom_id":"a-1","response":{"status_code":400,"body":{"error":{}}},"error":null}`, Line{"a-1", Answered, 400, []byte(`{"error":{}}`)}},
		"openai, expired":   {openAILine, `{"custom_id":"a-1","response":null,"error":{"code":"batch_expired","message":"m"}}`, Line{"a-1", Lapsed, 0, nil}},
		"openai, own error": {openAILine, `{"custom_id":"a-1","response":null,"error":{"code":"server_error","message":"m"}}`, Line{"a-1", Answered, 0, []byte(`{"error":{"code":"server_error","message":"m"}}`)}},
		"azure, text body":  {openAILine, `{"custom_id":"a-1","response":{"status_code":500,"body":"{\"a\":1}"}}`, Line{"a-1", Answered, 500, []byte(`{"a":1}`)}},
		"not UTF-8":         {openAILine, "{\"custom_id\":\"a-1\",\"response\":{\"status_code\":200,\"body\":{\"x\":\"\xe9\"}}}", Line{"a-1", Answered, 200, []byte("{\"x\":\"\xe9\"}")}},
		"not UTF-8, text":   {openAILine, "{\"custom_id\":\"a-1\",\"response\":{\"status_code\":200,\"body\":\"\xe9\"}}", Line{"a-1", Answered, 200, []byte("\"\xe9\"")}},
		"nothing":           {openAILine, `{"custom_id":"a-1","response":null,"error":null}`, Line{Kind: Garbled}},
		"no id":             {openAILine, `{"response":{"status_code":200,"body":{}}}`, Line{Kind: Garbled}},
		"cut":               {openAILine, `{"custom_id":"a-1","response":{"status_code":200,"bo`, Line{Kind: Garbled}},
		"anthropic":         {messageLine, `{"custom_id":"a-1","result":{"type":"succeeded","message":{"x":1}}}`, Line{"a-1", Answered, 200, []byte(`{"x":1}`)}},
		"anthropic, 400":    {messageLine, `{"custom_id":"a-1","result":{"type":"errored","error":{"type":"error","error":{"type":"invalid_request_error"}}}}`, Line{"a-1", Answered, 400, []byte(`{"type":"error","error":{"type":"invalid_request_error"}}`)}},
		"anthropic, bare":   {messageLine, `{"custom_id":"a-1","result":{"type":"errored","error":{"type":"overloaded_error"}}}`, Line{"a-1", Answered, 529, []byte(`{"error":{"type":"overloaded_error"}}`)}},
		"anthropic, late":   {messageLine, `{"custom_id":"a-1","result":{"type":"canceled"}}`, Line{"a-1", Lapsed, 0, nil}},
		"anthropic, other":  {messageLine, `{"custom_id":"a-1","result":{"type":"pondered"}}`, Line{Kind: Garbled}},
		"gemini":            {geminiLine, `{"response":{"x":1},"key":"a-1"}`, Line{"a-1", Answered, 200, []byte(`{"x":1}`)}},
		"gemini, metadata":  {geminiLine, `{"metadata":{"key":"a-1"},"response":{"x":1}}`, Line{"a-1", Answered, 200, []byte(`{"x":1}`)}},
		"gemini, no key":    {geminiLine, `{"response":{"x":1}}`, Line{Kind: Garbled}},
		"gemini, full":      {geminiLine, `{"key":"a-1","error":{"code":8,"message":"m"}}`, Line{"a-1", Answered, 429, []byte(`{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}`)}},
		"gemini, HTTP code": {geminiLine, `{"key":"a-1","error":{"code":503}}`, Line{"a-1", Answered, 503, []byte(`{"error":{"code":503}}`)}},
		"gemini, cancelled": {geminiLine, `{"key":"a-1","error":{"code":1}}`, Line{"a-1", Lapsed, 0, nil}},
	} {
		if got := tt.read([]byte(tt.line)); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v %s, want %+v", name, got, got.Body, tt.want)
		}
	}
}

// A line that is longer than any reply may be fails its row as a live reply does, where its id can be told.
func TestLongLinesAreBounded(t *testing.T) {
	c := clientOf(t, llm.OpenAI, 1000)
	long := `{"id":"r","custom_id":"a-1","response":{"status_code":200,"body":"` + strings.Repeat("x", 1<<20)
	input := "\ufeff" + `{"custom_id":"a-0","response":{"status_code":200,"body":{}}}` + "\r\n\n" + long + "\n" + strings.Repeat("y", 1<<20) + "\n" + `{"custom_id":"a-2","response":{"status_code":200,"body":{}}}`
	var got []string
	err := c.readLines(t.Context(), strings.NewReader(input), openAILine, func(l Line) error {
		got = append(got, fmt.Sprintf("%s %d", l.ID, l.Kind))
		if l.ID == "a-1" {
			p, err := c.client.Prepare(&llm.Request{Prompt: "x"})
			if err != nil {
				return err
			}
			if _, err := c.client.ReadReply(p, l.Status, l.Body); err == nil || !strings.Contains(err.Error(), "bound") || len(l.Body) > 1000+overheadBytes {
				t.Errorf("the long line's error: %v, %d bytes", err, len(l.Body))
			}
		}
		return nil
	})
	if want := "[a-0 1 a-1 1  3 a-2 1]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v %v, want %s", got, err, want)
	}
}

// A byte order mark before Gemini's list of results, which is one JSON value, is ignored.
func TestInlinedResultsBehindAByteOrderMark(t *testing.T) {
	g := &geminiBatches{clientOf(t, llm.Gemini, 1000)}
	for _, mark := range []string{"", "\ufeff"} {
		var got []string
		err := g.readInlined(t.Context(), strings.NewReader(mark+`{"response":{"inlinedResponses":{"inlinedResponses":[{"key":"a","response":{}}]}}}`), func(l Line) error {
			got = append(got, l.ID)
			return nil
		})
		if err != nil || fmt.Sprint(got) != "[a]" {
			t.Errorf("mark %q: %v, %v", mark, got, err)
		}
	}
}

// Whatever a file of results holds, each line of it is read once, in bounded time and memory.
func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"custom_id":"a-1","response":{"status_code":200,"body":{}}}` + "\n" + `{"custom_id":"a-2","result":{"type":"errored","error":{"type":"x"}}}`))
	f.Add([]byte("\ufeff{\"key\":\"a\",\"error\":{\"code\":8,\"details\":[1]}}\r\n\r\n{"))
	f.Add([]byte(`{"response":{"inlinedResponses":{"inlinedResponses":[{"key":"a","response":{}},{"metadata":{"key":"b"}}]}}}`))
	c := clientOf(f, llm.OpenAI, 1<<10)
	g := &geminiBatches{c}
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := strings.Count(string(data), "\n") + 1
		for _, read := range []func([]byte) Line{openAILine, messageLine, geminiLine} {
			n := 0
			_ = c.readLines(t.Context(), strings.NewReader(string(data)), read, func(l Line) error { // any error will do
				if n++; l.Kind == 0 || (l.ID == "") != (l.Kind == Garbled) || len(l.Body) > 2*len(data)+200 {
					t.Errorf("line %+v", l)
				}
				return nil
			})
			if n > lines {
				t.Errorf("%d lines of %d", n, lines)
			}
		}
		_ = g.readInlined(t.Context(), strings.NewReader(string(data)), func(Line) error { return nil }) // as above
	})
}
