package job

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
)

// batchLines writes results in the form of the output files of OpenAI's Batch API, one
// line for each request:
//
//	{"id":"batch_req_…","custom_id":"a","error":null,
//	 "response":{"status_code":200,"request_id":"…","body":{…}}}
//
// The body is the provider's own reply if that is a chat completion. Otherwise it is a
// chat completion made from the result. A request that the provider has refused has the
// provider's status, and an error as the body. One that failed in any other way has an
// error beside the response, which is null. So has one that was erased, and its custom_id
// is gone.
//
// A line depends on the stored result alone, so that a job that is resumed writes the
// same bytes again. Ids that a provider did not give are therefore hashes, not random.
type batchLines struct {
	field string // the member that has the reply
	shown bool   // the lines go to a terminal, and must not control it
}

// batchParts returns the parts of replies that the lines need: the whole reply of a
// provider that speaks chat completions, and the single parts from any other one.
func batchParts(provider string) llm.Keep {
	if p, known := llm.LookupProvider(provider); known && p.SpeaksChat() {
		return llm.KeepRaw
	}
	return llm.KeepID | llm.KeepFinishReason | llm.KeepToolCalls | llm.KeepLogprobs
}

func (b *batchLines) write(w io.Writer, r stored.Result) error {
	if _, err := jsonbytes.ReadObject(nil, r.Body); err != nil {
		return fmt.Errorf("result of row %d: %w", r.Seq, err)
	}
	id := jsonbytes.Find(r.Body, "custom_id")
	fault := findIn(r.Body, b.field+"_error")
	if id == nil { // an invalid row is not in its result, but a preview of it is in the error
		if preview := findIn(fault, "body_preview"); len(preview) > 0 && preview[0] == '"' {
			id = rowfile.BatchID([]byte(jsonbytes.Text(preview)))
		}
	}
	line := jsonbytes.AppendString([]byte(`{"id":`), "batch_req_"+batchName("request", r.Seq, id))
	line = appendValue(append(line, `,"custom_id":`...), id)
	line = append(line, `,"response":`...)
	status := findIn(fault, "status_code")
	switch {
	case hasNoReply(r) && len(status) > 0 && status[0] != 'n':
		line = append(append(line, `{"status_code":`...), status...)
		line = append(appendRequestID(line, r), `,"body":{"error":`...)
		line = append(appendRefusal(line, status, fault), `}},"error":null}`...)
	case hasNoReply(r):
		line = appendValue(append(line, `null,"error":{"code":`...), findIn(fault, "reason"))
		line = append(appendValue(append(line, `,"message":`...), findIn(fault, "error")), "}}"...)
	default:
		line = append(appendRequestID(append(line, `{"status_code":200`...), r), `,"body":`...)
		line = append(b.appendCompletion(line, r), `},"error":null}`...)
	}
	if b.shown {
		line = terminal.EscapeJSON(line)
	}
	return stored.WriteLine(w, line)
}

// appendRequestID appends the id of the request that was answered last.
func appendRequestID(dst []byte, r stored.Result) []byte {
	return jsonbytes.AppendString(append(dst, `,"request_id":`...), resultName(r))
}

// resultName returns an id that the same stored result always has, and no other result.
func resultName(r stored.Result) string {
	return batchName("result", r.At, strconv.AppendInt(nil, r.Stored.UnixNano(), 10))
}

// batchName returns an id that is always the same for the same sequence and text: a line
// that is written again has the same id.
func batchName(of string, sequence uint64, text []byte) string {
	sum := sha256.Sum256(append(strconv.AppendUint([]byte(of+" "), sequence, 10), text...))
	return hex.EncodeToString(sum[:16])
}

// appendRefusal appends an error as OpenAI's API writes it, with the type that this API
// gives to such a status.
func appendRefusal(dst, status, fault []byte) []byte {
	kind := "invalid_request_error"
	switch code, _ := strconv.Atoi(string(status)); {
	case code == http.StatusUnauthorized:
		kind = "authentication_error"
	case code == http.StatusForbidden:
		kind = "permission_error"
	case code == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case code >= http.StatusInternalServerError:
		kind = "server_error"
	}
	dst = appendValue(append(dst, `{"message":`...), findIn(fault, "error"))
	dst = append(append(append(dst, `,"type":"`...), kind...), `","param":null,"code":`...)
	return append(appendValue(dst, findIn(fault, "provider_code")), '}')
}

// appendValue appends a JSON value, or null in place of none.
func appendValue(dst, value []byte) []byte {
	if len(value) == 0 {
		return append(dst, "null"...)
	}
	return append(dst, value...)
}

// appendCompletion appends the chat completion of a result: the stored reply if that is
// one, otherwise one that is made of the parts in the result. A part that is unknown is
// null.
func (b *batchLines) appendCompletion(dst []byte, r stored.Result) []byte {
	member := func(suffix string) []byte { return jsonbytes.Find(r.Body, b.field+suffix) }
	if raw := member("_raw"); isList(findIn(raw, "choices")) {
		return append(dst, raw...)
	}
	dst = append(dst, `{"id":`...)
	if id := member("_id"); isString(id) {
		dst = append(dst, id...)
	} else {
		dst = jsonbytes.AppendString(dst, "chatcmpl-"+resultName(r))
	}
	dst = strconv.AppendInt(append(dst, `,"object":"chat.completion","created":`...),
		r.Stored.Unix(), 10)
	dst = appendValue(append(dst, `,"model":`...), member("_model"))
	dst = append(dst, `,"choices":[{"index":0,"message":{"role":"assistant","content":`...)
	calls := member("_tool_calls")
	dst = appendContent(dst, member(""), isList(calls))
	dst = append(dst, `,"refusal":null`...)
	called := false
	if isList(calls) {
		dst, called = appendCalls(dst, calls, r)
	}
	dst = append(dst, `},"logprobs":`...)
	dst = appendLogProbs(dst, member("_logprobs"))
	dst = append(dst, `,"finish_reason":"`...)
	dst = append(append(dst, finishOf(member("_finish_reason"), called)...), `"}]`...)
	dst = appendUsage(dst, member("_usage"))
	return append(dst, '}')
}

// isList and isString report whether a JSON value is an array, or a text. The first byte
// shows that, since values have no space around them.
func isList(value []byte) bool   { return len(value) > 0 && value[0] == '[' }
func isString(value []byte) bool { return len(value) > 0 && value[0] == '"' }

// appendContent appends the text of an answer. A value that a schema validated is written
// as the text that it was: {"a":1} becomes "{\"a\":1}". An answer of tool calls alone has
// no text.
func appendContent(dst, answer []byte, calls bool) []byte {
	switch {
	case calls && (len(answer) == 0 || string(answer) == `""`):
		return append(dst, "null"...)
	case isString(answer):
		return append(dst, answer...)
	}
	return jsonbytes.AppendString(dst, answer)
}

// appendCalls appends the tool calls of an answer. OpenAI writes arguments as a text, not
// as an object, and gives each call an id, which Gemini does not. called is false if
// there is no call.
func appendCalls(dst, calls []byte, r stored.Result) (_ []byte, called bool) {
	number := 0
	for call := range jsonbytes.Elements(calls) {
		if number++; number == 1 {
			dst = append(dst, `,"tool_calls":[`...)
		} else {
			dst = append(dst, ',')
		}
		called = true
		dst = append(dst, `{"id":`...)
		if id := findIn(call, "id"); isString(id) {
			dst = append(dst, id...)
		} else {
			dst = jsonbytes.AppendString(dst, fmt.Sprintf("call_%s_%d", resultName(r), number))
		}
		dst = appendValue(append(dst, `,"type":"function","function":{"name":`...),
			findIn(call, "name"))
		dst = append(dst, `,"arguments":`...)
		if arguments := findIn(call, "arguments"); isString(arguments) {
			dst = append(dst, arguments...)
		} else {
			dst = jsonbytes.AppendString(dst, arguments)
		}
		dst = append(dst, "}}"...)
	}
	if called {
		dst = append(dst, ']')
	}
	return dst, called
}

// appendLogProbs appends the log-probabilities of an answer, each with the bytes of its
// token, which results don't have.
func appendLogProbs(dst, tokens []byte) []byte {
	if !isList(tokens) {
		return append(dst, "null"...)
	}
	dst = append(dst, `{"content":[`...)
	first := true
	for token := range jsonbytes.Elements(tokens) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(appendToken(dst, token), `,"top_logprobs":[`...)
		some := false
		for other := range jsonbytes.Elements(findIn(token, "top")) {
			if some {
				dst = append(dst, ',')
			}
			some = true
			dst = append(appendToken(dst, other), '}')
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, `],"refusal":null}`...)
}

// appendToken appends a token and its log-probability, without the closing brace.
func appendToken(dst, token []byte) []byte {
	dst = appendValue(append(dst, `{"token":`...), findIn(token, "token"))
	dst = appendValue(append(dst, `,"logprob":`...), findIn(token, "logprob"))
	return append(dst, `,"bytes":null`...)
}

// finishOf translates the provider's reason why an answer ended to OpenAI's. For example,
// Anthropic's max_tokens and Gemini's MAX_TOKENS are length.
func finishOf(reason []byte, called bool) string {
	word := ""
	if isString(reason) {
		word = jsonbytes.Text(reason)
	}
	switch word {
	case "length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_context_window_exceeded":
		return "length"
	case "content_filter", "SAFETY", "refusal":
		return "content_filter"
	}
	if called {
		return "tool_calls"
	}
	return "stop"
}

// appendUsage appends the usage of an answer, with the details that are known.
func appendUsage(dst, usage []byte) []byte {
	dst = append(dst, `,"usage":`...)
	if len(usage) == 0 || usage[0] != '{' {
		return append(dst, "null"...)
	}
	dst = append(dst, '{')
	for _, name := range []string{"prompt_tokens", "completion_tokens", "total_tokens"} {
		dst = append(append(append(dst, '"'), name...), `":`...)
		dst = append(appendValue(dst, findIn(usage, name)), ',')
	}
	dst = dst[:len(dst)-1]
	if cached := findIn(usage, "cached_tokens"); cached != nil {
		dst = append(append(append(dst, `,"prompt_tokens_details":{"cached_tokens":`...),
			cached...), '}')
	}
	if thought := findIn(usage, "reasoning_tokens"); thought != nil {
		dst = append(append(append(dst, `,"completion_tokens_details":{"reasoning_tokens":`...),
			thought...), '}')
	}
	return append(dst, '}')
}

// isBatchLine reports whether a line is one that batchLines writes, so that a run may
// replace the file that it is in.
func isBatchLine(line []byte) bool {
	_, err := jsonbytes.ReadObject(nil, line)
	return err == nil && isString(jsonbytes.Find(line, "id")) &&
		jsonbytes.Find(line, "custom_id") != nil && jsonbytes.Find(line, "response") != nil &&
		jsonbytes.Find(line, "error") != nil
}
