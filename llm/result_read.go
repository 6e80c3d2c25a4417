package llm

import (
	"bytes"
	"encoding/json"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// answerSuffixes are the fields that a success adds, in the order in which [ResultFormat.AppendSuccess] writes them.
var answerSuffixes = [...]string{
	"", "_usage", "_template_hash", "_variables_hash", "_template_source", "_lookup_hash", "_lookup_source", "_model",
}

// errorSuffix is that of the field that an error adds.
const errorSuffix = "_error"

// ReadAnswer reads the body of a successful result back: Text, or Value where it was validated, Usage and Model. The field
// that the reply went into need not be known, and no member of the row can be taken for it: a success ends with its eight
// fields in one order. The answer points into body. ok is false for any other body.
func ReadAnswer(body []byte, validated bool) (a *Answer, ok bool) {
	r, err := ParseRow(body)
	if err != nil || len(r.members) < len(answerSuffixes) {
		return nil, false
	}
	var values [len(answerSuffixes)][]byte
	tail := r.members[len(r.members)-len(answerSuffixes):]
	field := r.name(&tail[0])
	for i := range tail {
		suffix, found := bytes.CutPrefix(r.name(&tail[i]), field)
		if !found || string(suffix) != answerSuffixes[i] {
			return nil, false
		}
		values[i] = r.body[tail[i].Value:tail[i].End]
	}
	a = &Answer{}
	switch text := values[0]; {
	case validated:
		a.Value = text
	case text[0] == '"':
		a.Text = jsonbytes.Text(text)
	default:
		return nil, false
	}
	if model := values[len(values)-1]; model[0] == '"' {
		a.Model = jsonbytes.Text(model)
	}
	if json.Unmarshal(values[1], &a.Usage) != nil {
		return nil, false
	}
	return a, true
}

// name returns the text of a member's key.
func (r *Row) name(m *jsonbytes.Member) []byte {
	key := r.body[m.Start+1 : m.KeyEnd-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		key = jsonbytes.AppendUnescaped(nil, key)
	}
	return key
}

// AppendErrorAgain appends an error result that is made of another one of the same row, whose field need not be known:
// an error ends with its F_error. That object stays as it is, and so does a row that it had no room for left out. attempts
// and maxBytes are those of [ResultFormat.AppendError]: where the bound is lower than it was, the same things are left
// out. ok is false where body is no error result.
func (f *ResultFormat) AppendErrorAgain(dst []byte, row *Row, body []byte, attempts []auditlog.AttemptError, maxBytes int) (_ []byte, ok bool) {
	r, err := ParseRow(body)
	if err != nil || len(r.members) == 0 {
		return dst, false
	}
	last := &r.members[len(r.members)-1]
	field, found := bytes.CutSuffix(r.name(last), []byte(errorSuffix))
	object := r.body[last.Value:last.End]
	if !found || object[0] != '{' {
		return dst, false
	}
	was := ResultFormat{field: string(field)}
	if len(r.members) == 1 && len(was.appendRow(nil, row, replacedByError)) > len("{") {
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
			report.reason = Reason(text)
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
