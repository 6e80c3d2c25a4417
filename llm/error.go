package llm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Class is what a failed attempt means for the next one.
type Class uint8

// The zero Class belongs to success, and to an attempt that its caller cancelled.
const (
	// Capacity means that the server has no room now. Slow down and try again, for as long
	// as it takes.
	Capacity Class = iota + 1
	// Transient is a passing failure. Try again a bounded number of times.
	Transient
	// Permanent means that this row cannot succeed. Trying again changes nothing.
	Permanent
	// Fatal means that no row can succeed until someone fixes the account, key, model or
	// address.
	Fatal
)

// String returns the class as audit events spell it: "capacity", "transient",
// "permanent" or "fatal", and "" for the zero Class.
func (c Class) String() string { return classNames[c] }

var classNames = map[Class]string{
	Capacity: "capacity", Transient: "transient", Permanent: "permanent", Fatal: "fatal",
}

// Origin is where a transient or permanent error comes from: the request itself, or
// something else.
type Origin uint8

// The zero Origin is OfRequest.
const (
	// OfRequest means that the provider answered about this very request.
	OfRequest Origin = iota
	// OfServer means that the server is unhealthy. It answered 5xx, HTML, a cut or an empty
	// body, or not within the time-out.
	OfServer
	// OfNetwork means that no server was reached, or that the connection broke before a
	// byte of the reply arrived. For example, the connection was refused or reset, there
	// was none within the time-out, or the name has no address.
	OfNetwork
	// OfHost means that this machine lacks a descriptor, port, buffer, memory or route.
	// Nothing was sent.
	OfHost
)

// Reason is the machine-readable cause of an error result.
type Reason string

// The reasons that a result's error object may carry.
const (
	ReasonInvalidRow              Reason = "invalid_row"
	ReasonTemplateRenderingFailed Reason = "template_rendering_failed"
	ReasonAPICallFailed           Reason = "api_call_failed"
	ReasonInvalidJSONResponse     Reason = "invalid_json_response"
	ReasonEmptyChoices            Reason = "empty_choices"
	ReasonEmptyContent            Reason = "empty_content"
	ReasonMalformedResponse       Reason = "malformed_response"
	ReasonContentFiltered         Reason = "content_filtered"
	ReasonRefused                 Reason = "refused"
	ReasonTruncated               Reason = "truncated"
	ReasonSchemaValidationFailed  Reason = "schema_validation_failed"
	ReasonResponseTooLarge        Reason = "response_too_large"
	ReasonRowTooLarge             Reason = "row_too_large"
	ReasonRowTimeout              Reason = "row_timeout"
	ReasonResultTooLarge          Reason = "result_too_large"
	ReasonForeachFailed           Reason = "foreach_failed"
	ReasonInternalError           Reason = "internal_error"
)

// Reasons returns all reasons of error results of rows.
func Reasons() []Reason {
	return []Reason{
		ReasonInvalidRow, ReasonTemplateRenderingFailed, ReasonAPICallFailed,
		ReasonInvalidJSONResponse, ReasonEmptyChoices,
		ReasonEmptyContent, ReasonMalformedResponse, ReasonContentFiltered, ReasonRefused,
		ReasonTruncated,
		ReasonSchemaValidationFailed, ReasonResponseTooLarge, ReasonRowTooLarge, ReasonRowTimeout,
		ReasonResultTooLarge,
		ReasonForeachFailed, ReasonInternalError,
	}
}

// The further reasons that a result of a batch may carry.
const (
	// ReasonRateLimited means that the provider had no capacity in any attempt.
	ReasonRateLimited Reason = "rate_limited"
	// ReasonCancelled means that the batch ended before the prompt was answered.
	ReasonCancelled Reason = "cancelled"
)

// Error is the one error type of calls, templates and replies: what failed, what it
// means, and the facts that the reason promises. It never holds a credential.
type Error struct {
	// Provider is the client's name. It is empty where no provider was called.
	Provider string
	// Status is the HTTP status. It is 0 if no reply arrived.
	Status int
	// Class is zero only when the caller cancelled the attempt.
	Class Class
	// Reason is never empty in an error with a Class.
	Reason Reason
	// Origin is, with class Transient or Permanent, where the error comes from.
	Origin Origin
	// Absent is set when nothing listens at the server's address and no call of this
	// client has succeeded yet. The class is then Transient and the origin OfNetwork.
	Absent bool
	// Alike names, with class Transient or Permanent, an error that every request meets
	// where the settings are wrong. The same verdict has the same name, such as "400
	// invalid_request_error unknown_parameter", "html" or "malformed_response". It has at
	// most 100 bytes, and no part of a message. It is empty if settings did not cause it.
	Alike string
	// Code and Type are the provider's own words. Each is empty if it was not sent.
	Code, Type string
	// Wait is what the server reported about when to retry.
	Wait
	// Facts are the further members of the result's error object, by their JSON names.
	// Values are nil, strings, numbers, []string or json.RawMessage.
	Facts map[string]any
	// Err is what happened. It is never nil.
	Err error
}

// Error implements error: provider, status and code, then what happened.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Provider != "" {
		b.WriteString(e.Provider)
		b.WriteString(": ")
	}
	if e.Status != 0 && e.Status != 200 {
		b.WriteString(strconv.Itoa(e.Status))
		if code := e.providerCode(); code != "" {
			b.WriteByte(' ')
			b.WriteString(code)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// providerCode is the provider's most specific code of the error.
func (e *Error) providerCode() string {
	if e.Code != "" {
		return excerpt.Of(e.Code)
	}
	return excerpt.Of(e.Type)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// explanations are the texts of the reasons that need no details.
var explanations = map[Reason]string{
	ReasonEmptyChoices: "reply contains no answer",
	ReasonEmptyContent: "answer contains no text",
	ReasonRefused:      "the model refused to answer",
	ReasonTruncated: "answer ends at the token limit; raise the limit or accept truncated " +
		"answers",
	ReasonResponseTooLarge: "reply exceeds the bound on its size",
	ReasonContentFiltered:  "answer was stopped by the provider's content filter",
}

// reasoningAlone has the error texts for an answer that is only a block of reasoning.
var reasoningAlone = map[Reason]string{
	ReasonEmptyContent: "answer contains no text behind its reasoning (<think>); set the " +
		"reasoning parser of the server",
	ReasonTruncated: "the reasoning (<think>) ends at the token limit, before the answer; " +
		"raise the limit",
}

// explain describes in one line what happened and what to change.
func explain(o *ending, e *Error, r *Reply, body []byte) error {
	if o.Fault == nil && (o.Finish == finishUnfinished || o.Finish == finishDeadEnd) &&
		e.Reason == ReasonTruncated {
		if r.FinishReason == "" {
			return errors.New("the answer ended early: the provider gave no finish reason")
		}
		return fmt.Errorf("the answer ended early: finish reason %q",
			excerpt.Clip(r.FinishReason, finishBytes))
	}
	if text := reasoningAlone[e.Reason]; text != "" && o.Form == formReasoning {
		return errors.New(text)
	}
	if text := explanations[e.Reason]; text != "" && o.Fault == nil {
		return errors.New(text)
	}
	page, title := readHTML(body)
	if e.Reason == ReasonInvalidJSONResponse {
		switch {
		case len(bytes.TrimSpace(body)) == 0:
			return errors.New("the reply is empty")
		case page && title != "":
			return fmt.Errorf("the reply is an HTML page (%q), not JSON; check the base URL", title)
		}
		return fmt.Errorf("reply is not one JSON value: %.80q", excerpt.Of(body))
	}
	if e.Reason == ReasonMalformedResponse && o.Form == formNotUTF8 {
		return explainNotUTF8(o, body)
	}
	if o.Problem != nil {
		return o.Problem
	}
	if e.Reason == ReasonMalformedResponse {
		return fmt.Errorf("reply is not of the provider's format: it has the members %q; check "+
			"the provider and the base URL", topKeys(body))
	}
	if o.Err != nil && o.Status/100 <= 2 {
		switch {
		case e.Absent:
			return explainAbsent(o)
		case e.Origin == OfHost:
			return fmt.Errorf("%w (%s)", o.Err, shortage(o).remedy)
		case e.Origin == OfNetwork && errors.Is(o.Err, ErrTimeout):
			return fmt.Errorf("%w before a connection was made", o.Err)
		case e.Class == Fatal && !wraps[*unauthorizedError](o.Err):
			return fmt.Errorf("%w (check the base URL, and the CA file where the certificate is "+
				"private)", o.Err)
		}
		return o.Err
	}
	text := serverText(o, title)
	if e.Class == Fatal {
		if what := advice(o); what != "" {
			text += " (" + what + ")"
		}
	} else if o.Fault != nil && remedies[o.Fault.Unsupported] != "" {
		text += " (" + remedies[o.Fault.Unsupported] + ")"
	}
	if id := requestID(o.Header); id != "" && !strings.Contains(text, id) {
		text += " (request " + id + ")"
	}
	return errors.New(text)
}

// explainNotUTF8 names the first byte of a reply that is not UTF-8, and the charset that
// the reply claims.
func explainNotUTF8(o *ending, body []byte) error {
	at := jsonbytes.InvalidUTF8(body)
	claim := ""
	if _, params, _ := mime.ParseMediaType(o.Header.Get("Content-Type")); params["charset"] != "" {
		claim = fmt.Sprintf(", its Content-Type says %.40q", params["charset"])
	}
	return fmt.Errorf("reply is not UTF-8: byte %#02x at %d%s; a proxy or gateway damages "+
		"replies: have it pass them on unchanged", body[at], at, claim)
}

// serverText returns the server's words about an error or, without any, the meaning of
// its status. title is the title of an HTML page.
func serverText(o *ending, title string) string {
	text := http.StatusText(o.Status)
	switch {
	case o.Fault != nil && o.Fault.Message != "":
		return excerpt.Of(o.Fault.Message)
	case o.Status/100 == 3:
		return "server redirects to " + location(o.Header)
	case o.Status/100 == 2:
		return "the provider reported an error without a message"
	case title != "" && (text == "" || !strings.Contains(strings.ToLower(title),
		strings.ToLower(text))):
		return strings.TrimSpace(fmt.Sprintf("%s (HTML page %q)", text, title))
	case text == "":
		return "the server gave no reason"
	}
	return text
}

// advice says how to fix a fatal error. It is empty for a 404 about the object that the
// request asked for.
func advice(o *ending) string {
	status := o.Status
	if status/100 == 2 && o.Fault != nil {
		status = o.Fault.Status
	}
	switch {
	case o.Fault == nil:
	case o.Fault.means == meansNoCredit:
		status = 402
	case o.Fault.means == meansUnknownModel:
		status = 404
	case o.Fault.means == meansDisabled:
		return "check the account at the provider"
	}
	if status == 404 && o.Known.Raw && (o.Fault == nil || o.Fault.means != meansUnknownModel) {
		return ""
	}
	if o.Fault != nil {
		if what := cmp.Or(adviceAWS(o.Fault), adviceGoogle(o.Fault),
			adviceAzure(o.Fault)); what != "" {
			return what
		}
	}
	if status/100 == 3 {
		return "redirects are not followed: set the base URL to the final address"
	}
	if o.Known.Identity && (status == 401 || status == 403) {
		return "check what the cloud's identity may do: it needs a role that may call the model"
	}
	return cmp.Or(advices[status], "check the API key and the account at the provider")
}

// advices are what to do about a fatal error with this status.
var advices = map[int]string{
	401: "check the API key",
	402: "check credit and spending limits at the provider",
	403: "check what the API key may do",
	404: "check the model and the base URL",
	407: "check the credentials in the proxy variables",
	429: "check credit and spending limits at the provider",
}

// location is where a redirect points, without query and credentials.
func location(h http.Header) string {
	u, err := url.Parse(h.Get("Location"))
	if err != nil || *u == (url.URL{}) {
		return "nowhere"
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return excerpt.Of(u.String())
}

// remedies are what to set instead of a member of the request that is not supported. A
// list of models would be out of date with every release.
var remedies = map[string]string{
	"temperature": "leave the temperature unset: the model does not accept one with " +
		"these settings",
	"max_tokens": `leave the token limit unset and put it into the extra body: ` +
		`{"max_completion_tokens": …}`,
	"max_completion_tokens": `leave the token limit unset and put it into the extra body: ` +
		`{"max_tokens": …}`,
}

// requestID returns the id by which the provider's support finds a request: x-request-id
// (OpenAI, Azure, Groq, xAI), request-id (Anthropic), apim-request-id (Azure),
// x-amzn-requestid (AWS). It is empty if the reply has none.
func requestID(h http.Header) string {
	for _, name := range [...]string{
		"X-Request-Id", "Request-Id", "Apim-Request-Id",
		amznRequestID,
	} {
		if id := h.Get(name); isWord(id) {
			return id
		}
	}
	return ""
}

// facts returns the further members of the error object in a result.
func facts(o *ending, e *Error, r *Reply, body []byte) map[string]any {
	f := map[string]any{}
	if e.Reason == ReasonAPICallFailed {
		f["status_code"], f["provider_code"] = nil, nil
		if e.Status != 0 {
			f["status_code"] = e.Status
		}
		if code := e.providerCode(); code != "" {
			f["provider_code"] = code
		}
	}
	if e.Reason == ReasonInvalidJSONResponse {
		f["content_type"], f["body_preview"] = excerpt.Of(o.Header.Get("Content-Type")),
			excerpt.Of(body)
	}
	if e.Reason == ReasonEmptyChoices {
		f["response"] = excerpt.Of(body)
		var compact bytes.Buffer
		if len(body) <= excerpt.BytesMax && json.Compact(&compact, body) == nil {
			f["response"] = json.RawMessage(compact.Bytes())
		}
	}
	if e.Reason == ReasonMalformedResponse {
		f["response_keys"] = topKeys(body)
	}
	if e.Reason == ReasonTruncated {
		f["partial"], f["finish_reason"] = r.Text, nil
		if r.FinishReason != "" {
			f["finish_reason"] = excerpt.Clip(r.FinishReason, finishBytes)
		}
	}
	return f
}

var (
	htmlStart = regexp.MustCompile(`(?i)^\s*<(!doctype html|html|head)\b`)
	htmlTitle = regexp.MustCompile(`(?is)<title[^>]*>(.*?)</title`)
)

// isHTML reports whether body is an HTML page.
func isHTML(body []byte) bool {
	page, _ := readHTML(body)
	return page
}

// titleBytes bounds the title of a page in an error.
const titleBytes = 80

// readHTML reports whether body is an HTML page, and returns its title on one line, or
// empty.
func readHTML(body []byte) (page bool, title string) {
	body = jsonbytes.TrimBOM(body[:min(len(body), errorBytes)])
	if !htmlStart.Match(body) {
		return false, ""
	}
	if match := htmlTitle.FindSubmatch(body); match != nil {
		title = strings.Join(strings.Fields(html.UnescapeString(string(match[1]))), " ")
	}
	return true, excerpt.Clip(title, titleBytes)
}

// finishBytes bounds a finish reason in errors: the longest documented ones have 45 bytes.
const finishBytes = 80

// topKeys names the members of a JSON object, at most twenty, nil of anything else.
func topKeys(body []byte) []string {
	var keys []string
	body = jsonbytes.TrimBOM(body)
	if !jsonbytes.Valid(body) { // a wire format may call a body malformed that is not JSON
		return nil
	}
	for key := range jsonbytes.Members(body) {
		if keys = append(keys, excerpt.Of(key)); len(keys) == 20 {
			break
		}
	}
	return keys
}
