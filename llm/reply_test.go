package llm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var references = map[Wire]func([]byte, *Reply, *ending){
	ChatCompletions{}: referenceChat, Messages{}: referenceMessages, GenerateContent{}: referenceGemini, Responses{}: referenceResponses,
	Converse{}: referenceConverse,
}

// checkReference compares how a wire format reads a body with how its reference does.
func checkReference(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, w Wire, body []byte,
) {
	t.Helper()
	if ambiguous(body) || !utf8.Valid(body) || bytes.HasPrefix(body, []byte("\ufeff")) {
		return
	}
	var got, want Reply
	var gotEnding, wantEnding ending
	readReply(w, body, &got, &gotEnding)
	references[w](body, &want, &wantEnding)
	if _, answer, reasoned := splitReasoning(want.Text); reasoned {
		if want.Text = answer; blank(answer) && wantEnding.Form == formReply {
			wantEnding.Form = formReasoning
		}
	}
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotEnding, wantEnding) {
		t.Fatalf("%T of %q\n got %s %+v\nwant %s %+v", w, body, printed(&got), gotEnding, printed(&want), wantEnding)
	}
}

func printed(r *Reply) string {
	text, err := json.Marshal(r)
	return fmt.Sprintf("%s %v", text, err)
}

// ambiguous reports whether some object has a name twice, which encoding/json merges in its own way, or a name of a wire
// format in other letters, which it takes for the same.
func ambiguous(body []byte) bool {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var open []map[string]bool // the names of each open object; nil: an array
	name := false              // one comes next
	for {
		token, err := d.Token()
		if err != nil {
			return false // at the end, or no JSON: then there is nothing to read
		}
		top := len(open) - 1
		switch v := token.(type) {
		case json.Delim:
			switch v {
			case '{':
				open = append(open, map[string]bool{})
			case '[':
				open = append(open, nil)
			default:
				open = open[:top]
			}
		case string:
			if !name {
				break
			}
			name = false
			folded := strings.ToLower(strings.ToUpper(v)) // up first: ſ is an S
			if open[top][folded] || slices.ContainsFunc(replyNames, func(n string) bool { return n != v && strings.EqualFold(n, v) }) {
				return true
			}
			open[top][folded] = true
			continue
		}
		name = len(open) > 0 && open[len(open)-1] != nil
	}
}

// replyNames are the names that the wire formats read.
var replyNames = []string{
	"id", "model", "choices", "usage", "error", "finish_reason", "message", "content", "refusal", "type", "text", "status", "output",
	"prompt_tokens", "completion_tokens", "total_tokens", "cost", "prompt_tokens_details", "completion_tokens_details", "cached_tokens",
	"reasoning_tokens", "cache_write_tokens", "cost_in_usd_ticks", "is_byok", "cost_details", "total_cost",
	"upstream_inference_cost", "cache_creation", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens", "thinking_tokens",
	"stop_reason", "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
	"input_tokens_details", "output_tokens_details", "incomplete_details", "reason", "native_finish_reason", "provider_specific_fields",
	"phase", "functionCall", "tool_calls", "function_call", "environment", "execution",
	"responseId", "modelVersion", "candidates", "finishReason", "parts", "thought", "promptFeedback", "blockReason", "usageMetadata",
	"stopReason", "citationsContent", "inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "cacheDetails", "ttl", "trace",
	"promptRouter", "invokedModelId",
	"promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount", "totalTokenCount",
}

func TestRepliesAreReadAsByEncodingJSON(t *testing.T) {
	for w := range references {
		t.Run(fmt.Sprintf("%T", w), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				body := drawReply(t, "")
				if rapid.IntRange(0, 9).Draw(t, "cut") == 0 {
					body = body[:rapid.IntRange(0, len(body)).Draw(t, "end")] + rapid.SampledFrom([]string{"", " ", "x", "{}", "\x00"}).Draw(t, "behind")
				}
				checkReference(t, w, []byte(body))
			})
		})
	}
}

// inside lists the names that the objects under a name have; "" is the reply itself.
var inside = map[string][]string{
	"": {
		"id", "model", "choices", "usage", "error", "status", "output", "content", "stop_reason", "incomplete_details",
		"responseId", "modelVersion", "candidates", "promptFeedback", "usageMetadata", "stopReason", "trace",
	},
	"choices":                  {"message", "finish_reason", "native_finish_reason", "provider_specific_fields", "error"},
	"provider_specific_fields": {"native_finish_reason"}, "message": {"content", "refusal", "tool_calls", "function_call"}, "tool_calls": {"id"}, "content": {"type", "text", "refusal", "parts", "citationsContent"}, "citationsContent": {"content"}, "trace": {"promptRouter"}, "promptRouter": {"invokedModelId"},
	"parts": {"text", "thought", "functionCall"}, "output": {"type", "status", "phase", "content", "environment", "execution", "message"}, "environment": {"type"}, "candidates": {"content", "finishReason"},
	"usage": {
		"prompt_tokens", "completion_tokens", "total_tokens", "cost", "prompt_tokens_details", "completion_tokens_details", "input_tokens",
		"output_tokens", "input_tokens_details", "output_tokens_details", "cache_creation_input_tokens",
		"cache_read_input_tokens", "reasoning_tokens", "cost_in_usd_ticks", "is_byok", "cost_details", "cache_creation",
		"inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "cacheDetails",
	},
	"cacheDetails":          {"inputTokens", "ttl"},
	"prompt_tokens_details": {"cached_tokens", "cache_write_tokens"}, "completion_tokens_details": {"reasoning_tokens"},
	"input_tokens_details": {"cached_tokens", "cache_write_tokens"}, "output_tokens_details": {"reasoning_tokens", "thinking_tokens"},
	"cost_details": {"upstream_inference_cost"}, "cache_creation": {"ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"},
	"incomplete_details": {"reason"}, "promptFeedback": {"blockReason"},
	"usageMetadata": {
		"promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount", "totalTokenCount",
	},
}

var lists = []string{"choices", "candidates", "parts", "tool_calls", "cacheDetails"}

// drawReply draws what stands under a name: mostly what belongs there, sometimes anything.
func drawReply(t *rapid.T, name string) string {
	space := rapid.SampledFrom([]string{"", "", " ", "\n\t"}).Draw(t, "space")
	odd := rapid.IntRange(0, 15).Draw(t, "odd") == 15 // rapid favours the ends, and 0 most
	if names := inside[name]; names != nil && !odd {
		object := func() string {
			var b strings.Builder
			b.WriteString("{" + space)
			comma := ""
			for _, n := range rapid.Permutation(append([]string{"other"}, names...)).Draw(t, "names") {
				if rapid.IntRange(0, 5).Draw(t, "left out") == 5 {
					continue
				}
				b.WriteString(comma + space + strconv.Quote(n) + space + ":" + space + drawReply(t, n) + space)
				comma = ","
			}
			return b.String() + "}"
		}
		form := "object"
		switch {
		case name == "output": // the formats differ
			form = rapid.SampledFrom([]string{"list", "object"}).Draw(t, "form")
		case name == "content": // likewise
			form = rapid.SampledFrom([]string{"list", "object", "text"}).Draw(t, "form")
		case slices.Contains(lists, name):
			form = "list"
		}
		switch form {
		case "object":
			return object()
		case "text":
			return `"Good."`
		}
		var elements []string
		for range rapid.SampledFrom([]int{1, 1, 2, 0}).Draw(t, "length") {
			elements = append(elements, object()+space)
		}
		return "[" + space + strings.Join(elements, ","+space) + "]"
	}
	if strings.Contains(strings.ToLower(name), "token") && !odd {
		return strconv.Itoa(rapid.IntRange(0, 99).Draw(t, "tokens"))
	}
	if name == "ttl" && !odd {
		return rapid.SampledFrom([]string{`"5m"`, `"1h"`}).Draw(t, "lifetime")
	}
	if name == "type" && !odd {
		return rapid.SampledFrom([]string{`"text"`, `"message"`, `"output_text"`, `"refusal"`, `"thinking"`, `"function_call"`, `"shell_call"`, `"tool_search_call"`}).Draw(t, "type")
	}
	if name == "error" && !odd {
		return "null"
	}
	if name == "text" && !odd {
		return rapid.SampledFrom([]string{`"One. "`, `"Zwei: schön."`, `"\ud83d\ude00\n"`, `3`}).Draw(t, "text")
	}
	return rapid.SampledFrom([]string{
		"null", "true", "false", "0", "7", "-0", "-1", "1.0", "1.5", "2e3", "1e400", "-1e400", "9007199254740993", "123456789012345678901234567890",
		"{}", "[]", `[null]`, `[5,"x"]`, `{"a":[{"b":null}]}`, `"\ud800"`, `"\ud83d\ude00\n"`, "\"\xff\xfe\"", `" "`, `""`, `"Gut, schön."`, `"text"`, `"message"`,
		`"output_text"`, `"refusal"`, `{"message":"m"}`, `"stop"`, `"length"`, `"error"`, `"failed"`, `"incomplete"`, `"queued"`, `"content_filter"`, `"max_tokens"`, `"MAX_TOKENS"`, `"SAFETY"`,
		`"completed"`, `"commentary"`, `"final_answer"`, `"tool_use"`, `"content_filter: OTHER"`, `"OTHER"`, `"STOP"`, `"end_turn"`, `"srvtoolu_1"`, `"local"`, `"client"`,
	}).Draw(t, "value")
}

func TestOfMembersWithEqualNamesTheLastCounts(t *testing.T) {
	var r Reply
	var o ending
	ChatCompletions{}.readReply([]byte(`{"id":"1","choices":[{"message":{"content":"first"}}],"choices":[{"message":{"content":"a","content":"b"}}],
		"usage":{"prompt_tokens":1,"prompt_tokens":2},"usage":{"completion_tokens":3},"id":"2"}`), &r, &o)
	if got, want := printed(&r), `{"Text":"b","Model":"","ID":"2","FinishReason":"","Kept":null,"Usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}} <nil>`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
