package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Wire is one wire format: a pure translation between [Request], [Reply] and
// the JSON of one kind of endpoint. [ChatCompletions], [Responses], [Messages]
// and [GenerateContent] are wire formats.
type Wire interface {
	// Path returns the path and query of a request for model, below the base URL.
	Path(model string) string
	// SetHeader sets the headers that the wire format wants and, unless key is
	// empty, the credential.
	SetHeader(h http.Header, key string)
	// AppendRequest appends the JSON of a request whose Model is not empty. It
	// does not merge ExtraBody.
	AppendRequest(dst []byte, r *Request) []byte
	// ReadReply reads the body of a reply with a 2xx status into r, as far as it
	// goes, and notes in o how it ended: Form, Fault and Finish.
	ReadReply(body []byte, r *Reply, o *Outcome)
}

// ParseReply translates one HTTP reply and judges it. The error is nil or an
// [*Error] without Provider. The Reply is nil unless the status is 2xx; beside
// an error it holds what could be read, such as the usage of a refused answer,
// which was paid all the same. body is not kept. ParseReply is pure: now is when
// the reply came, from which waits count.
func ParseReply(w Wire, k Known, now time.Time, status int, h http.Header, body []byte) (*Reply, error) {
	o := Outcome{Status: status, Header: h, Known: k}
	return parseReply(w, &o, now, body)
}

// parseReply is ParseReply on an outcome that the client has begun.
func parseReply(w Wire, o *Outcome, now time.Time, body []byte) (*Reply, error) {
	var r *Reply
	switch {
	case o.Status/100 != 2:
		if o.Fault = readFault(body); exceedsBucket(o) {
			o.Fault.Oversized = true
		}
	case o.Err == nil && o.Form != FormTooLarge:
		r = new(Reply)
		w.ReadReply(body, r, o)
	}
	j := judge(o)
	if j.class == 0 {
		return r, nil
	}
	e := &Error{Status: o.Status, Class: j.class, Reason: j.reason, Origin: j.origin, Alike: alike(o, &j, r, body)}
	if o.Fault != nil {
		e.Code, e.Type = o.Fault.Code, o.Fault.Type
		if e.Code == "" && o.Fault.Status != 0 && o.Fault.Status != o.Status {
			e.Code = strconv.Itoa(o.Fault.Status)
		}
	}
	e.setWait(o, now)
	e.Facts = facts(o, e, r, body)
	e.Err = explain(o, e, r, body)
	return r, e
}

// setWait notes what the server told about when to come back: its headers,
// then what its error object says in their place.
func (e *Error) setWait(o *Outcome, now time.Time) {
	wait := ParseWait(o.Header, now)
	if f := o.Fault; f != nil {
		told := ParseWait(f.Header, now)
		for _, d := range [...]time.Duration{f.RetryDelay, told.RetryAfter} {
			if wait.RetryAfter == 0 {
				wait.RetryAfter = d
			}
		}
		wait.Remaining0 = wait.Remaining0 || told.Remaining0
		wait.Reset = max(wait.Reset, told.Reset)
		wait.settle()
	}
	e.RetryAfter, e.Remaining0, e.Reset = wait.RetryAfter, wait.Remaining0, wait.Reset
}

// facts returns the further members of the error object in a result.
func facts(o *Outcome, e *Error, r *Reply, body []byte) map[string]any {
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
		f["content_type"], f["body_preview"] = excerpt.Of(o.Header.Get("Content-Type")), excerpt.Of(body)
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

// finishBytes bounds a finish reason in errors: the longest documented ones have 45 bytes.
const finishBytes = 80

// topKeys names the members of a JSON object, at most twenty, nil of anything
// else.
func topKeys(body []byte) []string {
	var keys []string
	if !jsonbytes.Valid(body) { // a wire format of somebody else's may call it malformed all the same
		return nil
	}
	for key := range jsonbytes.Members(body) {
		if keys = append(keys, excerpt.Of(key)); len(keys) == 20 {
			break
		}
	}
	return keys
}

// explanations are the texts of the reasons that need no more.
var explanations = map[Reason]string{
	ReasonEmptyChoices:     "reply holds no answer",
	ReasonEmptyContent:     "answer holds no text",
	ReasonRefused:          "the model refused to answer",
	ReasonTruncated:        "answer ends at the token limit; raise the limit or accept truncated answers",
	ReasonResponseTooLarge: "reply exceeds the bound on its size",
	ReasonContentFiltered:  "answer was stopped by the provider's content filter",
}

// explain says in one line what happened and what to change.
func explain(o *Outcome, e *Error, r *Reply, body []byte) error {
	if o.Fault == nil && (o.Finish == FinishUnfinished || o.Finish == FinishDeadEnd) && e.Reason == ReasonTruncated {
		if r.FinishReason == "" {
			return errors.New("the answer was broken off: the provider gave no finish reason")
		}
		return fmt.Errorf("the answer was broken off: finish reason %q", excerpt.Clip(r.FinishReason, finishBytes))
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
	if e.Reason == ReasonMalformedResponse {
		return fmt.Errorf("reply is not of the provider's format: it has the members %q; check the provider and the base URL", topKeys(body))
	}
	if o.Err != nil && o.Status/100 <= 2 {
		switch {
		case e.Origin == OfHost:
			return fmt.Errorf("%w (%s)", o.Err, shortage(o).remedy)
		case e.Origin == OfNetwork && errors.Is(o.Err, ErrTimeout):
			return fmt.Errorf("%w before a connection was made", o.Err)
		case e.Class == Fatal:
			return fmt.Errorf("%w (check the base URL, and the CA file where the certificate is private)", o.Err)
		}
		return o.Err
	}
	text := serverText(o, title)
	if e.Class == Fatal {
		text += " (" + mending(o) + ")"
	} else if remedy := remedyOf(o.Fault); remedy != "" {
		text += " (" + remedy + ")"
	}
	if id := requestID(o.Header); id != "" && !strings.Contains(text, id) {
		text += " (request " + id + ")"
	}
	return errors.New(text)
}

// serverText returns the server's words about an error, else what its status means. title is that of an HTML page.
func serverText(o *Outcome, title string) string {
	text := http.StatusText(o.Status)
	switch {
	case o.Fault != nil && o.Fault.Message != "":
		return excerpt.Of(o.Fault.Message)
	case o.Status/100 == 3:
		return "server redirects to " + location(o.Header)
	case o.Status/100 == 2:
		return "the provider broke off without a message"
	case title != "" && (text == "" || !strings.Contains(strings.ToLower(title), strings.ToLower(text))):
		return strings.TrimSpace(fmt.Sprintf("%s (HTML page %q)", text, title))
	case text == "":
		return "the server gave no reason"
	}
	return text
}

// mending tells the reader of a fatal error what to do.
func mending(o *Outcome) string {
	status := o.Status
	if status/100 == 2 && o.Fault != nil {
		status = o.Fault.Status
	}
	switch {
	case o.Fault != nil && o.Fault.SpendLimit:
		status = 402
	case o.Fault != nil && o.Fault.Disabled:
		return "check the account at the provider"
	case o.Fault != nil && o.Fault.UnknownModel:
		status = 404
	}
	switch {
	case status/100 == 3:
		return "redirects are not followed: set the base URL to the final address"
	case status == 401:
		return "check the API key"
	case status == 402, status == 429:
		return "check credit and spending limits at the provider"
	case status == 403:
		return "check what the API key may do"
	case status == 404:
		return "check the model and the base URL"
	case status == 407:
		return "check the credentials in the proxy variables"
	}
	return "check the API key and the account at the provider"
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
