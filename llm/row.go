package llm

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// maxRowDepth bounds the nesting of a row: an object of scalars has depth 1.
const maxRowDepth = 10_000

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
	r.members = r.first[:0]
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

// rowScanner walks JSON without recursion, so that depth costs a bit and not a stack
// frame. Errors name the byte, counted from 0.
type rowScanner struct {
	src   []byte
	pos   int
	depth int
	// objects has a bit for each open container: set for an object, clear for an array.
	objects [maxRowDepth/64 + 1]uint64
}

var errNotObject = errors.New("not a JSON object")

// scan checks the row's bytes and notes its members.
func (r *Row) scan() error {
	if int64(len(r.body)) > int64(^uint32(0)) {
		return fmt.Errorf("%d bytes are too many", len(r.body))
	}
	if !utf8.Valid(r.body) {
		return fmt.Errorf("no UTF-8 at byte %d", invalidUTF8(r.body))
	}
	s := rowScanner{src: r.body}
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
	if err := s.walk(r); err != nil {
		return err
	}
	if s.space(); s.pos < len(s.src) {
		return fmt.Errorf("data behind the object at byte %d", s.pos)
	}
	return nil
}

// foreign says more about bytes that do not begin an object.
func (s *rowScanner) foreign() error {
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

// walk steps over the object at pos, noting its own members in r.
func (s *rowScanner) walk(r *Row) error {
	for {
		var err error
		if s.opens() {
			var closed bool
			if closed, err = s.open(r); err == nil && !closed {
				continue
			}
		} else {
			err = s.scalar()
		}
		if err != nil {
			return err
		}
		if more, err := s.next(r); err != nil || !more {
			return err
		}
	}
}

// opens reports whether a container begins at pos.
func (s *rowScanner) opens() bool {
	return s.pos < len(s.src) && (s.src[s.pos] == '{' || s.src[s.pos] == '[')
}

// open enters the container at pos and goes to its first value. An empty container is
// left again at once and reported as closed.
func (s *rowScanner) open(r *Row) (closed bool, err error) {
	if s.depth == maxRowDepth {
		return false, fmt.Errorf("nested deeper than %d at byte %d", maxRowDepth, s.pos)
	}
	object := s.src[s.pos] == '{'
	s.pos++
	word, bit := s.depth/64, uint64(1)<<(s.depth%64)
	s.depth++
	if object {
		s.objects[word] |= bit
	} else {
		s.objects[word] &^= bit
	}
	s.space()
	switch {
	case s.pos < len(s.src) && (object && s.src[s.pos] == '}' || !object && s.src[s.pos] == ']'):
		s.pos++
		s.depth--
		return true, nil
	case object:
		return false, s.key(r)
	}
	return false, nil
}

// next goes on from behind a value to the next one, leaving the containers that end
// there. It reports false when the outermost has ended.
func (s *rowScanner) next(r *Row) (more bool, err error) {
	for s.depth > 0 {
		if s.depth == 1 {
			r.members[len(r.members)-1].end = uint32(s.pos)
		}
		s.space()
		var c byte
		if s.pos < len(s.src) {
			c = s.src[s.pos]
		}
		top := s.depth - 1
		object := s.objects[top/64]&(1<<(top%64)) != 0
		switch {
		case c == ',':
			s.pos++
			s.space()
			if object {
				return true, s.key(r)
			}
			return true, nil
		case object && c == '}', !object && c == ']':
			s.pos++
			s.depth--
		case object:
			return false, s.unexpected("a comma or }")
		default:
			return false, s.unexpected("a comma or ]")
		}
	}
	return false, nil
}

// key steps over a member's key and colon to its value.
func (s *rowScanner) key(r *Row) error {
	start := s.pos
	if s.pos == len(s.src) || s.src[s.pos] != '"' {
		return s.unexpected("a key in quotes")
	}
	if err := s.str(); err != nil {
		return err
	}
	keyEnd := s.pos
	s.space()
	if s.pos == len(s.src) || s.src[s.pos] != ':' {
		return s.unexpected("a colon")
	}
	s.pos++
	s.space()
	if s.depth == 1 {
		r.members = append(r.members, member{start: uint32(start), keyEnd: uint32(keyEnd), value: uint32(s.pos)})
	}
	return nil
}

func (s *rowScanner) space() {
	for s.pos < len(s.src) {
		switch s.src[s.pos] {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return
		}
	}
}

// scalar steps over a string, number, true, false or null.
func (s *rowScanner) scalar() error {
	if s.pos == len(s.src) {
		return s.unexpected("a value")
	}
	switch s.src[s.pos] {
	case '"':
		return s.str()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.number()
}

func (s *rowScanner) literal(word string) error {
	end := min(s.pos+len(word), len(s.src))
	if string(s.src[s.pos:end]) != word {
		return s.unexpected(word)
	}
	s.pos = end
	return nil
}

// str steps over the string whose opening quote is at pos.
func (s *rowScanner) str() error {
	src := s.src
	for i := s.pos + 1; i < len(src); i++ {
		c := src[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		switch {
		case c == '"':
			s.pos = i + 1
			return nil
		case c < ' ':
			s.pos = i
			return s.unexpected("it escaped, as all control characters")
		}
		i++ // behind the backslash
		switch {
		case i == len(src):
		case src[i] == 'u':
			if i+4 >= len(src) || !isHex(src[i+1:i+5]) {
				s.pos = i - 1
				return s.unexpected(`\u and four hexadecimal digits`)
			}
			i += 4
		case !isEscape(src[i]):
			s.pos = i - 1
			return s.unexpected("an escape that JSON knows")
		}
	}
	s.pos = len(src)
	return s.unexpected("a closing quote")
}

// number steps over a number: -? (0 | digits) fraction? exponent?
func (s *rowScanner) number() error {
	start := s.pos
	if s.src[s.pos] == '-' {
		s.pos++
	}
	zero := s.pos < len(s.src) && s.src[s.pos] == '0'
	n := s.digits()
	if n == 0 {
		if s.pos == start {
			return s.unexpected("a value")
		}
		return s.unexpected("a digit")
	}
	if zero && n > 1 {
		s.pos -= n - 1
		return s.unexpected("no digit behind a leading zero")
	}
	if s.pos < len(s.src) && s.src[s.pos] == '.' {
		s.pos++
		if s.digits() == 0 {
			return s.unexpected("a digit")
		}
	}
	if s.pos < len(s.src) && s.src[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.src) && (s.src[s.pos] == '+' || s.src[s.pos] == '-') {
			s.pos++
		}
		if s.digits() == 0 {
			return s.unexpected("a digit")
		}
	}
	return nil
}

// digits steps over digits and returns how many there were.
func (s *rowScanner) digits() int {
	start := s.pos
	for s.pos < len(s.src) && s.src[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos - start
}

func (s *rowScanner) unexpected(want string) error {
	if s.pos >= len(s.src) {
		return fmt.Errorf("ends at byte %d, want %s", len(s.src), want)
	}
	c, _ := utf8.DecodeRune(s.src[s.pos:])
	return fmt.Errorf("%q at byte %d, want %s", c, s.pos, want)
}

func isHex(b []byte) bool {
	for _, c := range b {
		if c-'0' > 9 && (c|0x20)-'a' > 5 {
			return false
		}
	}
	return true
}

func isEscape(c byte) bool {
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	}
	return false
}

// invalidUTF8 returns the index of the first byte that is no UTF-8.
func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(b)
}
