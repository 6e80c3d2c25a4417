package job

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
)

var batchIDs = regexp.MustCompile(`[0-9a-f]{32}`)

func batchLine(t *testing.T, r stored.Result) string {
	t.Helper()
	var out bytes.Buffer
	stagetest.Must(t, (&batchLines{field: "F"}).write(&out, r))
	return out.String()
}

// A line is the same whenever it is written, and no other line has its ids.
func TestLinesOfABatchHaveIDsOfTheirOwn(t *testing.T) {
	at := time.Unix(1700000000, 5)
	first := stored.Result{Seq: 1, At: 1, Stored: at, Body: []byte(`{"custom_id":"a","F":"x"}`)}
	if once, again := batchLine(t, first), batchLine(t, first); once != again {
		t.Errorf("a result has two lines: %s and %s", once, again)
	}
	ids := batchIDs.FindAllString(batchLine(t, first), -1)
	for _, other := range []stored.Result{
		{Seq: 2, At: 2, Stored: at, Body: first.Body}, {Seq: 1, At: 1, Stored: at.Add(1), Body: []byte(`{"custom_id":"b","F":"x"}`)},
	} {
		for _, id := range batchIDs.FindAllString(batchLine(t, other), -1) {
			if slices.Contains(ids, id) {
				t.Errorf("two lines have the id %s", id)
			}
		}
	}
}

// What OpenAI's Batch API would have written for a result, whatever the provider.
func TestResultsAsLinesOfABatch(t *testing.T) {
	const head = `{"id":"batch_req_ID","custom_id":`
	const answered = `,"response":{"status_code":200,"request_id":"ID","body":`
	const tail = `},"error":null}` + "\n"
	completion := func(id, message, rest string) string {
		return `{"id":` + id + `,"object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant",` + message + `},` + rest + `}`
	}
	const row = `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{}`
	for _, tt := range []struct {
		name, body, want string
		failed           bool
	}{
		{"the provider's own reply", row + `,"F":"hi","F_raw":{"id":"x","choices":[{"index":0}],"other":1.0}}`, head + `"a"` + answered + `{"id":"x","choices":[{"index":0}],"other":1.0}` + tail, false},
		{
			"a reply in another form", row + `,"F":"hi","F_usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"cached_tokens":2,"reasoning_tokens":1},"F_model":"m","F_raw":{"type":"message"},"F_id":"msg_1","F_finish_reason":"max_tokens","F_tool_calls":null,"F_logprobs":null}`,
			head + `"a"` + answered + completion(`"msg_1"`, `"content":"hi","refusal":null`, `"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":1}}`) + tail, false,
		},
		{
			"calls and log-probabilities", row + `,"F":"","F_usage":null,"F_model":"m","F_finish_reason":"tool_use","F_tool_calls":[{"id":"c1","name":"f","arguments":{"a":"b"}},{"id":null,"name":"g","arguments":"not JSON"}],"F_logprobs":[{"token":"h","logprob":-0.5,"top":[{"token":"i","logprob":-1}]}]}`,
			head + `"a"` + answered + completion(`"chatcmpl-ID"`, `"content":null,"refusal":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":\"b\"}"}},{"id":"call_ID_2","type":"function","function":{"name":"g","arguments":"not JSON"}}]`,
				`"logprobs":{"content":[{"token":"h","logprob":-0.5,"bytes":null,"top_logprobs":[{"token":"i","logprob":-1,"bytes":null}]}],"refusal":null},"finish_reason":"tool_calls"}],"usage":null`) + tail, false,
		},
		{
			"a validated value", row + `,"F":{"a": 1},"F_usage":null,"F_model":"m"}`,
			head + `"a"` + answered + completion(`"chatcmpl-ID"`, `"content":"{\"a\": 1}","refusal":null`, `"logprobs":null,"finish_reason":"stop"}],"usage":null`) + tail, false,
		},
		{
			"a refused request", row + `,"F_error":{"reason":"api_call_failed","error":"openai: 400 Bad Request: too long","provider_code":"context_length_exceeded","status_code":400,"errors":[]}}`,
			head + `"a","response":{"status_code":400,"request_id":"ID","body":{"error":{"message":"openai: 400 Bad Request: too long","type":"invalid_request_error","param":null,"code":"context_length_exceeded"}}},"error":null}` + "\n", true,
		},
		{
			"a server's error", row + `,"F_error":{"reason":"api_call_failed","error":"e","provider_code":null,"status_code":503,"errors":[]}}`,
			head + `"a","response":{"status_code":503,"request_id":"ID","body":{"error":{"message":"e","type":"server_error","param":null,"code":null}}},"error":null}` + "\n", true,
		},
		{
			"no reply", row + `,"F_error":{"reason":"api_call_failed","error":"time-out","provider_code":null,"status_code":null,"errors":[]}}`,
			head + `"a","response":null,"error":{"code":"api_call_failed","message":"time-out"}}` + "\n", true,
		},
		{
			"a row that was left out", `{"F_error":{"reason":"invalid_row","error":"e","body_preview":"{ \"custom_id\": \"a\\\"b\", \"x\"…","errors":[]}}`,
			head + `"a\"b","response":null,"error":{"code":"invalid_row","message":"e"}}` + "\n", true,
		},
		{"no row", `{"F_error":{"reason":"invalid_row","error":"e","body_preview":"not JSON","errors":[]}}`, head + `null,"response":null,"error":{"code":"invalid_row","message":"e"}}` + "\n", true},
	} {
		out := batchLine(t, stored.Result{Seq: 1, At: 1, Stored: time.Unix(1700000000, 5), Failed: tt.failed, Body: []byte(tt.body)})
		if got := batchIDs.ReplaceAllString(out, "ID"); got != tt.want || !json.Valid([]byte(out)) {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.name, got, tt.want)
		}
		if !isResult([]byte(out), "F") {
			t.Errorf("%s: the line is not known again", tt.name)
		}
	}
}
