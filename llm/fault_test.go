package llm

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

// errorCase is one reply with an error status, and what it must become. Headers are "name: value" lines.
type errorCase struct {
	name    string
	wire    Wire
	status  int
	headers string
	bytes   int // of the request
	body    string
	class   Class
	reason  Reason
	text    string // part of the error
}

// Sentences and shapes as their sources have them, without the ids:
//   - Groq: console.groq.com/docs/flex-processing and /docs/errors
//   - Gemini: the sentence as many projects quote it from the API, such as JeffOtano/roni pull request 125; of those
//     about a quota, "Resource has been exhausted" is in google-gemini/gemini-cli issue 19976
//   - LiteLLM: BerriAI/litellm issue 36729 (429) and pull request 4606 (400)
//   - Anthropic: anthropics/claude-code issue 72457; for the two wordings of the limit OpenHands/OpenHands issue 9259
//     and continuedev/continue issue 12057, with the headers that clients have recorded beside a 429; the sentence about
//     the increase as clients have recorded it in 2026, and without its numbers since 2025
//   - DashScope: 429-Throttling.AllocationQuota/insufficient_quota (TPS/TPM) in Alibaba Model Studio's error codes; by
//     its header open-telemetry/opentelemetry-ebpf-instrumentation knows it, at 4468e77, pkg/ebpf/common/http/qwen.go
//   - OpenAI: TestResponsesEnds.
func TestErrorsHaveTheirClass(t *testing.T) {
	const (
		anthropicError = `{"type":"error","error":{"type":"`
		limit          = anthropicError + `rate_limit_error","message":"This request would exceed the rate limit for your organization (org) of 40,000 input tokens per minute."}}`
		newerLimit     = anthropicError + `rate_limit_error","message":"This request would exceed your organization's rate limit of 40,000 input tokens per minute (org: o, model: m)."}}`
		increase       = anthropicError + `rate_limit_error","message":"This request would exceed your organization's maximum usage increase rate for input tokens per minute (org: o, model: m). Your current limit is 40,000 input tokens per minute, and will increase to 50,000 at the next minute boundary."}}`
		full           = "anthropic-ratelimit-input-tokens-limit: 40000\nanthropic-ratelimit-input-tokens-remaining: 40000"
		prepaid        = `{"error":{"code":429,"message":"Your prepayment credits are depleted. Please go to AI Studio at https://ai.studio/projects to manage your project and billing.","status":"RESOURCE_EXHAUSTED"}}`
		quota          = `{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED"`
		credit         = "check credit and spending limits"
		account        = "check the account at the provider"
	)
	quotaOf := func(word string) string {
		return `{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"` + word + `","param":null,"code":"` + word + `"}}`
	}
	noLimit := strings.ReplaceAll(full, "40000", "0")
	calls := ReasonAPICallFailed
	tests := []errorCase{
		{"groq, flex tier", ChatCompletions{}, 498, "", 0, `{"error":{"message":"No flex capacity.","type":"capacity_exceeded"}}`, Capacity, calls, "498"},
		{"groq, flex tier, by code", ChatCompletions{}, 498, "", 0, `{"error":{"message":"No flex capacity.","code":"capacity_exceeded"}}`, Capacity, calls, "498"},
		{"groq, without a body", ChatCompletions{}, 498, "", 0, ``, Capacity, calls, "498"},
		{"openai, flex tier", ChatCompletions{}, 429, "", 0, `{"error":{"message":"m","code":"flex_unavailable"}}`, Capacity, calls, "429"},

		{"openai, credit", ChatCompletions{}, 429, "", 0, quotaOf("insufficient_quota"), Fatal, calls, credit},
		{"dashscope, tokens a minute", ChatCompletions{}, 429, "x-dashscope-call-gateway: true", 0, quotaOf("insufficient_quota"), Capacity, calls, "429"},
		{"dashscope, free quota", ChatCompletions{}, 403, "x-dashscope-call-gateway: true", 0, quotaOf("insufficient_quota"), Fatal, calls, "403"},

		{"gemini, prepaid credit", GenerateContent{}, 429, "", 0, prepaid, Fatal, calls, credit},
		{"gemini, prepaid credit, compatible address", ChatCompletions{}, 429, "", 0, "[" + prepaid + "]", Fatal, calls, credit},
		{"gemini, prepaid credit, other words", GenerateContent{}, 429, "", 0, `{"error":{"code":429,"message":"The prepaid credit of this project is used up.","status":"RESOURCE_EXHAUSTED"}}`, Fatal, calls, credit},
		{"gemini, quota of a minute", GenerateContent{}, 429, "", 0, quota + `,"details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerMinutePerProject"}]}]}}`, Capacity, calls, "quota"},
		{"gemini, quota without details", GenerateContent{}, 429, "", 0, quota + `}}`, Capacity, calls, "quota"},
		{"gemini, exhausted", GenerateContent{}, 429, "", 0, `{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}`, Capacity, calls, "exhausted"},
		{"a row that quotes the sentence", ChatCompletions{}, 400, "", 0, `{"error":{"message":"Your prepayment credits are depleted","type":"invalid_request_error"}}`, Permanent, calls, "400"},

		{"litellm, budget, 400", ChatCompletions{}, 400, "", 0, `{"error":{"message":"Budget has been exceeded! Current cost: 10.5, Max budget: 10.0","type":"budget_exceeded","param":null,"code":"400"}}`, Fatal, calls, "Budget has been exceeded"},
		{"litellm, budget, 429", ChatCompletions{}, 429, "", 0, `{"error":{"message":"Budget has been exceeded! Current cost: 10.5, Max budget: 10.0","type":"budget_exceeded","param":null,"code":"429"}}`, Fatal, calls, credit},
		{"litellm, limit of a key", ChatCompletions{}, 429, "", 0, `{"error":{"message":"Rate limit exceeded","type":"throttling_error","param":null,"code":"429"}}`, Capacity, calls, "429"},

		{"anthropic, disabled", Messages{}, 400, "", 0, anthropicError + `invalid_request_error","message":"This organization has been disabled."}}`, Fatal, calls, account},
		{"anthropic, disabled, 403", Messages{}, 403, "", 0, anthropicError + `invalid_request_error","message":"This organization has been disabled."}}`, Fatal, calls, account},
		{"anthropic, disabled, advice to retry", Messages{}, 400, "x-should-retry: true", 0, anthropicError + `invalid_request_error","message":"This organization has been disabled."}}`, Fatal, calls, account},
		{"anthropic, another bad request", Messages{}, 400, "", 0, anthropicError + `invalid_request_error","message":"messages: This organization has been disabled"}}`, Permanent, calls, "400"},
		{"the sentence of somebody else", ChatCompletions{}, 400, "", 0, `{"error":{"type":"invalid_request_error","message":"This organization has been disabled."}}`, Permanent, calls, "400"},

		{"anthropic, larger than the limit", Messages{}, 429, full, 200_000, limit, Permanent, calls, "input tokens per minute"},
		{"anthropic, larger than the limit, newer words", Messages{}, 429, full, 200_000, newerLimit, Permanent, calls, "input tokens per minute"},
		{"anthropic, larger than the limit, advice to retry", Messages{}, 429, full + "\nx-should-retry: true", 200_000, limit, Transient, calls, "input tokens per minute"},
		{"anthropic, limit used up", Messages{}, 429, "anthropic-ratelimit-input-tokens-limit: 40000\nanthropic-ratelimit-input-tokens-remaining: 0", 200_000, limit, Capacity, calls, "429"},
		{"anthropic, limit used in part", Messages{}, 429, "anthropic-ratelimit-input-tokens-limit: 40000\nanthropic-ratelimit-input-tokens-remaining: 39000", 200_000, limit, Capacity, calls, "429"},
		{"anthropic, far larger than the limit, used in part", Messages{}, 429, "anthropic-ratelimit-input-tokens-limit: 40000\nanthropic-ratelimit-input-tokens-remaining: 12000", 640_016, limit, Permanent, calls, "input tokens per minute"},
		{"anthropic, far larger than the limit, without headers", Messages{}, 429, "", 640_016, newerLimit, Permanent, calls, "input tokens per minute"},
		{"anthropic, long, used in part", Messages{}, 429, "anthropic-ratelimit-input-tokens-limit: 40000\nanthropic-ratelimit-input-tokens-remaining: 12000", 600_000, limit, Capacity, calls, "429"},
		{"anthropic, no limit anywhere", Messages{}, 429, "", 640_016, strings.Replace(limit, "40,000", "some", 1), Capacity, calls, "429"},
		{"anthropic, fewer bytes than the limit has tokens", Messages{}, 429, full, 39_999, limit, Capacity, calls, "429"},
		{"anthropic, length not known", Messages{}, 429, full, 0, limit, Capacity, calls, "429"},
		{"anthropic, without headers", Messages{}, 429, "", 200_000, limit, Capacity, calls, "429"},
		{"anthropic, headers of no number", Messages{}, 429, strings.ReplaceAll(full, "40000", "many"), 200_000, limit, Capacity, calls, "429"},
		{"anthropic, a limit of none", Messages{}, 429, noLimit, 200_000, limit, Capacity, calls, "429"},
		{"anthropic, increase too steep", Messages{}, 429, full, 200_000, increase, Capacity, calls, "429"},
		{"anthropic, output tokens", Messages{}, 429, full, 200_000, strings.Replace(limit, "input", "output", 1), Capacity, calls, "429"},
		{"anthropic, limit of the account", Messages{}, 429, full, 200_000, anthropicError + `rate_limit_error","message":"This request would exceed your account's rate limit. Please try again later."}}`, Capacity, calls, "429"},
		{"anthropic, usage that grows too fast", Messages{}, 429, full, 200_000, anthropicError + `rate_limit_error","message":"This request would exceed your organization's (org) maximum usage increase rate for input tokens per minute. Please scale up your input tokens usage more gradually to stay within the acceleration limit. For details, refer to: https://docs.claude.com/en/api/rate-limits."}}`, Capacity, calls, "429"},
		{"anthropic, overloaded", Messages{}, 529, full, 200_000, anthropicError + `overloaded_error","message":"Overloaded"}}`, Capacity, calls, "529"},
	}
	for _, code := range []string{"bio_policy", "cyber_policy", "misalignment_policy_violation"} {
		for _, status := range []int{400, 403} {
			tests = append(tests, errorCase{
				"openai, " + code,
				Responses{},
				status, "", 0, `{"error":{"type":"invalid_request_error","code":"` + code + `","message":"Stopped."}}`,
				Permanent, ReasonContentFiltered, "Stopped.",
			})
		}
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, proven := range []bool{false, true} {
				h := http.Header{}
				for line := range strings.Lines(tt.headers) {
					name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
					h.Set(name, value)
				}
				known := Known{Proven: proven, RequestBytes: tt.bytes}
				_, err := ParseReply(tt.wire, known, now, tt.status, h, []byte(tt.body))
				e, _ := errors.AsType[*Error](err)
				if e.Class != tt.class || e.Reason != tt.reason || !strings.Contains(e.Error(), tt.text) {
					t.Errorf("proven=%v: got %v %s %q, want %v %s %q", proven, e.Class, e.Reason, e, tt.class, tt.reason, tt.text)
				}
			}
		})
	}
}

// The codes are those of platform.minimax.io/docs/api-reference/errorcode, read in September 2026, but for 1013, which
// only clients know. They quote errors as a 200 with choices of null, and some with a status of 400 or 429.
func TestMiniMaxReportsErrorsInsideA200(t *testing.T) {
	tests := []struct {
		codes   string
		class   Class
		reason  Reason
		general bool
		text    string
	}{
		{"1002 1039 1041 2045 2056", Capacity, ReasonAPICallFailed, false, "its words"},
		{"1000 1001 1013 1024 1033 9999", Transient, ReasonAPICallFailed, false, "its words"},
		{"1004 2049", Fatal, ReasonAPICallFailed, false, "its words (check the API key)"},
		{"1008", Fatal, ReasonAPICallFailed, false, "its words (check credit and spending limits at the provider)"},
		{"1026 1027", Permanent, ReasonContentFiltered, false, "its words"},
		{"2013", Permanent, ReasonAPICallFailed, true, "its words"},
		{"1042", Permanent, ReasonAPICallFailed, false, "its words"},
	}
	check := func(body string, status int, class Class, reason Reason, general bool, text string) {
		t.Helper()
		_, err := ParseReply(ChatCompletions{}, Known{}, now, status, nil, []byte(body))
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Class != class || e.Reason != reason || (e.Alike != "") != general || !strings.HasSuffix(e.Error(), text) {
			t.Errorf("%d %s: got %v, want %v %s %q, general %t", status, body, err, class, reason, text, general)
		}
	}
	for _, tt := range tests {
		for code := range strings.FieldsSeq(tt.codes) {
			body := `{"id":"i","choices":null,"base_resp":{"status_code":` + code + `,"status_msg":"its words"}}`
			check(body, 200, tt.class, tt.reason, tt.general, tt.text)
		}
	}
	const money, tooLong = `{"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}`, `{"base_resp":{"status_code":1039,"status_msg":"token limit"}}`
	check(money, 429, Fatal, ReasonAPICallFailed, false, "insufficient balance (check credit and spending limits at the provider)")
	check(tooLong, 400, Permanent, ReasonAPICallFailed, true, "token limit") // of the context
	// 0 is success.
	check(`{"choices":null,"base_resp":{"status_code":0,"status_msg":""}}`, 200, Transient, ReasonMalformedResponse, true, "check the provider and the base URL")
	const answer = `{"choices":[{"finish_reason":"stop","message":{"content":"yes"}}],"base_resp":{"status_code":0,"status_msg":""}}`
	if r, err := ParseReply(ChatCompletions{}, Known{}, now, 200, nil, []byte(answer)); err != nil || r.Text != "yes" {
		t.Errorf("an answer: got %+v, %v", r, err)
	}
}

// The sentence is in continuedev/continue issues 10373 and 10740, with status 429, and in warpdotdev/warp issue 14863 with
// 403; the shape and the code as clients have recorded them.
func TestXAIsUsedUpCreditIsNoLimit(t *testing.T) {
	const credit = "Your team 16f2151a has either used all available credits or reached its monthly spending limit. To continue making API requests, please purchase more credits or raise your spending limit."
	body := func(sentence string) string {
		return `{"code":"Some resource has been exhausted","error":"` + sentence + `"}`
	}
	for _, tt := range []errorCase{
		{"credit", ChatCompletions{}, 429, "", 0, body(credit), Fatal, "", "check credit and spending limits"},
		{"credit, responses", Responses{}, 429, "", 0, body(credit), Fatal, "", "check credit and spending limits"},
		{"credit, 403", ChatCompletions{}, 403, "", 0, body(credit), Fatal, "", "check credit and spending limits"},
		{"limit", ChatCompletions{}, 429, "", 0, body("Too many requests for team 16f2151a and model grok-4. Your team's rate limit is - Requests per Minute: 480."), Capacity, "", "Too many requests"},
		{"a row that quotes the sentence", ChatCompletions{}, 400, "", 0, body("Cannot parse: " + credit), Permanent, "", "400"},
		{"another server", ChatCompletions{}, 429, "", 0, `{"error":"` + credit + `"}`, Capacity, "", "429"},
	} {
		_, err := ParseReply(tt.wire, Known{}, now, tt.status, nil, []byte(tt.body))
		if e, ok := errors.AsType[*Error](err); !ok || e.Class != tt.class || !strings.Contains(e.Error(), tt.text) {
			t.Errorf("%s: got %v, want %v %q", tt.name, err, tt.class, tt.text)
		}
	}
}

func TestLimitsAreReadWithThousandsSeparators(t *testing.T) {
	for message, want := range map[string]bool{
		"Limit 30000, Requested 36278.":                       true,
		"Limit 30,000, Requested 36,278.":                     true,
		"Limit 2,000,000, Used 1,990,000, Requested 30,000.":  false,
		"Limit 2,000,000, Requested 2,000,001. Please reduce": true,
		"Limit 2000000, Requested 30000":                      false,
		"Limit 10, Requested 9":                               false,
		"Limit 900, Requested 1,000":                          true,
		"Limit 900, Requested":                                false,
		"Limit none, Requested 1,000":                         false,
		"Limit 99999999999999999999, Requested 1":             false,
	} {
		body := `{"error":{"message":"` + message + `","type":"tokens","code":"rate_limit_exceeded"}}`
		if f := readFault([]byte(body)); (f.means == meansPermanent) != want {
			t.Errorf("%q is larger than the limit: got %v, want %t", message, f.means, want)
		}
	}
}
