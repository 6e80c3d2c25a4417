package jsonbytes

import (
	"bytes"
	"slices"
)

// Canonicalizer rewrites valid JSON in canonical form, which is the same for every
// spelling of the same value and on every machine:
//
//   - no whitespace outside strings;
//   - the members of every object in the order of their decoded keys' UTF-8 bytes, of equal keys only the last;
//   - numbers with their digits and signs as written, so 1.0 is not 1;
//   - in strings only ", \, and the characters below U+0020 are escaped: the latter as \b, \f, \n, \r, \t or \u00xx, a
//     lone surrogate as \udxxx, all in lower case.
//
// For an object without duplicate keys whose numbers another encoder would write alike,
// that is what Python's json.dumps(row, sort_keys=True, separators=(",", ":"),
// ensure_ascii=False) gives.
//
// It walks the source twice: first to find where each member lies, then to write members
// in order. So the work is linear in the source however deep it nests; searching for the
// end of each member while writing would cost depth times size, seconds for a row made
// for it. The zero value is ready for use, by one goroutine at a time.
type Canonicalizer struct {
	src   []byte
	out   []byte
	tape  []canonicalMember // all members of all objects, in order of appearance
	order []int             // indexes into tape: members of the objects being written
	text  []byte            // scratch for a decoded string
}

type canonicalMember struct {
	key   []byte // decoded
	value int    // where the value starts
	next  int    // in the tape, after the value's own members
	end   int    // after the object's closing brace; 0 in all but the object's last member
}

// Canonical returns the canonical form of src, which must be valid JSON. It is valid
// until the next call.
func (c *Canonicalizer) Canonical(src []byte) []byte {
	c.src, c.out = src, c.out[:0]
	c.tape, c.order = c.tape[:0], c.order[:0]
	start := SkipSpace(src, 0)
	c.index(start)
	c.emit(start, 0)
	clear(c.tape) // keys point into src
	c.src = nil
	return c.out
}

// index records the members within the value at pos and returns the index after it.
func (c *Canonicalizer) index(pos int) int {
	switch c.src[pos] {
	case '{':
		last := -1 // of the object's members in the tape
		for pos = SkipSpace(c.src, pos+1); c.src[pos] != '}'; pos = c.skipComma(pos) {
			last = len(c.tape)
			keyEnd := SkipString(c.src, pos)
			key := c.src[pos+1 : keyEnd-1]
			if bytes.IndexByte(key, '\\') >= 0 {
				key = AppendUnescaped(nil, key)
			}
			value := SkipSpace(c.src, SkipSpace(c.src, keyEnd)+1)
			c.tape = append(c.tape, canonicalMember{key: key, value: value})
			pos = c.index(value)
			c.tape[last].next = len(c.tape)
		}
		if last >= 0 {
			c.tape[last].end = pos + 1
		}
		return pos + 1
	case '[':
		for pos = SkipSpace(c.src, pos+1); c.src[pos] != ']'; pos = c.skipComma(pos) {
			pos = c.index(pos)
		}
		return pos + 1
	case '"':
		return SkipString(c.src, pos)
	}
	return SkipScalar(c.src, pos)
}

// skipComma returns the index of the next element or member, or of the closing bracket,
// after the value that ends at pos.
func (c *Canonicalizer) skipComma(pos int) int {
	if pos = SkipSpace(c.src, pos); c.src[pos] == ',' {
		pos = SkipSpace(c.src, pos+1)
	}
	return pos
}

// emit writes the value at pos, whose members begin at tape[i], and returns the indexes
// after it in the source and in the tape.
func (c *Canonicalizer) emit(pos, i int) (int, int) {
	switch c.src[pos] {
	case '{':
		return c.emitObject(pos, i)
	case '[':
		c.out = append(c.out, '[')
		for pos = SkipSpace(c.src, pos+1); c.src[pos] != ']'; pos = c.skipComma(pos) {
			if c.out[len(c.out)-1] != '[' {
				c.out = append(c.out, ',')
			}
			pos, i = c.emit(pos, i)
		}
		c.out = append(c.out, ']')
		return pos + 1, i
	case '"':
		end := SkipString(c.src, pos)
		raw := c.src[pos+1 : end-1]
		if bytes.IndexByte(raw, '\\') < 0 {
			c.out = append(c.out, c.src[pos:end]...)
			return end, i
		}
		c.text = AppendUnescaped(c.text[:0], raw)
		c.out = appendCanonicalString(c.out, c.text)
		return end, i
	}
	end := SkipScalar(c.src, pos)
	c.out = append(c.out, c.src[pos:end]...)
	return end, i
}

func (c *Canonicalizer) emitObject(pos, i int) (int, int) {
	c.out = append(c.out, '{')
	if pos = SkipSpace(c.src, pos+1); c.src[pos] == '}' {
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

// appendCanonicalString appends text, as AppendUnescaped gives it, as [Canonicalizer]
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
		default:
			dst = appendControl(dst, c, true)
		}
		start = i + 1
	}
	dst = append(dst, text[start:]...)
	return append(dst, '"')
}
