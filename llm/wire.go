package llm

import (
	"cmp"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Wire is one wire format: a pure translation between [Request], [Reply] and the JSON of
// one kind of endpoint. [ChatCompletions], [Responses], [Messages], [GenerateContent]
// and [Converse] are for [TaskChat]. [Embeddings], [BatchEmbedContents], [InvokeEmbeddings]
// and [Predict] are for [TaskEmbed]. No other package can add one.
type Wire interface {
	// Path returns the path and query of a request for model, below the base URL.
	Path(model string) string
	// SetHeader sets the headers that the wire format wants and, unless key is empty, the
	// credential.
	SetHeader(h http.Header, key string)
	// AppendRequest appends the JSON of a request whose Model is not empty. It does not
	// merge ExtraBody.
	AppendRequest(dst []byte, r *Request) []byte
	// check reports why the format can't carry a request's messages. Their media have rules
	// of their own.
	check(r *Request) error
	media() *mediaRules
	// readReply reads the body of a reply with a 2xx status, which is valid JSON, into r
	// as far as possible, and notes in o how it ended: Form, Fault and Finish.
	readReply(body []byte, r *Reply, o *ending)
	// keep reads those of reasoning, logprobs and citations that are among the parts from
	// the body of a reply that readReply has read.
	keep(body []byte, k *Kept, parts Keep)
}

// ParseReply translates one HTTP reply and judges it. The error is nil or an [*Error]
// without Provider. The Reply is nil unless the status is 2xx. With an error it contains
// the members that could be read, such as the usage of a refused answer, which is billed
// too. body is not kept. ParseReply is pure: now is when the reply arrived, and waits
// count from it.
func ParseReply(
	w Wire, k Known, now time.Time, status int, h http.Header, body []byte,
) (*Reply, error) {
	o := ending{Status: status, Header: h, Known: k}
	return parseReply(w, &o, now, body)
}

// parseReply is ParseReply on an ending that the client has begun to fill.
func parseReply(w Wire, o *ending, now time.Time, body []byte) (*Reply, error) {
	var r *Reply
	switch {
	case o.Status/100 != 2:
		o.Fault = readFault(body)
		o.readAWS()
		if exceedsBucket(o) {
			o.Fault.means = meansPermanent
		}
	case o.Err == nil && o.Form != formTooLarge:
		r = new(Reply)
		readReply(w, body, r, o)
	}
	j := judge(o)
	if j.class == 0 {
		return r, nil
	}
	e := &Error{
		Status: o.Status, Class: j.class, Reason: j.reason, Origin: j.origin,
		Absent: j.class == Transient && absent(o), Alike: alike(o, &j, r, body),
	}
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

// readReply is Wire.readReply for a body that may be anything, and takes the reasoning
// out of the answer.
func readReply(w Wire, body []byte, r *Reply, o *ending) {
	body = jsonbytes.TrimBOM(body)
	isJSON, isUTF8 := jsonbytes.Valid(body), utf8.Valid(body)
	if isJSON {
		w.readReply(body, r, o)
	}
	switch {
	case !isJSON && (isUTF8 || isHTML(body)):
		o.Form = formNotJSON
		return
	case !isUTF8:
		// The text has lost characters, but the usage is right: the call is billed.
		r.Text, o.Form = "", formNotUTF8
		return
	}
	reasoning, answer, reasoned := splitReasoning(r.Text)
	if r.Text = answer; reasoned && o.Form == formReply && blank(answer) && len(r.calls()) == 0 {
		o.Form = formReasoning
	}
	if o.Known.Keep != 0 {
		keepParts(w, body, r, o.Known.Keep, reasoning)
	}
}

// malformed notes that the body is an error object, or does not have the shape of the
// wire format.
func (o *ending) malformed(body []byte) {
	o.Fault = readFault(body)
	o.Form = formMalformed
}

// setWait notes what the server reported about when to retry: its headers,
// then what its error object holds in their place.
func (e *Error) setWait(o *ending, now time.Time) {
	e.Wait = ParseWait(o.Header, now)
	if f := o.Fault; f != nil {
		repeated := ParseWait(f.Header, now)
		e.RetryAfter = cmp.Or(e.RetryAfter, f.RetryDelay, repeated.RetryAfter)
		e.Remaining0 = e.Remaining0 || repeated.Remaining0
		e.Reset = max(e.Reset, repeated.Reset)
		e.settle()
	}
}
