package llm

import (
	"fmt"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Row is one row as it came: a JSON object whose bytes are kept, so that the order of
// its keys, the digits of its numbers and the spelling of its strings survive into the
// result. Templates see it decoded; nothing else needs to. A Row is never changed and
// safe for concurrent use. Its zero value is of no use: see [ParseRow].
type Row struct {
	body    []byte
	members []jsonbytes.Member // of the object itself, in order
	first   [12]jsonbytes.Member
}

// ParseRow checks that body is exactly one JSON object in valid UTF-8, also inside its
// strings, nested at most 10,000 deep. It keeps body, which must not change afterwards.
//
// Escapes of lone surrogates such as "\ud800" are valid JSON and accepted: the row keeps
// them, a template sees U+FFFD. Of members with equal keys a template sees the last.
//
// Any other body is an [*Error] with [ReasonInvalidRow], class [Permanent], that says
// what is wrong at which byte and shows the start of the body in the fact body_preview.
func ParseRow(body []byte) (*Row, error) {
	r := &Row{body: body}
	var err error
	if r.members, err = jsonbytes.ReadObject(r.first[:0], body); err != nil {
		return nil, invalidRow(body, err)
	}
	return r, nil
}

func invalidRow(body []byte, err error) *Error {
	return &Error{
		Class:  Permanent,
		Reason: ReasonInvalidRow,
		Facts:  map[string]any{"body_preview": excerpt.Of(body)},
		Err:    fmt.Errorf("row: %w", err),
	}
}

// Body returns the bytes the row was parsed from. They must not be changed.
func (r *Row) Body() []byte { return r.body }
