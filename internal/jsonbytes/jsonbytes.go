// Package jsonbytes reads and writes JSON without decoding it: values keep their bytes,
// so the order of members, the digits of numbers and the spelling of strings survive.
//
// [ReadObject] and [Valid] check foreign bytes. [Members], [Elements], [Find] and [Text]
// read what was checked, the Append functions write. None of them uses reflection.
//
//	for key, value := range jsonbytes.Members(raw) {
//		if string(key) == "model" {
//			model = jsonbytes.Text(value)
//		}
//	}
package jsonbytes

import (
	"bytes"
	"iter"
	"math/bits"
)

// Members goes through the members of the JSON object raw, in order: the text of the key
// and the value's bytes. raw must be valid JSON; anything but an object has none.
func Members(raw []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		i := SkipSpace(raw, 0)
		if i == len(raw) || raw[i] != '{' {
			return
		}
		for i = SkipSpace(raw, i+1); raw[i] == '"'; i = SkipSpace(raw, i+1) {
			end := SkipString(raw, i)
			key := raw[i+1 : end-1]
			if bytes.IndexByte(key, '\\') >= 0 {
				key = []byte(Text(raw[i:end]))
			}
			i = SkipSpace(raw, SkipSpace(raw, end)+1) // past the colon
			end = skipValue(raw, i)
			if !yield(key, raw[i:end]) {
				return
			}
			if i = SkipSpace(raw, end); raw[i] != ',' {
				return
			}
		}
	}
}

// Elements goes through the elements of the JSON array raw. raw must be valid JSON;
// anything but an array has none.
func Elements(raw []byte) iter.Seq[[]byte] {
	return func(yield func(value []byte) bool) {
		i := SkipSpace(raw, 0)
		if i == len(raw) || raw[i] != '[' {
			return
		}
		for i = SkipSpace(raw, i+1); raw[i] != ']'; i = SkipSpace(raw, i+1) {
			end := skipValue(raw, i)
			if !yield(raw[i:end]) {
				return
			}
			if i = SkipSpace(raw, end); raw[i] != ',' {
				return
			}
		}
	}
}

// Find returns the member of a JSON object that has this name, the last one of several,
// or nil. raw must be valid JSON or empty.
func Find(raw []byte, name string) (member []byte) {
	for key, value := range Members(raw) {
		if string(key) == name {
			member = value
		}
	}
	return member
}

// SkipSpace returns the index of the first byte from i on that is not white space, or the
// length of raw.
func SkipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\t' || raw[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index after the valid JSON value that starts at i.
func skipValue(raw []byte, i int) int {
	depth := 0
	for {
		switch raw[i] {
		case '"':
			i = SkipString(raw, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			i++
			if depth > 0 { // commas, colons and scalars inside
				i = skipFlat(raw, i)
				continue
			}
			i = SkipScalar(raw, i)
		}
		if depth == 0 {
			return i
		}
	}
}

// skipFlat returns an index from i on before which no string, object or array begins or
// ends. It steps over eight bytes at a time, so a long list of numbers costs little. The
// brackets have bit 6 set, which digits, signs, points, commas and white space have not.
func skipFlat(raw []byte, i int) int {
	for ; i+8 <= len(raw); i += 8 {
		word := load(raw, i)
		quote := word ^ eachOne*'"'
		if found := (word<<1 | (quote-eachOne)&^quote) & eachHigh; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	return i
}

// SkipString returns the index after the valid JSON string whose opening quote is at i.
func SkipString(raw []byte, i int) int {
	i++
	if i+8 <= len(raw) { // most keys are short
		if found := special(load(raw, i)); found != 0 && raw[i+bits.TrailingZeros64(found)/8] == '"' {
			return i + bits.TrailingZeros64(found)/8 + 1
		}
	}
	for ; ; i++ {
		i += bytes.IndexByte(raw[i:], '"')
		backslashes := 0
		for raw[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return i + 1
		}
	}
}

// SkipScalar returns the index after the valid number or literal at i.
func SkipScalar(raw []byte, i int) int {
	for i < len(raw) && !isDelimiter(raw[i]) {
		i++
	}
	return i
}

func isDelimiter(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\n', '\t', '\r':
		return true
	}
	return false
}
