package row

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// Items are the elements of an array of a row; each is one call. They are immutable and
// safe for concurrent use.
type Items struct {
	row  *Row
	list [][]byte
	hash string // of the row
}

// Items returns the elements of the row's member with this name, the last of several,
// which must be an array of at most so many elements. Any other row is an [*llm.Error]
// with [llm.ReasonInvalidRow], as [Parse] returns it.
func (r *Row) Items(name string, most int) (*Items, error) {
	array := r.member(name)
	switch {
	case array == nil:
		return nil, invalidRow(r.body, fmt.Errorf("there is no member %q: it must be an array, "+
			"each element of which is a call of its own", name))
	case array[0] != '[':
		return nil, invalidRow(r.body, fmt.Errorf("the member %q is no array: each element of it "+
			"is a call of its own", name))
	}
	items := &Items{row: r, hash: r.VariablesHash()}
	for element := range jsonbytes.Elements(array) {
		if len(items.list) == most {
			return nil, invalidRow(r.body, fmt.Errorf("the array %q has more than %d elements: "+
				"split the row, or raise STAGE_FOREACH_MAX", name, most))
		}
		items.list = append(items.list, element)
	}
	return items, nil
}

// member returns the value of the row's member with a name, the last one of several, or
// nil.
func (r *Row) member(name string) (value []byte) {
	for i := range r.members {
		if m := &r.members[i]; r.named(m, name) {
			value = r.body[m.Value:m.End]
		}
	}
	return value
}

// Len returns how many elements there are.
func (s *Items) Len() int { return len(s.list) }

// Row returns the row that they are of.
func (s *Items) Row() *Row { return s.row }

// Value returns an element as templates see it: see [Variables].
func (s *Items) Value(index int) any { return valueOfJSON(s.list[index]) }

// VariablesHash returns the [llm.Hash] of what a template sees of an element, in
// canonical form: the object of item, loop (an object of index0 and length) and row_hash,
// which is [Row.VariablesHash].
func (s *Items) VariablesHash(index int) string {
	object := append([]byte(`{"item":`), s.list[index]...)
	object = strconv.AppendInt(append(object, `,"loop":{"index0":`...), int64(index), 10)
	object = strconv.AppendInt(append(object, `,"length":`...), int64(len(s.list)), 10)
	object = append(append(append(object, `},"row_hash":"`...), s.hash...), `"}`...)
	return canonicalHash(object)
}

// AppendItems appends the body of the successful result of a row that fans out: the row's
// own object and then the fields of [Format.AppendSuccess], with the answers to its
// elements. F, F_variables_hash and the parts that are kept are arrays in the order of the
// elements, F_usage is the sum, and F_model is the model that answered all of them, if it
// is one.
func (f *Format) AppendItems(dst []byte, row *Row, answers []*Answer) []byte {
	size, keep := len(row.body), f.Keep
	for _, a := range answers {
		size += len(a.Text) + len(a.Text)/16 + len(a.Value) + a.KeptBytes() + 70
		keep |= a.Keep
	}
	var usage *llm.Usage
	dst = f.appendRow(slices.Grow(dst, size+600), row, keep, replacedBySuccess(keep))
	dst = append(append(dst, f.answer...), '[')
	for i, a := range answers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = a.appendReply(dst)
		usage = usage.Plus(a.Usage)
	}
	dst = append(append(dst, ']'), f.usage...)
	dst = append(append(usage.AppendJSON(dst), f.templateHash...), f.variablesHash...)
	dst = append(dst, '[')
	for i, a := range answers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonbytes.AppendStringOrNull(dst, a.VariablesHash)
	}
	dst = append(append(dst, ']'), f.provenance...)
	dst = jsonbytes.AppendStringOrNull(dst, commonModel(answers))
	for part := range keep.Names() {
		dst = append(append(dst, f.parts[part]...), '[')
		for i, a := range answers {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = a.appendPart(dst, part)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

// commonModel is the model of all answers that name one; empty means that there is none,
// or they differ.
func commonModel(answers []*Answer) (model string) {
	for _, a := range answers {
		switch {
		case a.Model == "" || a.Model == model:
		case model == "":
			model = a.Model
		default:
			return ""
		}
	}
	return model
}

// ItemFailure is an element that failed, in the fact items of a row that failed with
// [llm.ReasonForeachFailed].
type ItemFailure struct {
	Index  int        `json:"index"`
	Reason llm.Reason `json:"reason"`
	Error  string     `json:"error"`
}

// Value is what stands in the place of the element where the others are kept: {"error":
// {"reason", "error"}}.
func (e *ItemFailure) Value() json.RawMessage {
	b := jsonbytes.AppendString([]byte(`{"error":{"reason":`), string(e.Reason))
	return append(jsonbytes.AppendString(append(b, `,"error":`...), e.Error), "}}"...)
}

// ItemsFailed is the error of a row with failed elements; total counts all elements.
func ItemsFailed(failed []ItemFailure, total int) *llm.Error {
	first := &failed[0]
	return &llm.Error{
		Class: llm.Permanent, Reason: llm.ReasonForeachFailed,
		Facts: map[string]any{"failed": len(failed), "total": total, "items": failed},
		Err: fmt.Errorf("%d of %d elements failed, the first is %d: %s: %s", len(failed), total,
			first.Index, first.Reason, excerpt.Of(first.Error)),
	}
}

// ItemsTooLarge is the error of a row whose result is already too large for the server
// with the replies to answered of total elements. remedy means the same as in
// [ResultTooLarge].
func ItemsTooLarge(size, maxBytes, answered, total int, remedy string) *llm.Error {
	return &llm.Error{
		Class: llm.Permanent, Reason: llm.ReasonResultTooLarge,
		Err: errors.New("with the replies to " + strconv.Itoa(answered) + " of " +
			strconv.Itoa(total) + " elements the result has " + strconv.Itoa(size) +
			" bytes, and " + strconv.Itoa(maxBytes) + " can be stored: ask for shorter replies, " +
			"or split the row" + remedy),
	}
}
