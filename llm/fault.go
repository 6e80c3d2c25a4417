package llm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// fault is an error object as providers put it into a reply.
type fault struct {
	// Status is the HTTP status that the object itself names. It is 0 if there is none.
	Status int
	// Code and Type are the provider's words for the problem. Detail is a narrower word
	// if it has one (Anthropic's details.error_code, OpenRouter's metadata.reason,
	// Azure's innererror.code, Gemini's ErrorInfo). Each is empty if it is not reported.
	Code, Type, Detail string
	// Message is the human-readable text. It may be empty.
	Message string
	// Unsupported is the member of the request that the model or the server does not take
	// at all. It is empty if none is named.
	Unsupported string
	// RetryDelay is the wait that the object itself asks for (Gemini). It is 0 if there is none.
	RetryDelay time.Duration
	// Header holds rate-limit headers that the object repeats (OpenRouter). It is nil if
	// the object has none.
	Header http.Header
	// aws is set if the object names its type as AWS does.
	aws bool
	// means is a meaning beyond the object's words, as known from other members or from
	// its sentence. It takes precedence.
	means meaning
}

// decode unmarshals raw into v as far as possible and reports whether raw is JSON at all.
// A member of a wrong type is left zero. Errors are rare and take many forms: struct
// types show most clearly which members are read.
func decode(raw []byte, v any) bool {
	err := json.Unmarshal(raw, v)
	if err == nil {
		return true
	}
	_, wrongType := errors.AsType[*json.UnmarshalTypeError](err)
	return wrongType
}

// looseText is what [looseString] reads.
type looseText string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *looseText) UnmarshalJSON(raw []byte) error {
	*t = looseText(looseString(raw))
	return nil
}

// rawText reads the text of a string, and of anything else but null its JSON.
type rawText string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *rawText) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"':
		*t = rawText(jsonbytes.Text(raw))
	case 'n':
	default:
		*t = rawText(raw)
	}
	return nil
}

// messageText reads a message: a text, or FastAPI's detail in its place (Mistral, 422).
type messageText string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *messageText) UnmarshalJSON(raw []byte) error {
	*t = messageText(looseString(raw))
	if raw[0] == '{' {
		*t = messageText(jsonbytes.Find(raw, "detail"))
	}
	return nil
}

// readFault finds the error object in a body, in any of the shapes that servers put it:
// under "error" (an object or a text), at the top level, or in a list of one. It returns
// nil if there is none.
func readFault(body []byte) *fault {
	body = bytes.TrimSpace(jsonbytes.TrimBOM(body))
	if len(body) > 0 && body[0] == '[' { // Gemini behind its OpenAI-compatible address
		var list []json.RawMessage
		if json.Unmarshal(body, &list) != nil || len(list) == 0 {
			return nil
		}
		body = list[0]
	}
	var top struct {
		Error     json.RawMessage `json:"error"`
		ErrorType looseText       `json:"error_type"` // text-generation-inference
		faultBody
		StatusCode looseText `json:"statusCode"` // Azure API Management
		Detail     rawText   `json:"detail"`     // FastAPI
		BaseResp   baseResp  `json:"base_resp"`  // MiniMax
	}
	if !decode(body, &top) {
		return plainFault(body)
	}
	switch {
	case len(top.Error) > 0 && top.Error[0] == '{':
		f := faultOf(top.Error)
		if f != nil && top.Type == "error" { // as Anthropic alone wraps it
			switch invalid := f.Type == "invalid_request_error"; {
			case invalid && spendLimit(f.Message):
				f.means = meansNoCredit
			case invalid && strings.HasPrefix(f.Message, disabled):
				f.means = meansDisabled
			}
		}
		return f
	case len(top.Error) > 0 && top.Error[0] == '"':
		f := &fault{Type: string(top.ErrorType), Message: jsonbytes.Text(top.Error)}
		if top.Code != "" && noTeamCredit(f.Message) {
			f.means = meansNoCredit
		}
		return f
	case top.Message != "":
		f := top.fault()
		f.Status = max(f.Status, statusOf(string(top.StatusCode)))
		return f
	case top.Detail != "":
		return &fault{Message: string(top.Detail), Unsupported: forbidden(string(top.Detail))}
	}
	return top.BaseResp.fault()
}

// plainFault takes the first line of a body in plain text for the message.
func plainFault(body []byte) *fault {
	line, _, _ := bytes.Cut(body, []byte{'\n'})
	if len(line) == 0 || line[0] == '<' || line[0] == '{' || line[0] == '[' {
		return nil
	}
	return &fault{Message: excerpt.Of(line)}
}

// faultBody is the union of the members that error objects have.
type faultBody struct {
	Code       looseText       `json:"code"`
	Type       looseText       `json:"type"`
	AWSType    looseText       `json:"__type"` // with a namespace before a #
	Status     looseText       `json:"status"`
	Param      looseText       `json:"param"`
	Message    messageText     `json:"message"`
	Details    json.RawMessage `json:"details"`
	InnerError struct {
		Code looseText `json:"code"`
	} `json:"innererror"`
	Metadata struct {
		Reason      looseText            `json:"reason"`
		ErrorType   looseText            `json:"error_type"`
		LimitSource looseText            `json:"limit_source"`
		Reasons     json.RawMessage      `json:"reasons"`
		Headers     map[string]looseText `json:"headers"`
		Provider    looseText            `json:"provider_name"`
		Raw         rawText              `json:"raw"`
	} `json:"metadata"`
}

// faultOf reads one error object.
func faultOf(raw []byte) *fault {
	var b faultBody
	if !decode(raw, &b) {
		return nil
	}
	return b.fault()
}

func (b *faultBody) fault() *fault {
	f := &fault{
		Code:    string(b.Code),
		Type:    string(cmp.Or(b.Type, b.AWSType)),
		Message: strings.TrimSpace(string(b.Message)),
		aws:     b.AWSType != "",
	}
	for name, value := range b.Metadata.Headers {
		if f.Header == nil {
			f.Header = http.Header{}
		}
		f.Header.Set(name, string(value))
	}
	f.Status = max(statusOf(f.Code), statusOf(string(b.Status)))
	if statusOf(f.Code) != 0 {
		f.Code = "" // the status once more
	}
	if f.Type == "" && statusOf(string(b.Status)) == 0 {
		f.Type = string(b.Status) // Gemini's word, such as RESOURCE_EXHAUSTED
	}
	f.Detail = string(cmp.Or(b.InnerError.Code, b.Metadata.Reason, b.Metadata.LimitSource,
		b.errorType()))
	f.readDetails(b.Details)
	unknownModel := f.Status == 400 && f.Code == "" && f.Type == "" &&
		strings.HasSuffix(f.Message, noModel)
	if f.Code == "" {
		f.Code, f.Detail = f.Detail, ""
	}
	f.Unsupported = b.unsupported()
	switch {
	case len(b.Metadata.Reasons) > len("[]") && b.Metadata.Reasons[0] == '[':
		// This is OpenRouter's 403 for moderated input.
		f.means = meansFiltered
	case f.Type == "RESOURCE_EXHAUSTED" && noPrepaid(f.Message):
		f.means = meansNoCredit
	case refusedRow(f):
		f.means = meansForbidden
	case unknownModel:
		f.means = meansUnknownModel
	case f.Type == "tokens" && f.Code == "rate_limit_exceeded" && exceedsLimit(f.Message):
		f.means = meansPermanent
	}
	if b.Metadata.Raw != "" {
		b.addUpstream(f)
	}
	return f
}

// errorType is OpenRouter's own word for an error, but for the one that it uses
// for a malformed message and OpenAI for a flagged one.
func (b *faultBody) errorType() looseText {
	if b.Metadata.ErrorType == "invalid_prompt" {
		return ""
	}
	return b.Metadata.ErrorType
}

// readDetails reads Anthropic's details object and Google's list of typed ones.
func (f *fault) readDetails(raw json.RawMessage) {
	if len(raw) == 0 {
		return
	}
	if raw[0] == '{' {
		var d struct {
			ErrorCode looseText `json:"error_code"`
		}
		decode(raw, &d)
		if d.ErrorCode != "" {
			f.Detail = string(d.ErrorCode)
		}
		return
	}
	var list []struct {
		Type       string    `json:"@type"`
		Reason     looseText `json:"reason"`
		RetryDelay looseText `json:"retryDelay"`
		Violations []struct {
			QuotaID     string `json:"quotaId"`
			QuotaMetric string `json:"quotaMetric"`
		} `json:"violations"`
	}
	decode(raw, &list)
	for _, d := range list {
		switch d.Type[strings.LastIndexByte(d.Type, '.')+1:] {
		case "RetryInfo":
			if wait, err := time.ParseDuration(string(d.RetryDelay)); err == nil {
				f.RetryDelay = min(max(wait, 0), maxWait)
			}
		case "ErrorInfo":
			if f.Detail == "" {
				f.Detail = string(d.Reason)
			}
		case "QuotaFailure":
			for _, v := range d.Violations {
				if strings.Contains(v.QuotaID, "PerDay") ||
					strings.HasSuffix(v.QuotaMetric, "_per_day") {
					f.means = meansNoCredit // a quota of a day is used up
				}
			}
		}
	}
}

// Some providers report two different things with the same status, type and code, and only
// the sentence distinguishes them. The sentences below are read, where status and type
// match, and no others are.

// disabled begins Anthropic's 400 for an organization that it has closed. The error has
// the type of a bad request.
const disabled = "This organization has been disabled"

// noPrepaid reads Gemini's 429 for a prepaid balance that is used up: "Your prepayment
// credits are depleted." By status it is a limit that passes, and it has none of the
// details of one. The sentence about a quota, which does pass, speaks of plan and
// billing, but not of prepaid credit.
func noPrepaid(message string) bool {
	s := strings.ToLower(message)
	return has(s, "prepayment", "prepaid") && has(s, "credit", "balance") &&
		has(s, "depleted", "exhausted", "used up", "insufficient")
}

// noTeamCredit reads xAI's sentence for credit that is used up, which it answers by 429
// and the code for any limit. Its errors are a code and, in the place of an object, a
// text.
func noTeamCredit(message string) bool {
	return strings.HasPrefix(message, "Your team ") &&
		strings.Contains(message, "used all available credits or reached its monthly spending "+
			"limit")
}

func has(s string, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(s, word) })
}

// tokenBytes is far more than the bytes that a token has on average: 2 to 5 in most
// texts, 10 in some scripts.
const tokenBytes = 16

// exceedsBucket reports whether Anthropic has refused a request that is larger than all
// the input tokens of a minute. Its words are those for a limit that others have used up.
// So one of two things must show that it cannot fit: its length alone, or that nothing
// was used of the limit and still it was refused. In that case too it must have as many
// bytes as the limit has tokens, so that no short row fails by it. As the number of
// tokens that remain is rounded to thousands, a request within 500 tokens of the limit
// could be taken for one beyond it. The sentence about usage that increases too fast
// speaks of input tokens per minute too, but of no "rate limit", and passes.
func exceedsBucket(o *ending) bool {
	const bucket = "Anthropic-Ratelimit-Input-Tokens-"
	f := o.Fault
	if o.Status != http.StatusTooManyRequests || f == nil || f.Type != "rate_limit_error" {
		return false
	}
	sentence, _, ok := strings.Cut(f.Message, " input tokens per minute")
	if !ok || !strings.Contains(sentence, " rate limit ") {
		// a "maximum usage increase rate" passes.
		return false
	}
	limit, ok := digits([]byte(o.Header.Get(bucket + "Limit")))
	if !ok { // a proxy has dropped it; the sentence has it too: "rate limit of 40,000"
		number := sentence[strings.LastIndexByte(sentence, ' ')+1:]
		limit, _ = digits([]byte(strings.ReplaceAll(number, ",", "")))
	}
	size := int64(o.Known.RequestBytes)
	if limit == 0 || size < limit {
		return false
	}
	remaining, ok := digits([]byte(o.Header.Get(bucket + "Remaining")))
	return ok && remaining >= limit || !o.Known.Cached && size/tokenBytes > limit
}

// dashScopeLimit reports whether Alibaba's DashScope has refused a request for its limit
// of tokens a minute. It calls that by OpenAI's code for a lack of credit, but its
// gateway marks each reply.
func dashScopeLimit(o *ending) bool {
	return o.Status == http.StatusTooManyRequests && o.Fault.Code == "insufficient_quota" &&
		o.Header.Get("X-Dashscope-Call-Gateway") != ""
}

// spendLimit reads the beginnings of Anthropic's 400 for a limit on spending that the
// organization or the workspace has set itself, as its documentation spells them, and for
// a prepaid balance that is used up. By type they are invalid requests; taken for such,
// every row would fail.
func spendLimit(message string) bool {
	return strings.HasPrefix(message, "You have reached your specified API usage limits") ||
		strings.HasPrefix(message, "You have reached your specified workspace API usage limits") ||
		strings.HasPrefix(message, "Your credit balance is too low")
}

// noModel ends OpenRouter's 400 for a model that it does not have. It has no type, code
// or metadata.
const noModel = " is not a valid model ID"

// exceedsLimit reads OpenAI's two numbers, "Limit 30000, Requested 36278". It answers the
// same type and code when a request waits for room in the limit and when it can never
// fit, and gives the numbers nowhere else.
func exceedsLimit(message string) bool {
	numbers := limitRequested.FindStringSubmatch(message)
	if numbers == nil {
		return false
	}
	limit, errLimit := strconv.ParseInt(strings.ReplaceAll(numbers[1], ",", ""), 10, 64)
	requested, errRequested := strconv.ParseInt(strings.ReplaceAll(numbers[2], ",", ""), 10, 64)
	return errLimit == nil && errRequested == nil && requested > limit
}

// limitRequested finds both numbers, with or without thousands separators.
var limitRequested = regexp.MustCompile(`(?s)Limit (\d+(?:,\d{3})*)\b.*?Requested (\d+(?:,\d{3})*)\b`)

// statusOf returns the HTTP error status that a code or status spells, or 0.
func statusOf(code string) int {
	n, err := strconv.Atoi(code)
	if err != nil || n < 400 || n > 599 {
		return 0
	}
	return n
}

// unsupported returns the Unsupported member of an error object. A value out of range, which
// OpenAI and Together name by the same param, does not count.
func (b *faultBody) unsupported() string {
	switch {
	case b.Code == "unsupported_parameter", b.Code == "unsupported_value",
		strings.HasPrefix(string(b.Message), "Unsupported parameter: "):
		// OpenAI sometimes omits the code.
		return string(b.Param)
	}
	return cmp.Or(forbidden(string(b.Message)), deprecated(string(b.Message)))
}

// addUpstream appends the message of the provider behind OpenRouter, whose own message is
// "Provider returned error". The class does not depend on it. Deeper nesting is not read:
// a reply must not cost more than its length.
func (b *faultBody) addUpstream(f *fault) {
	words := string(b.Metadata.Raw)
	var top struct {
		Error faultBody `json:"error"`
		faultBody
	}
	decode([]byte(words), &top)
	for _, inner := range [...]*faultBody{&top.faultBody, &top.Error} {
		if inner.Message != "" {
			words = string(inner.Message)
			f.Unsupported = inner.unsupported()
		}
	}
	if b.Metadata.Provider != "" {
		words = string(b.Metadata.Provider) + ": " + words
	}
	f.Message = strings.TrimPrefix(f.Message+": "+words, ": ")
}

// forbidden returns the member that FastAPI does not know:
// [{"type": "extra_forbidden", "loc": ["body", "max_completion_tokens"]}].
func forbidden(detail string) string {
	var list []struct {
		Type string      `json:"type"`
		Loc  []looseText `json:"loc"`
	}
	if !strings.HasPrefix(detail, "[") || !decode([]byte(detail), &list) || len(list) == 0 {
		return ""
	}
	if first := list[0]; first.Type == "extra_forbidden" && len(first.Loc) > 0 {
		return string(first.Loc[len(first.Loc)-1])
	}
	return ""
}

// deprecated returns the member that Anthropic's "`temperature` is deprecated for this
// model." names, which has no field for it.
func deprecated(message string) string {
	rest, ok := strings.CutPrefix(message, "`")
	name, end, closed := strings.Cut(rest, "`")
	if !ok || !closed || !strings.HasPrefix(end, " is deprecated") {
		return ""
	}
	return name
}
