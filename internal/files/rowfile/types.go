package rowfile

import (
	"bytes"
	"strconv"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// appendValue appends a value of CSV as JSON: a string, or in a typed layout what it
// looks like. There 12 is a number, TRUE is true, an empty value is null, and 007 is a
// string. Quotes around a value say nothing about its type, since some programs quote all.
func (l Layout) appendValue(dst, value []byte) []byte {
	if !l.Typed {
		return jsonbytes.AppendString(dst, value)
	}
	switch text := bytes.Trim(value, " \t"); {
	case len(text) == 0:
		return append(dst, "null"...)
	case bytes.EqualFold(text, []byte("true")):
		return append(dst, "true"...)
	case bytes.EqualFold(text, []byte("false")):
		return append(dst, "false"...)
	case isNumber(text):
		return append(dst, text...) // with the digits that it has
	}
	return jsonbytes.AppendString(dst, value)
}

// isNumber reports whether text is a number as JSON spells it: 4, -1.50 and 1e3, but not
// 007, +1 or 1,000, nor one that is too large for a float.
func isNumber(text []byte) bool {
	if b := text[0]; b != '-' && (b < '0' || b > '9') || !jsonbytes.Valid(text) {
		return false
	}
	_, err := strconv.ParseFloat(string(text), 64)
	return err == nil
}
