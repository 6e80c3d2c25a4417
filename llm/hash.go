package llm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"
	"unicode/utf8"
)

// Hash returns the SHA-256 of b in lower-case hexadecimal.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

// VariablesHash returns the [Hash] of the row in canonical form, which is the same for
// every spelling of the same object and on every machine:
//
//   - no whitespace outside strings;
//   - the members of every object in the order of their decoded keys' UTF-8 bytes, of
//     equal keys only the last;
//   - numbers with the digits and signs they came with, so 1.0 is not 1;
//   - in strings only ", \, and the characters below U+0020 are escaped: the latter as
//     \b, \f, \n, \r, \t or \u00xx, a lone surrogate as \udxxx, all in lower case.
//
// For a row without duplicate keys whose numbers another encoder would write alike, that
// is what Python's json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
// gives.
func (r *Row) VariablesHash() string {
	c, _ := canonicalizers.Get().(*canonicalizer)
	c.write(r.body)
	hash := Hash(c.out)
	if cap(c.out) <= maxPooledBytes {
		canonicalizers.Put(c)
	}
	return hash
}

// maxPooledBytes keeps the scratch space of one huge row from being held for ever.
const maxPooledBytes = 1 << 20

var canonicalizers = sync.Pool{New: func() any { return new(canonicalizer) }}

// canonicalizer rewrites valid JSON in canonical form. It walks the source twice: first
// to find where each member lies, then to write members in order. So the work is linear
// in the source however deep it nests; looking for the end of each member on the way
// would cost depth times size, seconds for a row made for it.
type canonicalizer struct {
	src   []byte
	out   []byte
	tape  []canonicalMember // all members of all objects, in order of appearance
	order []int             // indexes into tape: members of the objects being written
	text  []byte            // scratch for a decoded string
}

type canonicalMember struct {
	key   []byte // decoded
	value int    // where the value starts
	next  int    // in the tape, behind the value's own members
	end   int    // behind the object's closing brace; 0 in all but the object's last member
}

func (c *canonicalizer) write(src []byte) {
	c.src, c.out = src, c.out[:0]
	c.tape, c.order = c.tape[:0], c.order[:0]
	start := skipSpace(src, 0)
	c.index(start)
	c.emit(start, 0)
	clear(c.tape) // keys point into src
	c.src = nil
}

// index notes the members within the value at pos and returns the index behind it.
func (c *canonicalizer) index(pos int) int {
	switch c.src[pos] {
	case '{':
		pos = skipSpace(c.src, pos+1)
		if c.src[pos] == '}' {
			return pos + 1
		}
		for {
			i := len(c.tape)
			keyEnd := skipString(c.src, pos)
			key := c.src[pos+1 : keyEnd-1]
			if bytes.IndexByte(key, '\\') >= 0 {
				key = appendUnescaped(nil, key)
			}
			value := skipSpace(c.src, skipSpace(c.src, keyEnd)+1)
			c.tape = append(c.tape, canonicalMember{key: key, value: value})
			pos = skipSpace(c.src, c.index(value))
			c.tape[i].next = len(c.tape)
			if c.src[pos] == '}' {
				c.tape[i].end = pos + 1
				return pos + 1
			}
			pos = skipSpace(c.src, pos+1)
		}
	case '[':
		pos = skipSpace(c.src, pos+1)
		if c.src[pos] == ']' {
			return pos + 1
		}
		for {
			pos = skipSpace(c.src, c.index(pos))
			if c.src[pos] == ']' {
				return pos + 1
			}
			pos = skipSpace(c.src, pos+1)
		}
	case '"':
		return skipString(c.src, pos)
	}
	return skipScalar(c.src, pos)
}

// emit writes the value at pos, whose members begin at tape[i], and returns the indexes
// behind it in the source and in the tape.
func (c *canonicalizer) emit(pos, i int) (int, int) {
	switch c.src[pos] {
	case '{':
		return c.emitObject(pos, i)
	case '[':
		c.out = append(c.out, '[')
		pos = skipSpace(c.src, pos+1)
		for c.src[pos] != ']' {
			pos, i = c.emit(pos, i)
			pos = skipSpace(c.src, pos)
			if c.src[pos] == ',' {
				c.out = append(c.out, ',')
				pos = skipSpace(c.src, pos+1)
			}
		}
		c.out = append(c.out, ']')
		return pos + 1, i
	case '"':
		end := skipString(c.src, pos)
		raw := c.src[pos+1 : end-1]
		if bytes.IndexByte(raw, '\\') < 0 {
			c.out = append(c.out, c.src[pos:end]...)
			return end, i
		}
		c.text = appendUnescaped(c.text[:0], raw)
		c.out = appendCanonicalString(c.out, c.text)
		return end, i
	}
	end := skipScalar(c.src, pos)
	c.out = append(c.out, c.src[pos:end]...)
	return end, i
}

func (c *canonicalizer) emitObject(pos, i int) (int, int) {
	c.out = append(c.out, '{')
	if pos = skipSpace(c.src, pos+1); c.src[pos] == '}' {
		c.out = append(c.out, '}')
		return pos + 1, i
	}
	first := len(c.order)
	end := 0
	for end == 0 {
		c.order = append(c.order, i)
		i, end = c.tape[i].next, c.tape[i].end
	}
	slices.SortStableFunc(c.order[first:], func(a, b int) int {
		return bytes.Compare(c.tape[a].key, c.tape[b].key)
	})
	last := len(c.order) - 1
	for at := first; at <= last; at++ {
		m := &c.tape[c.order[at]]
		if at < last && bytes.Equal(m.key, c.tape[c.order[at+1]].key) {
			continue
		}
		if c.out[len(c.out)-1] != '{' {
			c.out = append(c.out, ',')
		}
		c.out = appendCanonicalString(c.out, m.key)
		c.out = append(c.out, ':')
		c.emit(m.value, c.order[at]+1)
	}
	c.order = c.order[:first]
	c.out = append(c.out, '}')
	return end, i
}

// skipString returns the index behind the valid JSON string whose quote is at i.
func skipString(src []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(src[i:], '"')
		backslashes := 0
		for src[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return i + 1
		}
	}
}

// skipScalar returns the index behind the valid number or literal at i.
func skipScalar(src []byte, i int) int {
	for i < len(src) && !isDelimiter(src[i]) {
		i++
	}
	return i
}

// appendUnescaped appends the text of a valid JSON string, given without its quotes. A
// lone surrogate is written as UTF-8 would have it if it allowed surrogates, so that no
// two texts become one.
func appendUnescaped(dst, raw []byte) []byte {
	for i := 0; i < len(raw); i++ {
		run := bytes.IndexByte(raw[i:], '\\')
		if run < 0 {
			return append(dst, raw[i:]...)
		}
		dst = append(dst, raw[i:i+run]...)
		i += run + 1
		switch c := raw[i]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw[i+1:])
			i += 4
			if isHighSurrogate(r) && i+6 < len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u' {
				if low := hex4(raw[i+3:]); isLowSurrogate(low) {
					r = 0x10000 + (r-0xD800)<<10 + (low - 0xDC00)
					i += 6
				}
			}
			dst = appendWide(dst, r)
		default: // ", \ and /
			dst = append(dst, c)
		}
	}
	return dst
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		digit := rune(c - '0')
		if digit > 9 {
			digit = rune(c|0x20-'a') + 10
		}
		r = r<<4 | digit
	}
	return r
}

func isHighSurrogate(r rune) bool { return r>>10 == 0xD800>>10 }
func isLowSurrogate(r rune) bool  { return r>>10 == 0xDC00>>10 }

// appendWide is [utf8.AppendRune] for surrogates too.
func appendWide(dst []byte, r rune) []byte {
	if isHighSurrogate(r) || isLowSurrogate(r) {
		return append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F)
	}
	return utf8.AppendRune(dst, r)
}

// appendCanonicalString appends text, as appendUnescaped gives it, as [Row.VariablesHash]
// writes strings.
func appendCanonicalString(dst, text []byte) []byte {
	dst = append(dst, '"')
	start := 0 // of the run to be copied as it is
	for i := 0; i < len(text); i++ {
		c := text[i]
		surrogate := c == 0xED && text[i+1] >= 0xA0 // no valid UTF-8 looks so
		if c >= ' ' && c != '"' && c != '\\' && !surrogate {
			continue
		}
		dst = append(dst, text[start:i]...)
		switch {
		case surrogate:
			r := rune(c&15)<<12 | rune(text[i+1]&63)<<6 | rune(text[i+2]&63)
			dst = append(dst, '\\', 'u', 'd', hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
			i += 2
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\b':
			dst = append(dst, '\\', 'b')
		case c == '\f':
			dst = append(dst, '\\', 'f')
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		start = i + 1
	}
	dst = append(dst, text[start:]...)
	return append(dst, '"')
}
