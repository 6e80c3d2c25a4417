package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// ResultFormat writes the bodies of a stage's results: the row's own object, its bytes
// kept, and behind it the fields that the stage adds. It is safe for concurrent use. Its
// zero value is of no use: see [NewResultFormat].
type ResultFormat struct {
	field string
	// What is the same in all results, written once: `"F":`, `,"F_usage":`, …
	answer, usage, templateHash, variablesHash, provenance, failure []byte
}

// Provenance says where the prompts of a stage come from: the SHA-256 of the template and of the lookup, and their paths
// as configured. A string that is empty is null in the result.
type Provenance struct {
	TemplateHash, TemplateSource string
	LookupHash, LookupSource     string
}

// NewResultFormat prepares the fields of a stage whose reply goes into field (F in what
// follows) and whose prompts come from where from says. It fails when field is empty or no UTF-8.
func NewResultFormat(field string, from Provenance) (*ResultFormat, error) {
	if field == "" || !utf8.ValidString(field) {
		return nil, fmt.Errorf("response field %q: must be a name in UTF-8", field)
	}
	key := func(suffix string) []byte { return append(jsonbytes.AppendString(nil, field+suffix), ':') }
	member := func(suffix string, value []byte) []byte { return append(append([]byte{','}, key(suffix)...), value...) }
	return &ResultFormat{
		field:         field,
		answer:        key(""),
		usage:         member("_usage", nil),
		templateHash:  member("_template_hash", jsonbytes.AppendStringOrNull(nil, from.TemplateHash)),
		variablesHash: member("_variables_hash", nil),
		provenance: slices.Concat(
			member("_template_source", jsonbytes.AppendStringOrNull(nil, from.TemplateSource)),
			member("_lookup_hash", jsonbytes.AppendStringOrNull(nil, from.LookupHash)),
			member("_lookup_source", jsonbytes.AppendStringOrNull(nil, from.LookupSource)),
			member("_model", nil)),
		failure: key(errorSuffix),
	}, nil
}

// Field returns F, the name of the field that the reply goes into.
func (f *ResultFormat) Field() string { return f.field }

// Overhead returns how many bytes a success adds to its row beside the reply, its usage,
// the variables' hash and the model.
func (f *ResultFormat) Overhead() int {
	return len(f.answer) + len(f.usage) + len(f.templateHash) + len(f.variablesHash) + len(f.provenance)
}

// Answer is what a successful call adds to its row.
type Answer struct {
	// Text is the reply.
	Text string
	// Value is the reply as validated JSON; it goes into the result instead of Text.
	// Empty: Text does.
	Value json.RawMessage
	// Usage is null in the result when nil.
	Usage *Usage
	// VariablesHash is [Row.VariablesHash], Model the model that answered. Empty: null.
	VariablesHash, Model string
}

// AppendSuccess appends the body of a successful result: the row's own object and then,
// in this order, F, F_usage, F_template_hash, F_variables_hash, F_template_source,
// F_lookup_hash, F_lookup_source and F_model. Members of these names that the row came
// with are replaced, wherever they stand and however their names are escaped, and an
// F_error of an earlier run is taken out.
func (f *ResultFormat) AppendSuccess(dst []byte, row *Row, a *Answer) []byte {
	const fixed = 600 // keys and hashes, roughly
	dst = slices.Grow(dst, len(row.body)+len(a.Text)+len(a.Text)/16+len(a.Value)+fixed)
	dst = f.appendRow(dst, row, replacedBySuccess)
	dst = append(dst, f.answer...)
	if len(a.Value) > 0 {
		dst = append(dst, a.Value...)
	} else {
		dst = jsonbytes.AppendString(dst, a.Text)
	}
	dst = append(dst, f.usage...)
	dst = a.Usage.AppendJSON(dst)
	dst = append(dst, f.templateHash...)
	dst = append(dst, f.variablesHash...)
	dst = jsonbytes.AppendStringOrNull(dst, a.VariablesHash)
	dst = append(dst, f.provenance...)
	dst = jsonbytes.AppendStringOrNull(dst, a.Model)
	return append(dst, '}')
}

// replacedBySuccess reports whether a success adds or removes the field F+suffix.
func replacedBySuccess(suffix []byte) bool {
	switch string(suffix) {
	case "", "_usage", "_template_hash", "_variables_hash", "_template_source",
		"_lookup_hash", "_lookup_source", "_model", errorSuffix:
		return true
	}
	return false
}

func replacedByError(suffix []byte) bool { return string(suffix) == errorSuffix }

// appendRow appends the row without the members F+suffix for which replaced is true, and
// without its closing brace, so that a member can follow.
func (f *ResultFormat) appendRow(dst []byte, row *Row, replaced func(suffix []byte) bool) []byte {
	start := len(dst)
	dst = append(dst, '{')
	kept := 0 // first member of the run to be copied next
	flush := func(end int) {
		if kept == end {
			return
		}
		if len(dst) > start+1 {
			dst = append(dst, ',')
		}
		dst = append(dst, row.body[row.members[kept].Start:row.members[end-1].End]...)
	}
	for i := range row.members {
		if suffix, ok := f.suffix(row, &row.members[i]); ok && replaced(suffix) {
			flush(i)
			kept = i + 1
		}
	}
	flush(len(row.members))
	if len(dst) > start+1 {
		dst = append(dst, ',')
	}
	return dst
}

// suffix returns what stands behind F in the name of a member that begins with F.
func (f *ResultFormat) suffix(row *Row, m *jsonbytes.Member) (suffix []byte, ok bool) {
	key := row.name(m)
	if len(key) < len(f.field) || string(key[:len(f.field)]) != f.field {
		return nil, false
	}
	return key[len(f.field):], true
}

// AppendError appends the body of an error result: the row's own object and F_error, an
// object of reason, error, the facts of err in the order of their names, and errors, the
// attempts. An F_error of an earlier run is replaced. Everything else in the row stays,
// also an F of an earlier run: a failed row keeps what it came with, and Stage-Status
// tells it from a success.
//
// maxBytes bounds the body in bytes; 0: no bound. What does not fit is left out, by the first
// of these that is enough: facts and errors beyond 500 bytes each are cut and only the
// last attempts told; the row is left out but for body_preview; facts and attempts are
// left out. row is nil when there is none, as for an invalid row, whose body_preview is
// among the facts of err.
func (f *ResultFormat) AppendError(dst []byte, row *Row, err *Error, attempts []auditlog.AttemptError, maxBytes int) []byte {
	return f.appendFitting(dst, row, &failure{reason: err.Reason, text: err.Error(), facts: err.Facts, attempts: attempts}, maxBytes)
}

// appendFitting is AppendError for a report, which it may change.
func (f *ResultFormat) appendFitting(dst []byte, row *Row, report *failure, maxBytes int) []byte {
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
		report.facts["body_preview"] = excerpt.Of(row.body)
		if dst = f.appendFailure(dst[:start], nil, report); fits() {
			return dst
		}
	}
	// A maximum this small is a mistake of its own. Tell the reason at least.
	report.facts, report.attempts = nil, nil
	report.text = excerpt.Of(report.text[:min(len(report.text), 100)])
	return f.appendFailure(dst[:start], nil, report)
}

func (f *ResultFormat) appendFailure(dst []byte, row *Row, report *failure) []byte {
	return append(report.appendJSON(f.beginFailure(dst, row)), '}')
}

// beginFailure appends an error result as far as the object F_error. row is nil where it is left out.
func (f *ResultFormat) beginFailure(dst []byte, row *Row) []byte {
	if row != nil {
		dst = f.appendRow(dst, row, replacedByError)
	} else {
		dst = append(dst, '{')
	}
	return append(dst, f.failure...)
}

// ResultTooLarge is the error of a success whose body of size bytes is above maxBytes, the
// most that the server takes.
func ResultTooLarge(size, maxBytes int) *Error {
	return &Error{
		Class: Permanent, Reason: ReasonResultTooLarge,
		Err: fmt.Errorf("the result has %d bytes, the server takes %d: ask for shorter replies or raise its max_payload", size, maxBytes),
	}
}

// RowTooLarge is the error of a row of size bytes that cannot be published, as the server
// takes at most maxBytes. begin is the start of its body, for the preview.
func RowTooLarge(size int64, maxBytes int, begin []byte) *Error {
	return &Error{
		Class: Permanent, Reason: ReasonRowTooLarge,
		Facts: map[string]any{"body_preview": excerpt.Of(begin)},
		Err:   fmt.Errorf("the row has %d bytes, the server takes %d: split it or raise its max_payload", size, maxBytes),
	}
}

// failure is the object F_error.
type failure struct {
	reason   Reason
	text     string
	facts    map[string]any
	attempts []auditlog.AttemptError
}

// maxShortList is how many attempts, and items of a fact, a shortened failure tells.
const maxShortList = 8

// shorten cuts what is longer than a preview. It changes copies only.
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

// appendFact appends a fact of an [Error]. What is no valid JSON becomes a string.
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
