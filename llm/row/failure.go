package row

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// bodyPreview is the fact that each invalid row has: the beginning of its body.
const bodyPreview = "body_preview"

// errorSuffix ends the name of the field that an error adds.
const errorSuffix = "_error"

func replacedByError(suffix []byte) bool { return string(suffix) == errorSuffix }

// AppendError appends the body of an error result: the row's own object and F_error, an
// object of reason, error, the facts of err in the order of their names, and errors, the
// attempts. An F_error of an earlier run is replaced. Everything else in the row stays,
// also an F of an earlier run: a failed row keeps its members, and Stage-Status
// distinguishes it from a success. With [llm.ReasonInvalidRow] the beginning of the row is
// in the fact body_preview, also where err has no such fact.
//
// maxBytes bounds the body in bytes; 0 means no bound. What does not fit is left out, by
// the first of these that is enough: facts and errors beyond 500 bytes each are cut and
// only the last attempts listed; the row is left out but for body_preview; facts and
// attempts are left out. row is nil when there is none, as for an invalid row, whose
// body_preview is among the facts of err.
func (f *Format) AppendError(
	dst []byte, row *Row, err *llm.Error, attempts []auditlog.AttemptError, maxBytes int,
) []byte {
	facts := err.Facts
	if _, shown := facts[bodyPreview]; row != nil && err.Reason == llm.ReasonInvalidRow && !shown {
		facts = map[string]any{bodyPreview: excerpt.Of(row.body)}
		maps.Copy(facts, err.Facts)
	}
	return f.appendFitting(dst, row, &failure{
		reason: err.Reason, text: err.Error(),
		facts: facts, attempts: attempts,
	}, maxBytes)
}

// appendFitting is AppendError for a report, which it may change.
func (f *Format) appendFitting(dst []byte, row *Row, report *failure, maxBytes int) []byte {
	start := len(dst)
	fits := func() bool { return maxBytes <= 0 || len(dst)-start <= maxBytes }
	if dst = f.appendFailure(dst, row, report); fits() {
		return dst
	}
	report.shorten()
	if dst = f.appendFailure(dst[:start], row, report); fits() {
		return dst
	}
	if row != nil {
		report.facts[bodyPreview] = excerpt.Of(row.body)
		if dst = f.appendFailure(dst[:start], nil, report); fits() {
			return dst
		}
	}
	// A maximum this small is a configuration error: keep at least the reason.
	report.facts, report.attempts = nil, nil
	report.text = excerpt.Of(report.text[:min(len(report.text), 100)])
	return f.appendFailure(dst[:start], nil, report)
}

func (f *Format) appendFailure(dst []byte, row *Row, report *failure) []byte {
	return append(report.appendJSON(f.beginFailure(dst, row)), '}')
}

// beginFailure appends an error result as far as the object F_error. row is nil where it
// is left out.
func (f *Format) beginFailure(dst []byte, row *Row) []byte {
	if row != nil {
		dst = f.appendRow(dst, row, f.Keep, replacedByError)
	} else {
		dst = append(dst, '{')
	}
	return append(dst, f.failure...)
}

// ResultTooLarge is the error of a success whose body of size bytes is above maxBytes,
// the most that can be stored. remedy is what else can be done than to ask for shorter
// replies, such as ", or raise a limit"; it may be empty.
func ResultTooLarge(size, maxBytes int, remedy string) *llm.Error {
	return &llm.Error{
		Class: llm.Permanent, Reason: llm.ReasonResultTooLarge,
		Err: fmt.Errorf("the result has %d bytes, and %d can be stored: ask for shorter replies%s",
			size, maxBytes, remedy),
	}
}

// TooLarge is the error of a row of size bytes that cannot be published, as the server
// takes at most maxBytes. begin is the start of its body, for the preview. raise says that
// the limit is a setting of the user's own server.
func TooLarge(size int64, maxBytes int, begin []byte, raise bool) *llm.Error {
	return &llm.Error{
		Class: llm.Permanent, Reason: llm.ReasonRowTooLarge,
		Facts: map[string]any{bodyPreview: excerpt.Of(begin)},
		Err: fmt.Errorf("the row has %d bytes, the server takes %d: split it%s", size, maxBytes,
			raising(raise)),
	}
}

// Broken is the error of a row that could not be read out of its file: problem is what
// its reader found, begin the start of the row, for the preview.
func Broken(problem string, begin []byte) *llm.Error {
	return &llm.Error{
		Class: llm.Permanent, Reason: llm.ReasonInvalidRow,
		Facts: map[string]any{bodyPreview: excerpt.Of(begin)},
		Err:   errors.New(excerpt.Of(problem)),
	}
}

// raising is the advice to raise the limit, where that can be done.
func raising(can bool) string {
	if can {
		return ", or raise its max_payload"
	}
	return ""
}

// failure is the object F_error.
type failure struct {
	reason   llm.Reason
	text     string
	facts    map[string]any
	attempts []auditlog.AttemptError
}

// maxShortList is how many attempts, and items of a fact, a shortened failure lists.
const maxShortList = 8

// shorten cuts texts that are longer than a preview. It changes copies only.
func (e *failure) shorten() {
	e.text = excerpt.Of(e.text)
	facts := make(map[string]any, len(e.facts)+1)
	for name, fact := range e.facts {
		switch v := fact.(type) {
		case string:
			fact = excerpt.Of(v)
		case json.RawMessage:
			if len(v) > excerpt.BytesMax {
				fact = excerpt.Of(v)
			}
		case []string:
			v = slices.Clone(v[:min(len(v), maxShortList)])
			for i := range v {
				v[i] = excerpt.Of(v[i])
			}
			fact = v
		case []ItemFailure:
			v = slices.Clone(v[:min(len(v), maxShortList)])
			for i := range v {
				v[i].Error = excerpt.Of(v[i].Error)
			}
			fact = v
		}
		facts[name] = fact
	}
	e.facts = facts
	e.attempts = slices.Clone(e.attempts[max(0, len(e.attempts)-maxShortList):])
	for i := range e.attempts {
		e.attempts[i].Error = excerpt.Of(e.attempts[i].Error)
	}
}

func (e *failure) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"reason":`...)
	dst = jsonbytes.AppendString(dst, string(e.reason))
	dst = append(dst, `,"error":`...)
	dst = jsonbytes.AppendString(dst, e.text)
	for _, name := range slices.Sorted(maps.Keys(e.facts)) {
		switch name {
		case "reason", "error", "errors":
			continue // no fact may hide these
		}
		dst = append(dst, ',')
		dst = append(jsonbytes.AppendString(dst, name), ':')
		dst = appendFact(dst, e.facts[name])
	}
	dst = append(dst, `,"errors":[`...)
	for i, a := range e.attempts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(append(dst, `{"attempt":`...), int64(a.Attempt), 10)
		if a.Item != nil {
			dst = strconv.AppendInt(append(dst, `,"item":`...), int64(*a.Item), 10)
		}
		dst = jsonbytes.AppendString(append(dst, `,"provider":`...), a.Provider)
		dst = jsonbytes.AppendStringOrNull(append(dst, `,"class":`...), a.Class)
		dst = append(dst, `,"status_code":`...)
		if a.StatusCode == 0 {
			dst = append(dst, "null"...)
		} else {
			dst = strconv.AppendInt(dst, int64(a.StatusCode), 10)
		}
		dst = append(jsonbytes.AppendString(append(dst, `,"error":`...), a.Error), '}')
	}
	return append(dst, "]}"...)
}

// appendFact appends a fact of an [llm.Error]. A value that is not valid JSON becomes a
// string.
func appendFact(dst []byte, fact any) []byte {
	switch v := fact.(type) {
	case nil:
		return append(dst, "null"...)
	case string:
		return jsonbytes.AppendString(dst, v)
	case json.RawMessage:
		if json.Valid(v) && utf8.Valid(v) {
			return append(dst, v...)
		}
		return jsonbytes.AppendString(dst, string(v))
	}
	b, err := json.Marshal(fact)
	if err != nil {
		return jsonbytes.AppendString(dst, errors.Join(errors.New("unknown fact"), err).Error())
	}
	return append(dst, b...)
}

// AppendErrorAgain appends an error result made from an earlier one of the same row. The
// name of its field need not be known, because an error ends with its F_error. That
// object stays unchanged, and a row that was left out of it for lack of room stays out.
// attempts and maxBytes are as in [Format.AppendError]: if the bound is lower than
// before, the same things are left out. ok is false if body is not an error result.
func (f *Format) AppendErrorAgain(
	dst []byte, row *Row, body []byte, attempts []auditlog.AttemptError, maxBytes int,
) (_ []byte, ok bool) {
	field, object, members := failureOf(body)
	if object == nil {
		return dst, false
	}
	was := Format{field: string(field)}
	if members == 1 && len(was.appendRow(nil, row, 0, replacedByError)) > len("{") {
		row = nil
	}
	start := len(dst)
	dst = f.beginFailure(dst, row)
	if dst = append(append(dst, object...), '}'); maxBytes <= 0 || len(dst)-start <= maxBytes {
		return dst, true
	}
	report := readFailure(object)
	report.attempts = attempts
	return f.appendFitting(dst[:start], row, report, maxBytes), true
}

// failureOf finds F and the object F_error in an error result, which ends with it, and
// how many members the result has. object is nil if body is no error result.
func failureOf(body []byte) (field, object []byte, members int) {
	r, err := Parse(body)
	if err != nil || len(r.members) == 0 {
		return nil, nil, 0
	}
	last := &r.members[len(r.members)-1]
	field, found := bytes.CutSuffix(r.name(last), []byte(errorSuffix))
	if object = r.body[last.Value:last.End]; !found || object[0] != '{' {
		return nil, nil, 0
	}
	return field, object, len(r.members)
}

// ReadFailure reads the reason and the text out of an error result, whose field need not
// be known. Both are empty for any other body.
func ReadFailure(body []byte) (reason llm.Reason, text string) {
	_, object, _ := failureOf(body)
	if object == nil {
		return "", ""
	}
	report := readFailure(object)
	return report.reason, report.text
}

// readFailure reads what failure.appendJSON wrote, but for the attempts.
func readFailure(object []byte) *failure {
	report := &failure{facts: make(map[string]any)}
	for name, value := range jsonbytes.Members(object) {
		text := ""
		if value[0] == '"' {
			text = jsonbytes.Text(value)
		}
		switch string(name) {
		case "reason":
			report.reason = llm.Reason(text)
		case "error":
			report.text = text
		case "errors":
		default:
			report.facts[string(name)] = json.RawMessage(value)
			if value[0] == '"' {
				report.facts[string(name)] = text
			}
		}
	}
	return report
}

// FailureReason reads the reason out of an error result whose reply goes into field, or
// empty. Results of a run with another field are understood too.
func FailureReason(body []byte, field string) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return ""
	}
	var fault struct {
		Reason string `json:"reason"`
	}
	if json.Unmarshal(fields[field+errorSuffix], &fault) == nil && fault.Reason != "" {
		return fault.Reason
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		// The field had another name in that run.
		if strings.HasSuffix(name, errorSuffix) && json.Unmarshal(fields[name], &fault) == nil &&
			fault.Reason != "" {
			return fault.Reason
		}
	}
	return ""
}
