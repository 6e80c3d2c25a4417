// Package row reads the bytes of a row and writes the bytes of its result: the row's own
// members unchanged, followed by the members that the stage adds.
//
//	r, err := row.Parse(body)
//	format, err := row.NewFormat("llm_response", row.Provenance{})
//	result := format.AppendSuccess(nil, r, &row.Answer{Text: "good"})
package row

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// Row is one row as received: a JSON object whose bytes are kept, so that the order of
// its keys, the digits of its numbers and the spelling of its strings survive into the
// result. Templates see it decoded; nothing else needs to. But for [Row.KeepAs] a Row is
// never changed, and it is safe for concurrent use. Its zero value is of no use: see
// [Parse].
type Row struct {
	body    []byte
	members []jsonbytes.Member // of the object itself, in order
	first   [12]jsonbytes.Member

	upstream string
}

// Parse checks that body is exactly one JSON object in valid UTF-8, also inside its
// strings, nested at most 10,000 deep. It keeps body, which must not change afterwards.
//
// Escapes of lone surrogates such as "\ud800" are valid JSON and accepted: the row keeps
// them, and a template sees U+FFFD. If keys repeat, a template sees the last member.
//
// Any other body is an [*llm.Error] with [llm.ReasonInvalidRow] and class
// [llm.Permanent]. It describes the problem and its byte, and shows the start of the body
// in the fact body_preview.
func Parse(body []byte) (*Row, error) {
	r := &Row{body: body}
	var err error
	if r.members, err = jsonbytes.ReadObject(r.first[:0], body); err != nil {
		return nil, invalidRow(body, err)
	}
	return r, nil
}

func invalidRow(body []byte, err error) *llm.Error {
	return &llm.Error{
		Class:  llm.Permanent,
		Reason: llm.ReasonInvalidRow,
		Facts:  map[string]any{bodyPreview: excerpt.Of(body)},
		Err:    fmt.Errorf("row: %w", err),
	}
}

// KeepAs names the stage whose result this row is. Members that a result of the row would
// replace are then kept in it, under names that begin with the stage's; see [Format].
// Without it they are replaced. It must be called before the row is used.
func (r *Row) KeepAs(stage string) { r.upstream = stage }

// Body returns the bytes the row was parsed from. They must not be changed.
func (r *Row) Body() []byte { return r.body }

// VariablesHash returns the [llm.Hash] of the row in canonical form, which is the same
// for every spelling of the same object and on every machine: see
// [jsonbytes.Canonicalizer].
func (r *Row) VariablesHash() string { return canonicalHash(r.body) }

func canonicalHash(valid []byte) string {
	c, _ := canonicalizers.Get().(*jsonbytes.Canonicalizer)
	canonical := c.Canonical(valid)
	hash := llm.Hash(canonical)
	if cap(canonical) <= maxPooledBytes {
		canonicalizers.Put(c)
	}
	return hash
}

// maxPooledBytes keeps the scratch space of one huge row from being held forever.
const maxPooledBytes = 1 << 20

var canonicalizers = sync.Pool{New: func() any { return new(jsonbytes.Canonicalizer) }}

// name returns the text of a member's key.
func (r *Row) name(m *jsonbytes.Member) []byte {
	key := r.body[m.Start+1 : m.KeyEnd-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		key = jsonbytes.AppendUnescaped(nil, key)
	}
	return key
}

// named reports whether the decoded key of a member is name.
func (r *Row) named(m *jsonbytes.Member, name string) bool {
	key := r.body[m.Start+1 : m.KeyEnd-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		return jsonbytes.Text(r.body[m.Start:m.KeyEnd]) == name
	}
	return string(key) == name
}
