package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"html"
	"unicode/utf8"
)

// needle is one way to encode a secret, each character of which may also be escaped.
type needle struct {
	plain []byte // as it is spelt where nothing is escaped
	text  []byte // plain without its escapes: an escape in a secret is read like one in the text
	code  code
	word  bool // found as a word only
	// Base64 knows neither the character before nor the one after, which hold bits of the
	// secret: they are removed too.
	before, after bool
}

type code uint8

const (
	asItIs code = iota
	inBase64
	inHex
)

// spellings returns all needles of a secret.
func spellings(secret string) []needle {
	all := []needle{
		{
			plain: []byte(secret), text: unescapedText([]byte(secret)),
			word: len(secret) < anywhereBytes,
		},
	}
	add := func(text string, code code, before, after bool) {
		if len(text) >= anywhereBytes {
			all = append(all, needle{
				plain: []byte(text), text: []byte(text), code: code, before: before, after: after,
			})
		}
	}
	add(hex.EncodeToString([]byte(secret)), inHex, false, false)
	for shift := range 3 { // bytes of something else before it, of three
		encoded := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), secret...))
		from, to := [...]int{0, 2, 3}[shift], (shift+len(secret))*8/6
		if from < to {
			add(encoded[from:to], inBase64, shift > 0, to < len(encoded))
		}
	}
	return all
}

// same returns the byte that stands for c in the needle's text: some codes have several
// spellings.
func (s *needle) same(c byte) byte {
	switch {
	case s.code == inHex && c >= 'A' && c <= 'F':
		return c | 0x20
	case s.code == inBase64 && c == '-':
		return '+'
	case s.code == inBase64 && c == '_':
		return '/'
	}
	return c
}

// variants returns all bytes that stand for c.
func (s *needle) variants(c byte) []byte {
	switch {
	case s.code == inHex && c >= 'a' && c <= 'f':
		return []byte{c, c &^ 0x20}
	case s.code == inBase64 && c == '+':
		return []byte{c, '-'}
	case s.code == inBase64 && c == '/':
		return []byte{c, '_'}
	}
	return []byte{c}
}

// isPrefixOf reports whether b begins with the needle, nothing escaped.
func (s *needle) isPrefixOf(b []byte) bool {
	if len(b) < len(s.plain) {
		return false
	}
	for i, c := range s.plain {
		if s.same(b[i]) != c {
			return false
		}
	}
	return true
}

// match returns where the needle ends that begins at i with the character c, as it is or
// with escapes. It is -1 if the needle does not begin there.
func (s *needle) match(b []byte, i int, c byte) (end int) {
	end = -1
	if s.isPrefixOf(b[i:]) {
		end = i + len(s.plain)
	} else if s.same(c) == s.text[0] {
		if at, found := s.follow(b, i); found == len(s.text) {
			end = at
		}
	}
	if end >= 0 && s.word && (!startsWord(b, i) || end < len(b) && alphanumeric(charAt(b, end))) {
		return -1
	}
	return end
}

// follow compares the needle with what begins at i, escapes undone. It returns how far it
// got in both.
func (s *needle) follow(b []byte, i int) (at, found int) {
	for found < len(s.text) && i < len(b) {
		c, size := char(b, i, escapesDeep)
		if s.same(c) != s.text[found] {
			break
		}
		i, found = i+size, found+1
	}
	return i, found
}

// begun reports whether b ends within a needle that begins at i.
func (s *needle) begun(b []byte, i int) bool {
	at, found := s.follow(b, i)
	return at == len(b) && found >= cutBytes || len(b)-i < len(s.plain) &&
		bytes.HasPrefix(s.plain, b[i:])
}

// whole extends a match to the characters that hold bits of the secret, and never leaves
// half an escape before it.
func (s *needle) whole(b []byte, from, to int) (int, int) {
	from = charsBefore(b, from)
	if s.before && from > 0 {
		if size := sizeBefore(b, from); isBase64(charAt(b, from-size)) {
			from = charsBefore(b, from-size)
		}
	}
	if s.after && to < len(b) {
		if c, size := char(b, to, escapesDeep); isBase64(c) {
			to += size
		}
	}
	return from, to
}

// charsBefore returns i, or where the backslashes before it begin: they would escape what
// takes the secret's place.
func charsBefore(b []byte, i int) int {
	for i > 0 && b[i-1] == '\\' {
		i--
	}
	return i
}

// sizeBefore returns the bytes of the character that ends at i > 0.
func sizeBefore(b []byte, i int) int {
	for size := 2; size <= min(i, 10); size++ {
		if isLead(b[i-size]) {
			if _, n := char(b, i-size, escapesDeep); n == size {
				return size
			}
		}
	}
	return 1
}

// startsWord reports whether no letter or digit precedes i.
func startsWord(b []byte, i int) bool {
	return i == 0 || !alphanumeric(charAt(b, i-sizeBefore(b, i)))
}

func charAt(b []byte, i int) byte {
	c, _ := char(b, i, escapesDeep)
	return c
}

func isLead(c byte) bool { return c == '\\' || c == '%' || c == '&' }

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

func isBase64(c byte) bool {
	return alphanumeric(c) || c == '+' || c == '/' || c == '-' || c == '_'
}

const (
	// escapesDeep is how often a character may be escaped over.
	escapesDeep = 5
	// backslashesMax bounds the backslashes of one escape: JSON in JSON doubles them each
	// time.
	backslashesMax = 64
)

// unescapedText returns b with all escapes undone.
func unescapedText(b []byte) []byte {
	text := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		c, size := char(b, i, escapesDeep)
		text = append(text, c)
		i += size
	}
	return text
}

// char returns the character at b[i:] and the bytes that it takes: itself, or what a
// JSON, percent or HTML escape stands for, undone up to deep times over. What no secret
// holds (control characters, all beyond ASCII) is 0.
func char(b []byte, i, deep int) (c byte, size int) {
	c, size = b[i], 1
	for ; deep > 0 && isLead(c); deep-- {
		undone, n := c, 0
		switch c {
		case '\\':
			undone, n = backslashed(b, i+size, deep-1)
		case '%':
			undone, n = hexCode(b, i+size, 2, deep-1)
		case '&':
			undone, n = entity(b, i+size, deep-1)
		}
		if n == 0 {
			break
		}
		c, size = undone, size+n
	}
	return c, size
}

// backslashed reads the character after a backslash. All further backslashes belong to
// the same escape. They may mean anything, but a replacement for the secret must not come
// after an odd one.
func backslashed(b []byte, i, deep int) (c byte, size int) {
	at := i
	for at < len(b) && b[at] == '\\' && at-i < backslashesMax {
		at++
	}
	if at == len(b) {
		return 0, 0
	}
	n := 0
	switch b[at] {
	case 'u':
		c, n = hexCode(b, at+1, 4, deep)
	case 'x':
		c, n = hexCode(b, at+1, 2, deep)
	case 'n', 'r', 't', 'b', 'f':
		return 0, at + 1 - i
	}
	if n == 0 {
		c = b[at]
		if isLead(c) {
			c, n = char(b, at, deep)
			n--
		}
	}
	return c, at + 1 + n - i
}

// beyondASCII reports whether b begins with the JSON escape of a character that no secret
// holds.
func beyondASCII(b []byte) bool {
	return len(b) >= len(`\u0000`) && b[0] == '\\' && b[1] == 'u' &&
		// The sum is negative if one of them is no digit.
		hexValue(b[2])<<12|hexValue(b[3])<<8|hexValue(b[4])<<4|hexValue(b[5]) > 0x7f
}

// hexCode reads the code of a character in so many hexadecimal digits.
func hexCode(b []byte, i, digits, deep int) (c byte, size int) {
	code := 0
	at := i
	for range digits {
		if at >= len(b) {
			return 0, 0
		}
		d, n := char(b, at, deep)
		v := hexValue(d)
		if v < 0 {
			return 0, 0
		}
		code, at = code<<4|v, at+n
	}
	return ascii(code), at - i
}

// entity reads what follows the & of an entity.
func entity(b []byte, i, deep int) (c byte, size int) {
	const most = 10
	var name [most]byte
	at := i
	for n := range most {
		if at >= len(b) {
			return 0, 0
		}
		d, size := char(b, at, deep)
		at += size
		if d == ';' {
			c, ok := entityOf(name[:n])
			if !ok {
				return 0, 0
			}
			return c, at - i
		}
		if d != '#' && !alphanumeric(d) {
			return 0, 0
		}
		name[n] = d
	}
	return 0, 0
}

// entityOf returns the character for an entity of this name or number. The typographic
// hyphen, which dash and hyphen name, counts as the ASCII one.
func entityOf(name []byte) (c byte, ok bool) {
	entity := "&" + string(name) + ";"
	text := html.UnescapeString(entity)
	r, size := utf8.DecodeRuneInString(text)
	if r == '\u2010' {
		return '-', true
	}
	return ascii(int(r)), text != entity && size == len(text)
}

// hexValue returns the value of a hexadecimal digit, or -1 for anything else.
func hexValue(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

func ascii(code int) byte {
	if code <= ' ' || code >= 0x7f {
		return 0
	}
	return byte(code)
}
