package llm

import (
	"errors"
	"strings"
	"testing"
)

// endCase is one reply with status 200, and what it must become. Class 0 is success, whose text is then the answer.
type endCase struct {
	name, body string
	class      Class
	reason     Reason
	text       string // part of the error, or the answer
}

const said = "Half an"

// checkEnds also compares that what was written is kept, and that no setting makes a success of it but for the limit.
func checkEnds(t *testing.T, w Wire, tests []endCase) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ParseReply(w, Known{}, now, 200, nil, []byte(tt.body))
			e, ok := errors.AsType[*Error](err)
			if !ok {
				e = new(Error)
				if tt.class != 0 || r.Text != tt.text {
					t.Fatalf("success with %q, want %v %s", r.Text, tt.class, tt.reason)
				}
			}
			if e.Class != tt.class || e.Reason != tt.reason {
				t.Fatalf("got %v %s (%v), want %v %s", e.Class, e.Reason, err, tt.class, tt.reason)
			}
			if !ok {
				return
			}
			if !strings.Contains(e.Error(), tt.text) {
				t.Errorf("error %q does not say %q", e, tt.text)
			}
			if e.Reason == ReasonTruncated && strings.Contains(tt.body, said) && e.Facts["partial"] != said {
				t.Errorf("partial %q, want %q", e.Facts["partial"], said)
			}
			_, err = ParseReply(w, Known{AcceptTruncated: true}, now, 200, nil, []byte(tt.body))
			if limit := strings.Contains(tt.text, "token limit"); (err == nil) != limit {
				t.Errorf("where truncated answers are accepted: %v", err)
			}
		})
	}
}

const (
	atLimit   = "answer ends at the token limit"
	brokenOff = "the answer ended early: finish reason "
	noReason  = "the answer ended early: the provider gave no finish reason"
)

// The stop reasons are those of anthropics/anthropic-sdk-python 0.121.0, types/beta/beta_stop_reason.py, where null is
// documented for streams alone. That Ollama leaves the member out for a model that went away is in ollama/ollama at
// fb30760, anthropic/anthropic.go, mapStopReason.
func TestMessagesEnds(t *testing.T) {
	reply := func(end string) string {
		return `{"type":"message","content":[{"type":"text","text":"` + said + `"}],` + end + `"usage":{"input_tokens":1,"output_tokens":1}}`
	}
	reason := func(word string) string { return reply(`"stop_reason":"` + word + `",`) }
	checkEnds(t, Messages{}, []endCase{
		{"end_turn", reason("end_turn"), 0, "", said},
		{"stop_sequence", reason("stop_sequence"), 0, "", said},
		{"max_tokens", reason("max_tokens"), Permanent, ReasonTruncated, atLimit},
		{"model_context_window_exceeded", reason("model_context_window_exceeded"), Permanent, ReasonTruncated, atLimit},
		{"refusal", reason("refusal"), Permanent, ReasonRefused, "refused"},
		{"tool_use", reason("tool_use"), Transient, ReasonTruncated, brokenOff + `"tool_use"`},
		{"tool_use alone", `{"content":[{"type":"tool_use","id":"t","name":"f","input":{}}],"stop_reason":"tool_use"}`, Transient, ReasonTruncated, brokenOff + `"tool_use"`},
		{"pause_turn", reason("pause_turn"), Transient, ReasonTruncated, brokenOff + `"pause_turn"`},
		{"compaction", reason("compaction"), Permanent, ReasonTruncated, brokenOff + `"compaction"`},
		{"unknown", reason("thunderstorm"), Transient, ReasonTruncated, brokenOff + `"thunderstorm"`},
		{"empty", reason(""), Transient, ReasonTruncated, noReason},
		{"null", reply(`"stop_reason":null,`), Transient, ReasonTruncated, noReason},
		{"left out", reply(""), Transient, ReasonTruncated, noReason},
		{"end_turn without text", `{"content":[],"stop_reason":"end_turn"}`, Transient, ReasonEmptyContent, "no text"},
	})
}

// The stop reasons are those of aws-sdk-go-v2, service/bedrockruntime 1.63.13, types/enums.go; refusal is Anthropic's.
func TestConverseEnds(t *testing.T) {
	reply := func(end string) string {
		return `{"output":{"message":{"role":"assistant","content":[{"text":"` + said + `"}]}},` + end + `"usage":{"inputTokens":1,"outputTokens":1,"totalTokens":2}}`
	}
	reason := func(word string) string { return reply(`"stopReason":"` + word + `",`) }
	checkEnds(t, Converse{}, []endCase{
		{"end_turn", reason("end_turn"), 0, "", said},
		{"stop_sequence", reason("stop_sequence"), 0, "", said},
		{"max_tokens", reason("max_tokens"), Permanent, ReasonTruncated, atLimit},
		{"model_context_window_exceeded", reason("model_context_window_exceeded"), Permanent, ReasonTruncated, atLimit},
		{"guardrail_intervened", reason("guardrail_intervened"), Permanent, ReasonContentFiltered, "content filter"},
		{"content_filtered", reason("content_filtered"), Permanent, ReasonContentFiltered, "content filter"},
		{"refusal", reason("refusal"), Permanent, ReasonRefused, "refused"},
		{"tool_use", reason("tool_use"), Transient, ReasonTruncated, brokenOff + `"tool_use"`},
		{"malformed_model_output", reason("malformed_model_output"), Transient, ReasonTruncated, brokenOff + `"malformed_model_output"`},
		{"malformed_tool_use", reason("malformed_tool_use"), Transient, ReasonTruncated, brokenOff + `"malformed_tool_use"`},
		{"unknown", reason("thunderstorm"), Transient, ReasonTruncated, brokenOff + `"thunderstorm"`},
		{"left out", reply(""), Transient, ReasonTruncated, noReason},
		{"end_turn without text", `{"output":{"message":{"content":[]}},"stopReason":"end_turn"}`, Transient, ReasonEmptyContent, "no text"},
	})
}

// Finish reasons and block reasons are those of googleapis/python-genai 2.19.0, google/genai/types.py, where an empty
// one means that the model has not stopped. MALFORMED_RESPONSE and MISSING_THOUGHT_SIGNATURE, which it lacks, are in
// BerriAI/litellm at 004c2c4, litellm/litellm_core_utils/core_helpers.py.
func TestGeminiEnds(t *testing.T) {
	reply := func(end string) string {
		return `{"candidates":[{"content":{"parts":[{"text":"` + said + `"}]}` + end + `}],"modelVersion":"m"}`
	}
	reason := func(word string) string { return reply(`,"finishReason":"` + word + `"`) }
	tests := []endCase{
		{"STOP", reason("STOP"), 0, "", said},
		{"MAX_TOKENS", reason("MAX_TOKENS"), Permanent, ReasonTruncated, atLimit},
		{"MISSING_THOUGHT_SIGNATURE", reason("MISSING_THOUGHT_SIGNATURE"), Permanent, ReasonTruncated, brokenOff + `"MISSING_THOUGHT_SIGNATURE"`},
		{"empty", reason(""), Transient, ReasonTruncated, noReason},
		{"null", reply(`,"finishReason":null`), Transient, ReasonTruncated, noReason},
		{"left out", reply(""), Transient, ReasonTruncated, noReason},
		{
			"STOP with a function call",
			`{"candidates":[{"content":{"parts":[{"text":"` + said + `"},{"functionCall":{"name":"f","args":{}}}]},"finishReason":"STOP"}]}`,
			Transient, ReasonTruncated, brokenOff + `"functionCall"`,
		},
		{"STOP without text", `{"candidates":[{"finishReason":"STOP"}]}`, Transient, ReasonEmptyContent, "no text"},
		{"OTHER without text", `{"candidates":[{"finishReason":"OTHER"}]}`, Transient, ReasonTruncated, brokenOff + `"OTHER"`},
	}
	for _, word := range []string{
		"SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
	} {
		tests = append(tests, endCase{word, reason(word), Permanent, ReasonContentFiltered, "content filter"})
	}
	for _, word := range []string{
		"FINISH_REASON_UNSPECIFIED", "OTHER", "CONTINUATION", "MALFORMED_RESPONSE", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL",
		"TOO_MANY_TOOL_CALLS", "NO_IMAGE", "IMAGE_OTHER", "SOMETHING_NEW",
	} {
		tests = append(tests, endCase{word, reason(word), Transient, ReasonTruncated, brokenOff + `"` + word + `"`})
	}
	for _, word := range []string{
		"BLOCKED_REASON_UNSPECIFIED", "SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY", "MODEL_ARMOR", "JAILBREAK",
	} {
		tests = append(tests, endCase{"prompt " + word, `{"promptFeedback":{"blockReason":"` + word + `"}}`, Permanent, ReasonContentFiltered, "content filter"})
	}
	checkEnds(t, GenerateContent{}, tests)
}

// Finish reasons, beside those of openai/openai-python 3.3.1 (types/chat/chat_completion.py):
//   - eos, error: togethercomputer/together-python at eba5e5f, types/common.py
//   - eos_token, stop_sequence: huggingface/text-generation-inference at db931fc, router/src/lib.rs
//   - model_length, error: mistralai/client-python at 05629d2, models/chatcompletionchoice.py
//   - insufficient_system_resource, COMPLETE, STOP_SEQUENCE, ERROR: vercel/ai at ed857f5, packages/deepseek and cohere
//   - end_turn, sensitive, network_error, guardrail_intervened: BerriAI/litellm at 004c2c4, core_helpers.py, which
//     also turns what it does not know into "stop" and notes it in provider_specific_fields (types/utils.py, Choices)
//   - null where the model's process went away: ollama/ollama at fb30760, openai/openai.go, ToChatCompletion
//   - left out of whole replies: mudler/LocalAI issue 788, maximhq/bifrost issue 1489
//   - stop with a call: openai/openai-dotnet issue 64 and ENTERPILOT/GoModel pull request 124 (OpenAI itself), beside text
//     ranxianglei/billion-context pull request 131
//   - srvtoolu_, a search that Anthropic has done: BerriAI/litellm at 600fadc, llms/anthropic/chat/transformation.py,
//     extract_response_content
//   - "content_filter: SAFETY", "function_call_filter: MALFORMED_FUNCTION_CALL" and a choice without message: what
//     Gemini's compatible address sends, as clients of it have recorded.
func TestChatEnds(t *testing.T) {
	reply := func(end string) string {
		return `{"choices":[{"index":0,"message":{"role":"assistant","content":"` + said + `"}` + end + `}]}`
	}
	reason := func(word string) string { return reply(`,"finish_reason":"` + word + `"`) }
	native := func(word string) string {
		return reply(`,"finish_reason":"stop","native_finish_reason":"` + word + `"`)
	}
	specific := func(word string) string {
		return reply(`,"finish_reason":"stop","provider_specific_fields":{"native_finish_reason":"` + word + `"}`)
	}
	parts := func(part, end string) string {
		return `{"choices":[{"message":{"content":[` + part + `]},"finish_reason":"` + end + `"}]}`
	}
	message := func(members, end string) string {
		return `{"choices":[{"message":{"role":"assistant","content":"` + said + `",` + members + `}` + end + `}]}`
	}
	call := func(id string) string {
		return `{"id":"` + id + `","type":"function","function":{"name":"f","arguments":"{}"}}`
	}
	tests := []endCase{
		{"refusal", reason("refusal"), Permanent, ReasonRefused, "refused"},
		{"empty", reason(""), Transient, ReasonTruncated, noReason},
		{"null", reply(`,"finish_reason":null`), Transient, ReasonTruncated, noReason},
		{"of another type", reply(`,"finish_reason":{"type":"abort"}`), Transient, ReasonTruncated, noReason},
		{"left out", reply(""), 0, "", said},
		{"filtered by Gemini", reason("content_filter: SAFETY"), Permanent, ReasonContentFiltered, "content filter"},
		{
			"filtered by Gemini without message",
			`{"choices":[{"index":0,"finish_reason":"content_filter: PROHIBITED_CONTENT"}]}`, Permanent, ReasonContentFiltered, "content filter",
		},
		{"stop with more to it", reason("stop: OTHER"), Transient, ReasonTruncated, brokenOff + `"stop: OTHER"`},
		{
			"function call filtered by Gemini",
			`{"choices":[{"message":{"role":"assistant"},"finish_reason":"function_call_filter: MALFORMED_FUNCTION_CALL"}]}`,
			Transient, ReasonTruncated, brokenOff + `"function_call_filter: MALFORMED_FUNCTION_CALL"`,
		},
		{"stop without message", `{"choices":[{"text":"` + said + `","finish_reason":"stop"}]}`, Transient, ReasonMalformedResponse, "format"},
		{"a piece of a stream", `{"choices":[{"delta":{"content":"` + said + `"},"finish_reason":null}]}`, Transient, ReasonMalformedResponse, "format"},
		{
			"tool_calls without text",
			`{"choices":[{"message":{"content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`,
			Transient, ReasonTruncated, brokenOff + `"tool_calls"`,
		},
		{"stop with a tool call", message(`"tool_calls":[`+call("call_1")+`]`, `,"finish_reason":"stop"`), Transient, ReasonTruncated, brokenOff + `"tool_calls"`},
		{"left out with a tool call", message(`"tool_calls":[`+call("call_1")+`]`, ""), Transient, ReasonTruncated, brokenOff + `"tool_calls"`},
		{"stop with a function call", message(`"function_call":{"name":"f","arguments":"{}"}`, `,"finish_reason":"stop"`), Transient, ReasonTruncated, brokenOff + `"tool_calls"`},
		{"length with a tool call", message(`"tool_calls":[`+call("call_1")+`]`, `,"finish_reason":"length"`), Permanent, ReasonTruncated, atLimit},
		{"stop with no tool calls", message(`"tool_calls":[],"function_call":null`, `,"finish_reason":"stop"`), 0, "", said},
		{"stop with tool calls null", message(`"tool_calls":null`, `,"finish_reason":"stop"`), 0, "", said},
		{"stop after Anthropic's own search", message(`"tool_calls":[`+call("srvtoolu_1")+`]`, `,"finish_reason":"stop"`), 0, "", said},
		{"stop with a tool call after a search", message(`"tool_calls":[`+call("srvtoolu_1")+","+call("toolu_1")+`]`, `,"finish_reason":"stop"`), Transient, ReasonTruncated, brokenOff + `"tool_calls"`},
		{"refusal part", parts(`{"type":"refusal","refusal":"I can't."}`, "stop"), Permanent, ReasonRefused, "refused"},
		{"refusal part beside text", parts(`{"type":"text","text":"`+said+`"},{"type":"refusal","refusal":"No."}`, "stop"), Permanent, ReasonRefused, "refused"},
		{"text parts", parts(`{"type":"text","text":"`+said+`"}`, "stop"), 0, "", said},
		{"native stop", native("STOP"), 0, "", said},
		{"native end_turn", native("end_turn"), 0, "", said},
		{"native completed", native("completed"), 0, "", said},
		{"native tool_use", native("tool_use"), 0, "", said},
		{"native pause_turn", native("pause_turn"), Transient, ReasonTruncated, brokenOff + `"pause_turn"`},
		{"native OTHER", native("OTHER"), Transient, ReasonTruncated, brokenOff + `"OTHER"`},
		{"native of LiteLLM", specific("MALFORMED_RESPONSE"), Transient, ReasonTruncated, brokenOff + `"MALFORMED_RESPONSE"`},
		{"native limit of LiteLLM", specific("model_context_window_exceeded"), Permanent, ReasonTruncated, atLimit},
		{"native end of LiteLLM", specific("eos"), 0, "", said},
	}
	for _, word := range []string{"stop", "eos", "eos_token", "stop_sequence", "end_turn", "STOP", "COMPLETE", "STOP_SEQUENCE", "normal"} {
		tests = append(tests, endCase{word, reason(word), 0, "", said})
	}
	for _, word := range []string{"length", "model_length", "max_tokens", "MAX_TOKENS", "model_context_window_exceeded"} {
		tests = append(tests, endCase{word, reason(word), Permanent, ReasonTruncated, atLimit})
	}
	for _, word := range []string{"content_filter", "sensitive", "guardrail_intervened"} {
		tests = append(tests, endCase{word, reason(word), Permanent, ReasonContentFiltered, "content filter"})
	}
	for _, word := range []string{"tool_calls", "function_call", "time_limit", "repetition", "something new"} {
		tests = append(tests, endCase{word, reason(word), Transient, ReasonTruncated, brokenOff + `"` + word + `"`})
	}
	for _, word := range []string{"error", "ERROR", "abort", "network_error"} {
		tests = append(tests, endCase{word, reason(word), Transient, ReasonAPICallFailed, "without a message"})
	}
	tests = append(tests, endCase{"insufficient_system_resource", reason("insufficient_system_resource"), Capacity, ReasonAPICallFailed, "without a message"})
	checkEnds(t, ChatCompletions{}, tests)
}

// Status, phase, items and codes are those of openai/openai-python 3.3.1, src/openai/types/responses (response.py,
// response_output_message.py, response_error.py, response_output_item.py). misalignment_policy_violation (403) and
// cyber_policy (400), which its enum lacks, are as clients of the endpoint have recorded them. A message that is cut has
// status incomplete in vllm-project/vllm at 04750fc, entrypoints/harmony_utils.py, parse_remaining_state.
func TestResponsesEnds(t *testing.T) {
	const part = `{"type":"output_text","text":"` + said + `"}`
	const message = `{"type":"message","role":"assistant","content":[` + part + `]}`
	reply := func(head, output string) string { return `{"id":"r",` + head + `"output":[` + output + `]}` }
	phase := func(phase, text string) string {
		return `{"type":"message","phase":` + phase + `,"content":[{"type":"output_text","text":"` + text + `"}]}`
	}
	const completed = `"status":"completed",`
	tests := []endCase{
		{"completed", reply(completed, message), 0, "", said},
		{"left out", reply("", message), 0, "", said},
		{"null", reply(`"status":null,`, message), Transient, ReasonTruncated, noReason},
		{"unknown", reply(`"status":"requires_action",`, message), Transient, ReasonTruncated, brokenOff + `"requires_action"`},
		{"incomplete at the limit", reply(`"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},`, message), Permanent, ReasonTruncated, atLimit},
		{"incomplete by filter", reply(`"status":"incomplete","incomplete_details":{"reason":"content_filter"},`, message), Permanent, ReasonContentFiltered, "content filter"},
		{"incomplete for a new reason", reply(`"status":"incomplete","incomplete_details":{"reason":"max_tool_calls"},`, message), Transient, ReasonTruncated, brokenOff + `"max_tool_calls"`},
		{"incomplete for no reason", reply(`"status":"incomplete","incomplete_details":null,`, message), Transient, ReasonTruncated, brokenOff + `"incomplete"`},
		{"queued", reply(`"status":"queued",`, message), Transient, ReasonMalformedResponse, "format"},
		{"failed", reply(`"status":"failed",`, ""), Transient, ReasonAPICallFailed, "without a message"},
		{"final answer", reply(completed, phase(`"final_answer"`, said)), 0, "", said},
		{"phase null", reply(completed, phase("null", said)), 0, "", said},
		{"commentary and answer", reply(completed, phase(`"commentary"`, "Let me look.")+","+phase(`"final_answer"`, said)), 0, "", said},
		{"commentary and answer without phase", reply(completed, phase(`"commentary"`, "Let me look.")+","+message), 0, "", said},
		{"commentary alone", reply(completed, phase(`"commentary"`, "Let me look.")), Transient, ReasonEmptyContent, "no text"},
		{"message incomplete", reply(completed, `{"type":"message","status":"incomplete","content":[`+part+`]}`), Transient, ReasonTruncated, brokenOff + `"incomplete"`},
		{"refusal", reply(completed, `{"type":"message","content":[{"type":"refusal","refusal":"No."}]}`), Permanent, ReasonRefused, "refused"},
		{"search done by the provider", reply(completed, `{"type":"web_search_call","status":"completed"},`+message), 0, "", said},
		{"reasoning", reply(completed, `{"type":"reasoning","content":[{"type":"reasoning_text","text":"Hm."}]},`+message), 0, "", said},
		{"shell of the provider", reply(completed, `{"type":"shell_call","environment":{"type":"container_reference","container_id":"c"}},`+message), 0, "", said},
		{"shell of the caller", reply(completed, message+`,{"type":"shell_call","environment":{"type":"local"}}`), Transient, ReasonTruncated, brokenOff + `"shell_call"`},
		{"search for tools by the provider", reply(completed, `{"type":"tool_search_call","execution":"server"},`+message), 0, "", said},
		{"search for tools by the caller", reply(completed, message+`,{"type":"tool_search_call","execution":"client"}`), Transient, ReasonTruncated, brokenOff + `"tool_search_call"`},
		{"function call alone", reply(completed, `{"type":"function_call","name":"f","arguments":"{}"}`), Transient, ReasonTruncated, brokenOff + `"function_call"`},
	}
	for _, kind := range []string{"function_call", "custom_tool_call", "computer_call", "local_shell_call", "apply_patch_call", "mcp_approval_request"} {
		tests = append(tests, endCase{kind, reply(completed, message+`,{"type":"`+kind+`"}`), Transient, ReasonTruncated, brokenOff + `"` + kind + `"`})
	}
	for _, code := range []string{
		"invalid_prompt", "bio_policy", "cyber_policy", "misalignment_policy_violation", "image_content_policy_violation",
	} {
		tests = append(tests, endCase{code, reply(`"status":"failed","error":{"code":"`+code+`","message":"Stopped."},`, ""), Permanent, ReasonContentFiltered, "Stopped."})
	}
	checkEnds(t, Responses{}, tests)
}

// Tools in the extra body end every answer alike: then the settings are at fault, and not the rows.
func TestBrokenOffAnswersAreAlikeByTheirReason(t *testing.T) {
	tests := []struct {
		wire       Wire
		body, want string
	}{
		{Messages{}, `{"content":[],"stop_reason":"tool_use"}`, "truncated tool_use"},
		{Messages{}, `{"content":[],"stop_reason":"compaction"}`, "truncated compaction"},
		{ChatCompletions{}, `{"choices":[{"message":{"content":"a"},"finish_reason":null}]}`, "truncated"},
		{ChatCompletions{}, `{"choices":[{"message":{"content":"a"},"finish_reason":"words of some length"}]}`, "truncated"},
		{ChatCompletions{}, `{"choices":[{"message":{"content":"a"},"finish_reason":"length"}]}`, ""},
		{GenerateContent{}, `{"candidates":[{"finishReason":"TOO_MANY_TOOL_CALLS"}]}`, "truncated TOO_MANY_TOOL_CALLS"},
	}
	for _, tt := range tests {
		_, err := ParseReply(tt.wire, Known{}, now, 200, nil, []byte(tt.body))
		if e, ok := errors.AsType[*Error](err); !ok || e.Alike != tt.want || e.Origin != OfRequest {
			t.Errorf("%s: alike %q, want %q", tt.body, e.Alike, tt.want)
		}
	}
}

func TestFinishReasonIsAFactOfBoundedLength(t *testing.T) {
	long := strings.Repeat("x", 3000)
	_, err := ParseReply(Messages{}, Known{}, now, 200, nil, []byte(`{"content":[],"stop_reason":"`+long+`"}`))
	e, _ := errors.AsType[*Error](err)
	if got, _ := e.Facts["finish_reason"].(string); got != long[:finishBytes]+"…" || len(e.Error()) > 200 {
		t.Errorf("finish_reason %q, error %q", got, e)
	}
}

// Servers that write every member of their structs put an empty error next to an answer.
func TestAnEmptyErrorBesideAnAnswerIsNone(t *testing.T) {
	answers := map[Wire]string{
		ChatCompletions{}: `"choices":[{"finish_reason":"stop","message":{"content":"yes"},"error":ERROR}]`,
		Responses{}:       `"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"yes"}]}]`,
		Messages{}:        `"content":[{"type":"text","text":"yes"}],"stop_reason":"end_turn"`,
		GenerateContent{}: `"candidates":[{"finishReason":"STOP","content":{"parts":[{"text":"yes"}]}}]`,
	}
	for w, answer := range answers {
		for object, empty := range map[string]bool{
			`null`: true, `{}`: true, `{ }`: true, `{"message":"","type":"","param":"","code":null}`: true, `{"code":0, "message": "" }`: true,
			`{"code":"x"}`: false, `{"message":"","code":500}`: false,
		} {
			for _, body := range []string{`{"error":ERROR,` + answer + `}`, `{` + answer + `,"error":ERROR}`, `{` + answer + `}`} {
				if !strings.Contains(body, "ERROR") {
					continue
				}
				body = strings.ReplaceAll(body, "ERROR", object)
				r, err := ParseReply(w, Known{}, now, 200, nil, []byte(body))
				e, failed := errors.AsType[*Error](err)
				if failed == empty || failed && e.Reason != ReasonAPICallFailed || !failed && r.Text != "yes" {
					t.Errorf("%T of %s: %v", w, body, err)
				}
			}
		}
		// Without an answer it is still an error.
		_, err := ParseReply(w, Known{}, now, 200, nil, []byte(`{"error":{}}`))
		if e, ok := errors.AsType[*Error](err); !ok || e.Class != Transient || e.Reason != ReasonAPICallFailed {
			t.Errorf("%T without an answer: %v", w, err)
		}
	}
}

func TestAnEmptyRefusalIsNone(t *testing.T) {
	chat := func(parts string) string {
		return `{"choices":[{"finish_reason":"stop","message":{"content":[` + parts + `]}}]}`
	}
	responses := func(parts string) string {
		return `{"status":"completed","output":[{"type":"message","content":[` + parts + `]}]}`
	}
	for text, wrap := range map[string]struct {
		wire Wire
		body func(string) string
	}{"text": {ChatCompletions{}, chat}, "output_text": {Responses{}, responses}} {
		answer := `{"type":"` + text + `","text":"` + said + `"}`
		checkEnds(t, wrap.wire, []endCase{
			{text + " and an empty refusal", wrap.body(answer + `,{"type":"refusal","refusal":""}`), 0, "", said},
			{text + " behind an empty refusal", wrap.body(`{"type":"refusal","refusal":""},` + answer), 0, "", said},
			{text + " and a refusal", wrap.body(answer + `,{"type":"refusal","refusal":"No."}`), Permanent, ReasonRefused, "refused"},
			{text + ", an empty refusal alone", wrap.body(`{"type":"refusal","refusal":""}`), Transient, ReasonEmptyContent, "no text"},
			{text + ", a refusal without words", wrap.body(`{"type":"refusal"}`), Permanent, ReasonRefused, "refused"},
		})
	}
}
