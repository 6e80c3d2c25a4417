package auditlog

import (
	"bytes"
	"unicode/utf8"
)

// body embeds JSON as it is, so that who reads the event can hash it again, and quotes anything else.
func body(dst, b []byte) []byte {
	switch {
	case len(b) == 0:
		return append(dst, "null"...)
	case embeddable(b):
		return append(dst, b...)
	}
	return quote(dst, b)
}

// depthMax is how deep a body may be nested to be embedded. Real ones stay below 20; there are readers that stop at a
// thousand levels, of which the event itself is one.
const depthMax = 500

// embeddable reports whether b is one JSON value, in UTF-8, that every reader of the event can cope with.
//
// It is a pass over each body of each call, so all is asked at once, in a third of the time that [json.Valid] takes, which
// lets bad UTF-8 and deep nesting through.
func embeddable(b []byte) bool {
	end, ok := value(b, space(b, 0), depthMax)
	return ok && space(b, end) == len(b)
}

// value returns where the value that begins at i ends. More than depth levels are no value.
func value(b []byte, i, depth int) (end int, ok bool) {
	if i == len(b) {
		return i, false
	}
	switch c := b[i]; c {
	case '"':
		return text(b, i+1)
	case '{', '[':
		if depth == 0 {
			return i, false
		}
		return members(b, i+1, depth-1, c == '{')
	case 't':
		return word(b, i, "true")
	case 'f':
		return word(b, i, "false")
	case 'n':
		return word(b, i, "null")
	}
	return number(b, i)
}

// members goes through an object or array that was opened before i.
func members(b []byte, i, depth int, object bool) (end int, ok bool) {
	closing := byte(']')
	if object {
		closing = '}'
	}
	if i = space(b, i); i < len(b) && b[i] == closing {
		return i + 1, true
	}
	for {
		if object {
			if i == len(b) || b[i] != '"' {
				return i, false
			}
			if i, ok = text(b, i+1); !ok {
				return i, false
			}
			if i = space(b, i); i == len(b) || b[i] != ':' {
				return i, false
			}
			i = space(b, i+1)
		}
		if i, ok = value(b, i, depth); !ok {
			return i, false
		}
		if i = space(b, i); i == len(b) {
			return i, false
		}
		if b[i] == closing {
			return i + 1, true
		}
		if b[i] != ',' {
			return i, false
		}
		i = space(b, i+1)
	}
}

// text goes through a string that was opened before i.
func text(b []byte, i int) (end int, ok bool) {
	for i < len(b) {
		switch c := b[i]; {
		case c == '"':
			return i + 1, true
		case c == '\\':
			if i+1 == len(b) {
				return i, false
			}
			if b[i+1] == 'u' {
				if i+6 > len(b) || !isHex(b[i+2]) || !isHex(b[i+3]) || !isHex(b[i+4]) || !isHex(b[i+5]) {
					return i, false
				}
				i += 6
				continue
			}
			if bytes.IndexByte([]byte(`"\/bfnrt`), b[i+1]) < 0 {
				return i, false
			}
			i += 2
		case c < ' ':
			return i, false
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && size == 1 {
				return i, false
			}
			i += size
		}
	}
	return i, false
}

// number: an optional sign, digits without a leading zero, perhaps a fraction, perhaps an exponent.
func number(b []byte, i int) (end int, ok bool) {
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i, ok = digits(b, i); !ok {
		return i, false
	}
	if i < len(b) && b[i] == '.' {
		if i, ok = digits(b, i+1); !ok {
			return i, false
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return digits(b, i)
	}
	return i, true
}

// digits goes through at least one of them.
func digits(b []byte, i int) (end int, ok bool) {
	start := i
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i, i > start
}

func word(b []byte, i int, w string) (end int, ok bool) {
	end = i + len(w)
	return end, end <= len(b) && string(b[i:end]) == w
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}
