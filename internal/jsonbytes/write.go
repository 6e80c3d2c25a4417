package jsonbytes

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string that keeps its bytes: only what must be is
// escaped. Bytes that are not UTF-8 become U+FFFD. Unlike encoding/json it leaves <, >
// and & alone: prompts are full of them, and a model's server reads them as they are.
func AppendString[S string | []byte](dst []byte, s S) []byte { return appendString(dst, s, false) }

// AppendEscaped appends s as a JSON string, byte for byte what encoding/json writes when
// it does not escape HTML. Unlike [AppendString] it escapes U+2028 and U+2029, which some
// readers of JSON Lines take for line ends, and the U+FFFD of bytes that are not UTF-8.
func AppendEscaped[S string | []byte](dst []byte, s S) []byte { return appendString(dst, s, true) }

// appendString implements both. They differ in rare characters only, so they share one
// loop.
func appendString[S string | []byte](dst []byte, s S, escaped bool) []byte {
	dst = append(dst, '"')
	start := 0 // of the part not yet written
	for i := plain(s, 0); i < len(s); i = plain(s, i) {
		c := s[i]
		if c < utf8.RuneSelf {
			dst = appendControl(append(dst, s[start:i]...), c, escaped)
			i++
			start = i
			continue
		}
		for i < len(s) && s[i] >= utf8.RuneSelf { // they come in runs
			r, size := decodeRune(s[i:min(len(s), i+utf8.UTFMax)])
			if r == utf8.RuneError && size == 1 || escaped && (r == '\u2028' || r == '\u2029') {
				dst = appendOdd(append(dst, s[start:i]...), r, escaped)
				start = i + size
			}
			i += size
		}
	}
	return append(append(dst, s[start:]...), '"')
}

// appendControl appends a quote, backslash or control character. short writes \b and \f
// in place of \u0008 and \u000c.
func appendControl(dst []byte, c byte, short bool) []byte {
	switch {
	case c == '"' || c == '\\':
		return append(dst, '\\', c)
	case c == '\n':
		return append(dst, '\\', 'n')
	case c == '\r':
		return append(dst, '\\', 'r')
	case c == '\t':
		return append(dst, '\\', 't')
	case short && c == '\b':
		return append(dst, '\\', 'b')
	case short && c == '\f':
		return append(dst, '\\', 'f')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// appendOdd appends a line separator, or U+FFFD for a byte that is not UTF-8.
func appendOdd(dst []byte, r rune, escaped bool) []byte {
	if !escaped {
		return utf8.AppendRune(dst, r)
	}
	return append(dst, '\\', 'u', hexDigits[r>>12], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// decodeRune takes at most four bytes, so that their conversion stays on the stack.
func decodeRune[S string | []byte](s S) (rune, int) { return utf8.DecodeRuneInString(string(s)) }

// Each of eight bytes in a word, for tests of all eight at once.
const (
	eachOne  = 0x0101010101010101
	eachHigh = 0x8080808080808080 // the bits that hold the results of the tests
)

// special marks those of eight bytes that are a quote, a backslash or a control
// character. The lowest mark is exact; a byte above it may be marked wrongly, by a
// borrow.
func special(word uint64) uint64 { return suspects(word) &^ word & eachHigh }

// specialOrLong is [special], and also marks the bytes of longer characters.
func specialOrLong(word uint64) uint64 { return (suspects(word) | word) & eachHigh }

// suspects is [special] before the bytes of longer characters are taken out, some of which
// it marks. The three differences share that last step, since none of the three characters
// has the high bit.
func suspects(word uint64) uint64 {
	quote, backslash := word^eachOne*'"', word^eachOne*'\\'
	return (word - eachOne*' ') | (quote - eachOne) | (backslash - eachOne)
}

// plain returns the index of the first byte from i on that cannot be taken over as it is:
// a quote, a backslash, a control character or a part of a longer character. Without such
// a byte it is the length of s.
func plain[S string | []byte](s S, i int) int {
	for ; i+8 <= len(s); i += 8 {
		if found := specialOrLong(load(s, i)); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	if left := len(s) - i; left > 0 && len(s) >= 8 {
		// The word's last bytes, with zeros behind, which are marked as the end.
		return i + bits.TrailingZeros64(specialOrLong(load(s, len(s)-8)>>(64-8*left)))/8
	}
	for i < len(s) && s[i] >= ' ' && s[i] != '"' && s[i] != '\\' && s[i] < utf8.RuneSelf {
		i++
	}
	return i
}

// load reads the eight bytes from i on. The compiler makes one instruction of it.
func load[S string | []byte](s S, i int) uint64 {
	b := s[i : i+8]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// AppendStringOrNull appends s as [AppendString] does, and null in place of the empty
// string.
func AppendStringOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return AppendString(dst, s)
}

// AppendFloat appends f as encoding/json would write most numbers. f must be finite.
func AppendFloat(dst []byte, f float64) []byte {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

// AppendMerged appends the JSON object base with the members of extra merged in: a member
// of both is taken from extra, unless both are objects, which are merged likewise.
// Members of base keep their order, new ones follow in the order of extra. Both must be
// valid.
func AppendMerged(dst, base, extra []byte) []byte {
	type member struct {
		key   string
		value []byte
	}
	var added []member
	for key, value := range Members(extra) {
		at := slices.IndexFunc(added, func(m member) bool { return m.key == string(key) })
		if at >= 0 { // of equal names the last one counts
			added[at].value = value
			continue
		}
		added = append(added, member{string(key), value})
	}
	dst = append(dst, '{')
	comma := false
	put := func(key string) {
		if comma {
			dst = append(dst, ',')
		}
		comma = true
		dst = append(AppendString(dst, key), ':')
	}
	for key, value := range Members(base) {
		put(string(key))
		at := slices.IndexFunc(added, func(m member) bool { return m.key == string(key) && m.value != nil })
		if at < 0 {
			dst = append(dst, value...)
			continue
		}
		if value[0] == '{' && added[at].value[0] == '{' {
			dst = AppendMerged(dst, value, added[at].value)
		} else {
			dst = append(dst, added[at].value...)
		}
		added[at].value = nil
	}
	for _, m := range added {
		if m.value != nil {
			put(m.key)
			dst = append(dst, m.value...)
		}
	}
	return append(dst, '}')
}
