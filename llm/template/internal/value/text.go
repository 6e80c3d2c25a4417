package value

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

func opText(r *Run, v any, _ []any) (any, error) {
	if _, ok := v.(string); ok { // avoids a new interface value
		return v, nil
	}
	return r.Text(v)
}

// Text returns v as it is written out.
func (r *Run) Text(v any) (string, error) {
	if s, ok := v.(string); ok {
		return s, nil
	}
	b, err := r.appendText(nil, v, 0)
	return string(b), err
}

// appendText appends v as Python's str writes it. Strings within lists and mappings, that
// is below depth 0, are in quotes.
func (r *Run) appendText(dst []byte, v any, depth int) (_ []byte, err error) {
	if depth > maxValueDepth {
		return nil, fmt.Errorf("the value is nested deeper than %d", maxValueDepth)
	}
	switch v := v.(type) {
	case Blank:
		return dst, r.Spend(StepCost)
	case nil:
		return append(dst, "None"...), r.Spend(StepCost)
	case bool:
		if v {
			return append(dst, "True"...), r.Spend(StepCost)
		}
		return append(dst, "False"...), r.Spend(StepCost)
	case int64:
		return strconv.AppendInt(dst, v, 10), r.Spend(StepCost)
	case float64:
		return appendPythonFloat(dst, v), r.Spend(StepCost)
	case json.Number:
		return append(dst, v...), r.Spend(StepCost + len(v))
	case string:
		if err := r.Spend(StepCost + len(v)); err != nil {
			return nil, err
		}
		if depth == 0 {
			return append(dst, v...), nil
		}
		return appendPythonString(dst, v), nil
	case []any:
		dst, err = r.appendItems(append(dst, '['), v, depth)
		return append(dst, ']'), err
	case *series:
		return r.appendSeries(dst, v, depth)
	case map[string]any:
		return r.appendMapping(dst, v, depth)
	}
	return append(append(append(dst, '<'), typeName(v)...), '>'), r.Spend(StepCost)
}

func (r *Run) appendMapping(dst []byte, m map[string]any, depth int) ([]byte, error) {
	keys, err := r.Items(m)
	if err != nil {
		return nil, err
	}
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		key, _ := k.(string)
		dst = append(appendPythonString(dst, key), ": "...)
		if dst, err = r.appendText(dst, m[key], depth+1); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), r.Spend(StepCost)
}

// appendPythonFloat appends f as Python's repr does: 1.0, 1e+16, 1e-05, inf.
func appendPythonFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 0):
		if f < 0 {
			dst = append(dst, '-')
		}
		return append(dst, "inf"...)
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if !slices.Contains(dst[start:], '.') {
		dst = append(dst, ".0"...)
	}
	return dst
}

// appendPythonString appends s as Python's repr does.
func appendPythonString(dst []byte, s string) []byte {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	dst = append(dst, quote)
	for _, c := range s {
		switch {
		case c == rune(quote) || c == '\\':
			dst = append(dst, '\\', byte(c))
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case unicode.IsPrint(c):
			dst = utf8.AppendRune(dst, c)
		default:
			dst = appendEscaped(dst, c)
		}
	}
	return append(dst, quote)
}

// appendEscaped appends the escape sequence of a character.
func appendEscaped(dst []byte, c rune) []byte {
	switch {
	case c < 0x100:
		return fmt.Appendf(dst, `\x%02x`, c)
	case c < 0x10000:
		return fmt.Appendf(dst, `\u%04x`, c)
	}
	return fmt.Appendf(dst, `\U%08x`, c)
}
