package llm

import (
	"bytes"
	"encoding/json"
	"iter"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// selfStanding holds the bytes that stand in a JSON string for themselves: ASCII but
// for control characters, the quote and the backslash.
var selfStanding = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// appendString appends s as a JSON string. Bytes that are no UTF-8 become
// U+FFFD. Unlike encoding/json it leaves <, > and & alone: prompts are full of
// them, and a model's server reads them as they are.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if selfStanding[c] {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// appendFloat appends f as encoding/json would write most numbers. The caller
// has checked that f is finite.
func appendFloat(dst []byte, f float64) []byte {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

// members goes through the members of the JSON object raw, in order: the text of the key
// and the value's bytes. raw must be valid JSON; anything but an object has none.
func members(raw []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		i := skipSpace(raw, 0)
		if i == len(raw) || raw[i] != '{' {
			return
		}
		for i = skipSpace(raw, i+1); raw[i] == '"'; i = skipSpace(raw, i+1) {
			end := skipString(raw, i)
			key := raw[i+1 : end-1]
			if bytes.IndexByte(key, '\\') >= 0 {
				key = []byte(stringOf(raw[i:end]))
			}
			i = skipSpace(raw, skipSpace(raw, end)+1) // past the colon
			end = skipValue(raw, i)
			if !yield(key, raw[i:end]) {
				return
			}
			if i = skipSpace(raw, end); raw[i] != ',' {
				return
			}
		}
	}
}

// elements goes through the elements of the JSON array raw. raw must be valid JSON;
// anything but an array has none.
func elements(raw []byte) iter.Seq[[]byte] {
	return func(yield func(value []byte) bool) {
		i := skipSpace(raw, 0)
		if i == len(raw) || raw[i] != '[' {
			return
		}
		for i = skipSpace(raw, i+1); raw[i] != ']'; i = skipSpace(raw, i+1) {
			end := skipValue(raw, i)
			if !yield(raw[i:end]) {
				return
			}
			if i = skipSpace(raw, end); raw[i] != ',' {
				return
			}
		}
	}
}

// stringOf returns the text of a valid JSON string in its quotes. As with encoding/json a
// bad byte and a lone surrogate become U+FFFD.
func stringOf(quoted []byte) string {
	raw := quoted[1 : len(quoted)-1]
	switch {
	case !utf8.Valid(raw):
		var s string
		_ = json.Unmarshal(quoted, &s) // valid by contract
		return s
	case bytes.IndexByte(raw, '\\') < 0:
		return string(raw)
	}
	return unescaped(raw)
}

// unescaped returns the text of a valid JSON string, given without its quotes and with
// escapes in it, in which a lone surrogate becomes U+FFFD.
func unescaped[S string | []byte](raw S) string {
	text := appendUnescaped(make([]byte, 0, len(raw)), []byte(raw))
	if !utf8.Valid(text) {
		return replaceSurrogates(string(text))
	}
	return string(text)
}

func skipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\t' || raw[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index behind the valid JSON value that starts at i.
func skipValue(raw []byte, i int) int {
	depth := 0
	for {
		switch raw[i] {
		case '"':
			i = skipString(raw, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			i++
			if depth > 0 {
				continue // commas, colons and scalars inside
			}
			i = skipScalar(raw, i)
		}
		if depth == 0 {
			return i
		}
	}
}

func isDelimiter(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\n', '\t', '\r':
		return true
	}
	return false
}

// appendMerged appends the JSON object base with the members of extra merged
// in: a member of both is taken from extra, unless both are objects, which are
// merged likewise. Members of base keep their order, new ones follow in the
// order of extra.
func appendMerged(dst, base, extra []byte) []byte {
	type member struct {
		key   string
		value []byte
	}
	var added []member
	for key, value := range members(extra) {
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
		dst = append(appendString(dst, key), ':')
	}
	for key, value := range members(base) {
		put(string(key))
		at := slices.IndexFunc(added, func(m member) bool { return m.key == string(key) && m.value != nil })
		if at < 0 {
			dst = append(dst, value...)
			continue
		}
		if value[0] == '{' && added[at].value[0] == '{' {
			dst = appendMerged(dst, value, added[at].value)
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

func appendInt(dst []byte, n int) []byte { return strconv.AppendInt(dst, int64(n), 10) }

func appendBool(dst []byte, b bool) []byte { return strconv.AppendBool(dst, b) }
