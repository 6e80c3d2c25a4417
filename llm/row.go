package llm

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Row is one row as it came: a JSON object whose bytes are kept, so that the order of
// its keys, the digits of its numbers and the spelling of its strings survive into the
// result. Templates see it decoded; nothing else needs to. A Row is never changed and
// safe for concurrent use. Its zero value is of no use: see [ParseRow].
type Row struct {
	body    []byte
	members []member // of the object itself, in order
	first   [12]member
}

// member is the place of one member in a row's bytes. The four indexes are in rising
// order: body[start:keyEnd] is the key in its quotes, body[value:end] the value.
type member struct {
	start, keyEnd, value, end uint32
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
	if err := r.scan(); err != nil {
		return nil, invalidRow(body, err)
	}
	return r, nil
}

func invalidRow(body []byte, err error) *Error {
	return &Error{
		Class:  Permanent,
		Reason: ReasonInvalidRow,
		Facts:  map[string]any{"body_preview": preview(body)},
		Err:    fmt.Errorf("row: %w", err),
	}
}

// Body returns the bytes the row was parsed from. They must not be changed.
func (r *Row) Body() []byte { return r.body }

var errNotObject = errors.New("not a JSON object")

// scan checks the row's bytes and notes its members.
func (r *Row) scan() error {
	if int64(len(r.body)) > int64(^uint32(0)) {
		return fmt.Errorf("%d bytes are too many", len(r.body))
	}
	if !utf8.Valid(r.body) {
		return fmt.Errorf("no UTF-8 at byte %d", InvalidUTF8(r.body))
	}
	s := jsonScanner{src: r.body, noting: true, members: r.first[:0]}
	s.space()
	switch {
	case s.pos == len(s.src):
		return errors.New("empty")
	case s.src[s.pos] != '{':
		if err := s.foreign(); err != nil {
			return err
		}
		return errNotObject
	}
	if err := s.value(); err != nil {
		return err
	}
	r.members = s.members
	if s.space(); s.pos < len(s.src) {
		return fmt.Errorf("data behind the object at byte %d", s.pos)
	}
	return nil
}

// foreign says more about bytes that do not begin an object.
func (s *jsonScanner) foreign() error {
	const byteOrderMark = "\uFEFF"
	if len(s.src) >= 3 && string(s.src[:3]) == byteOrderMark {
		return errors.New("begins with a byte order mark: remove it")
	}
	switch s.src[s.pos] {
	case '[', '"', 't', 'f', 'n', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return nil
	}
	return s.unexpected("a JSON object")
}

// InvalidUTF8 returns the index of the first byte of b that is not UTF-8, or its length.
func InvalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(b)
}
