package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// unescaped holds the bytes that stand in a JSON string for themselves: ASCII but
// for control characters, the quote and the backslash.
var unescaped = func() (t [256]bool) {
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
		if unescaped[c] {
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

// members calls f with each member of the JSON object raw, in order, until f
// returns false. raw must be valid JSON; of anything but an object it visits
// nothing.
func members(raw []byte, f func(key string, value []byte) bool) {
	i := skipSpace(raw, 0)
	if i >= len(raw) || raw[i] != '{' {
		return
	}
	i = skipSpace(raw, i+1)
	for i < len(raw) && raw[i] == '"' {
		end := skipValue(raw, i)
		key := stringOf(raw[i:end])
		i = skipSpace(raw, skipSpace(raw, end)+1) // past the colon
		end = skipValue(raw, i)
		if !f(key, raw[i:end]) {
			return
		}
		i = skipSpace(raw, end)
		if i >= len(raw) || raw[i] != ',' {
			return
		}
		i = skipSpace(raw, i+1)
	}
}

// stringOf returns the text of a valid JSON string in its quotes.
func stringOf(quoted []byte) string {
	for _, c := range quoted {
		if c == '\\' || c >= utf8.RuneSelf {
			var s string
			_ = json.Unmarshal(quoted, &s) // valid by contract
			return s
		}
	}
	return string(quoted[1 : len(quoted)-1])
}

func skipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\t' || raw[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index behind the JSON value that starts at i.
func skipValue(raw []byte, i int) int {
	depth := 0
	for i < len(raw) {
		switch raw[i] {
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
			i++
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
			for i < len(raw) && !isDelimiter(raw[i]) {
				i++
			}
		}
		if depth == 0 {
			return min(i, len(raw))
		}
	}
	return len(raw)
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
	members(extra, func(key string, value []byte) bool {
		for i := range added {
			if added[i].key == key { // of equal names the last one counts
				added[i].value = value
				return true
			}
		}
		added = append(added, member{key, value})
		return true
	})
	dst = append(dst, '{')
	comma := false
	put := func(key string) {
		if comma {
			dst = append(dst, ',')
		}
		comma = true
		dst = append(appendString(dst, key), ':')
	}
	members(base, func(key string, value []byte) bool {
		put(key)
		for i := range added {
			if added[i].key != key || added[i].value == nil {
				continue
			}
			if value[0] == '{' && added[i].value[0] == '{' {
				dst = appendMerged(dst, value, added[i].value)
			} else {
				dst = append(dst, added[i].value...)
			}
			added[i].value = nil
			return true
		}
		dst = append(dst, value...)
		return true
	})
	for _, m := range added {
		if m.value != nil {
			put(m.key)
			dst = append(dst, m.value...)
		}
	}
	return append(dst, '}')
}

// ErrStreaming refuses an extra body that asks for a streamed reply.
var ErrStreaming = errors.New(`extra body: "stream" is not supported; remove it`)

// ValidateExtraBody reports why raw cannot be merged into a request: it is no
// JSON object, or asks for a streamed reply ([ErrStreaming]). Empty is fine.
func ValidateExtraBody(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	if !json.Valid(raw) || raw[skipSpace(raw, 0)] != '{' {
		return fmt.Errorf("extra body: not a JSON object: %.40q", preview(raw))
	}
	var err error
	members(raw, func(key string, value []byte) bool {
		if key == "stream" && string(value) != "false" {
			err = ErrStreaming
		}
		return err == nil
	})
	return err
}

func appendInt(dst []byte, n int) []byte { return strconv.AppendInt(dst, int64(n), 10) }

func appendBool(dst []byte, b bool) []byte { return strconv.AppendBool(dst, b) }
