package jsonbytes

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"unicode/utf8"
)

// DepthMax bounds the nesting of values: an object of scalars has depth 1. encoding/json
// has the same bound.
const DepthMax = 10_000

// Member is the place of one member in the bytes of an object. The four indexes are in
// rising order: the key in its quotes is from Start to KeyEnd, its value from Value to
// End.
type Member struct {
	Start, KeyEnd, Value, End uint32
}

// Valid reports whether b is one JSON value, nested at most [DepthMax] deep. Like
// encoding/json it accepts bytes that are not UTF-8 inside strings.
func Valid(b []byte) bool { return ValidDepth(b, DepthMax) }

// ValidDepth is [Valid] with a lower bound on the nesting.
func ValidDepth(b []byte, depthMax int) bool {
	s := scanner{src: b, depthMax: min(depthMax, DepthMax)}
	s.space()
	if s.value() != nil {
		return false
	}
	s.space()
	return s.pos == len(b)
}

// errNotObject means that the input is JSON, but not an object.
var errNotObject = errors.New("not a JSON object")

// ReadObject checks that src is exactly one JSON object in UTF-8, also inside its
// strings, nested at most [DepthMax] deep, and appends its members to dst, in order. The
// error names the problem and the byte, counted from 0.
func ReadObject(dst []Member, src []byte) ([]Member, error) {
	if int64(len(src)) > math.MaxUint32 {
		return nil, fmt.Errorf("%d bytes are too many", len(src))
	}
	if !utf8.Valid(src) {
		return nil, fmt.Errorf("invalid UTF-8 at byte %d", InvalidUTF8(src))
	}
	s := scanner{src: src, depthMax: DepthMax, noting: true, members: dst}
	s.space()
	switch {
	case s.pos == len(src):
		return nil, errors.New("empty")
	case src[s.pos] != '{':
		return nil, s.foreign()
	}
	if err := s.value(); err != nil {
		return nil, err
	}
	if s.space(); s.pos < len(src) {
		return nil, fmt.Errorf("data after the object at byte %d", s.pos)
	}
	return s.members, nil
}

// foreign returns the error for bytes that do not begin an object.
func (s *scanner) foreign() error {
	const byteOrderMark = "\uFEFF"
	if len(s.src) >= 3 && string(s.src[:3]) == byteOrderMark {
		return errors.New("begins with a byte order mark: remove it")
	}
	switch s.src[s.pos] {
	case '[', '"', 't', 'f', 'n', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return errNotObject
	}
	return s.unexpected("a JSON object")
}

// scanner checks JSON. Errors name the byte, counted from 0.
type scanner struct {
	src      []byte
	pos      int
	depth    int
	depthMax int
	// noting collects in members those of the outermost object.
	noting  bool
	members []Member
}

// at returns the byte at pos, and 0, which JSON has nowhere, at the end.
func (s *scanner) at() byte {
	if s.pos < len(s.src) {
		return s.src[s.pos]
	}
	return 0
}

func (s *scanner) space() { s.pos = SkipSpace(s.src, s.pos) }

// value steps over the value at pos.
func (s *scanner) value() error {
	switch s.at() {
	case '{':
		return s.container('}')
	case '[':
		return s.container(']')
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

// container steps over the object or array at pos, which ends with closing.
func (s *scanner) container(closing byte) error {
	if s.depth == s.depthMax {
		return fmt.Errorf("nested deeper than %d at byte %d", s.depthMax, s.pos)
	}
	s.depth++
	s.pos++
	s.space()
	for first := true; !first || s.at() != closing; first = false {
		if closing == '}' {
			if err := s.key(); err != nil {
				return err
			}
		}
		if err := s.value(); err != nil {
			return err
		}
		if s.depth == 1 && s.noting {
			s.members[len(s.members)-1].End = uint32(s.pos)
		}
		s.space()
		if s.at() == closing {
			break
		}
		if s.at() != ',' {
			return s.unexpected("a comma or " + string(rune(closing)))
		}
		s.pos++
		s.space()
	}
	s.pos++
	s.depth--
	return nil
}

// key steps over a member's key and colon to its value.
func (s *scanner) key() error {
	start := s.pos
	if s.at() != '"' {
		return s.unexpected("a key in quotes")
	}
	if err := s.str(); err != nil {
		return err
	}
	keyEnd := s.pos
	if s.space(); s.at() != ':' {
		return s.unexpected("a colon")
	}
	s.pos++
	s.space()
	if s.depth == 1 && s.noting {
		s.members = append(s.members, Member{Start: uint32(start), KeyEnd: uint32(keyEnd), Value: uint32(s.pos)})
	}
	return nil
}

func (s *scanner) literal(word string) error {
	end := min(s.pos+len(word), len(s.src))
	if string(s.src[s.pos:end]) != word {
		return s.unexpected(word)
	}
	s.pos = end
	return nil
}

// str steps over the string whose opening quote is at pos.
func (s *scanner) str() error {
	src := s.src
	for i := s.pos + 1; ; i++ {
		if i = ordinary(src, i); i >= len(src) {
			break
		}
		switch c := src[i]; {
		case c == '"':
			s.pos = i + 1
			return nil
		case c < ' ':
			s.pos = i
			return s.unexpected("it escaped, as all control characters")
		}
		if i++; i == len(src) { // past the backslash
			break
		}
		switch src[i] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		case 'u':
			if i+4 >= len(src) || !isHex(src[i+1:i+5]) {
				s.pos = i - 1
				return s.unexpected(`\u and four hexadecimal digits`)
			}
			i += 4
		default:
			s.pos = i - 1
			return s.unexpected("an escape that JSON knows")
		}
	}
	s.pos = len(src)
	return s.unexpected("a closing quote")
}

// ordinary returns the index of the first byte from i on that is special inside a string:
// a quote, a backslash or a control character. Without such a byte it is the length of src.
func ordinary(src []byte, i int) int {
	for ; i+8 <= len(src); i += 8 {
		if found := special(load(src, i)); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for i < len(src) && src[i] >= ' ' && src[i] != '"' && src[i] != '\\' {
		i++
	}
	return i
}

// number steps over a number: -? (0 | digits) fraction? exponent?
func (s *scanner) number() error {
	src, i := s.src, s.pos
	if i < len(src) && src[i] == '-' {
		i++
	}
	first := i
	switch i = skipDigits(src, i); {
	case i == s.pos:
		return s.unexpectedAt(i, "a value")
	case i == first:
		return s.unexpectedAt(i, "a digit")
	case src[first] == '0' && i > first+1:
		return s.unexpectedAt(first+1, "no digit after a leading zero")
	}
	if i < len(src) && src[i] == '.' {
		first = i + 1
		if i = skipDigits(src, first); i == first {
			return s.unexpectedAt(i, "a digit")
		}
	}
	if i < len(src) && src[i]|0x20 == 'e' {
		if i++; i < len(src) && (src[i] == '+' || src[i] == '-') {
			i++
		}
		first = i
		if i = skipDigits(src, first); i == first {
			return s.unexpectedAt(i, "a digit")
		}
	}
	s.pos = i
	return nil
}

// skipDigits returns the index of the first byte from i on that is no digit.
func skipDigits(src []byte, i int) int {
	for i < len(src) && src[i]-'0' <= 9 {
		i++
	}
	return i
}

func (s *scanner) unexpectedAt(pos int, want string) error {
	s.pos = pos
	return s.unexpected(want)
}

func (s *scanner) unexpected(want string) error {
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
