package jsonbytes

import (
	"bytes"
	"encoding/json"
	"unicode"
	"unicode/utf8"
)

// bom is a byte order mark in UTF-8. Some gateways and editors write it before JSON, and
// RFC 8259 (section 8.1) allows readers to ignore it.
var bom = []byte("\ufeff")

// TrimBOM returns b without a byte order mark at its beginning.
func TrimBOM(b []byte) []byte { return bytes.TrimPrefix(b, bom) }

// IsInvisible reports whether a character is white space, a byte order mark or a zero-width
// space, as servers put them before a text.
func IsInvisible(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' || r == '\u200b' }

// Text returns the text of a valid JSON string in its quotes. As with encoding/json a bad
// byte and a lone surrogate become U+FFFD.
func Text(quoted []byte) string {
	text := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		text = AppendUnescaped(make([]byte, 0, len(text)), text)
	}
	if utf8.Valid(text) {
		return string(text)
	}
	var s string
	_ = json.Unmarshal(quoted, &s) // valid by contract
	return s
}

// AppendUnescaped appends the text of a valid JSON string, given without its quotes. A
// lone surrogate is written as UTF-8 would have it if it allowed surrogates, so that no
// two texts become one.
func AppendUnescaped(dst, raw []byte) []byte {
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
