package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

func opText(r *Run, v any, _ []any) (any, error) {
	if _, ok := v.(string); ok { // which is not made into a value anew
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
		keys, err := r.Items(v)
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
			if dst, err = r.appendText(dst, v[key], depth+1); err != nil {
				return nil, err
			}
		}
		return append(dst, '}'), r.Spend(StepCost)
	}
	return append(append(append(dst, '<'), typeName(v)...), '>'), r.Spend(StepCost)
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

// jsonWriter writes a value as Jinja's tojson does: keys sorted, all but ASCII escaped,
// and <, >, & and ' too, so that the text is safe within HTML.
type jsonWriter struct {
	r      *Run
	dst    []byte
	lines  bool // each item on a line of its own
	indent string
	ascii  bool
}

func (w *jsonWriter) value(v any, depth int) error {
	if depth > maxValueDepth {
		return fmt.Errorf("the value is nested deeper than %d", maxValueDepth)
	}
	if err := w.r.SpendTimes(depth+1, 1+len(w.indent)); err != nil {
		return err
	}
	if err := w.r.Spend(StepCost); err != nil {
		return err
	}
	if s, ok := v.(*series); ok && s.kind == kindTuple { // the only one that json.dumps writes
		v = s.items
	}
	switch v := v.(type) {
	case nil:
		w.dst = append(w.dst, "null"...)
	case bool:
		w.dst = strconv.AppendBool(w.dst, v)
	case int64:
		w.dst = strconv.AppendInt(w.dst, v, 10)
	case json.Number:
		w.dst = append(w.dst, v...)
		return w.r.Spend(len(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return errors.New("JSON has no such number")
		}
		w.dst = appendPythonFloat(w.dst, v)
	case string:
		return w.str(v)
	case []any:
		w.dst = append(w.dst, '[')
		for i, item := range v {
			w.separate(i, depth+1)
			if err := w.value(item, depth+1); err != nil {
				return err
			}
		}
		w.close(len(v), depth, ']')
	case map[string]any:
		keys, err := w.r.Items(v)
		if err != nil {
			return err
		}
		w.dst = append(w.dst, '{')
		for i, k := range keys {
			w.separate(i, depth+1)
			key, _ := k.(string)
			if err := w.str(key); err != nil {
				return err
			}
			w.dst = append(w.dst, ": "...)
			if err := w.value(v[key], depth+1); err != nil {
				return err
			}
		}
		w.close(len(v), depth, '}')
	default:
		return fmt.Errorf("%s has no JSON", article(v))
	}
	return nil
}

// separate goes to the place of the i-th item.
func (w *jsonWriter) separate(i, depth int) {
	if i > 0 {
		w.dst = append(w.dst, ',')
	}
	if w.lines {
		w.newline(depth)
	} else if i > 0 {
		w.dst = append(w.dst, ' ')
	}
}

func (w *jsonWriter) close(items, depth int, bracket byte) {
	if items > 0 && w.lines {
		w.newline(depth)
	}
	w.dst = append(w.dst, bracket)
}

func (w *jsonWriter) newline(depth int) {
	w.dst = append(w.dst, '\n')
	for range depth {
		w.dst = append(w.dst, w.indent...)
	}
}

func (w *jsonWriter) str(s string) error {
	if err := w.r.SpendTimes(len(s), 2); err != nil {
		return err
	}
	w.dst = append(w.dst, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			w.dst = append(w.dst, '\\', byte(c))
		case c == '\n':
			w.dst = append(w.dst, `\n`...)
		case c == '\r':
			w.dst = append(w.dst, `\r`...)
		case c == '\t':
			w.dst = append(w.dst, `\t`...)
		case c == '\b':
			w.dst = append(w.dst, `\b`...)
		case c == '\f':
			w.dst = append(w.dst, `\f`...)
		case c < ' ' || c == '<' || c == '>' || c == '&' || c == '\'' || w.ascii && c >= 0x7f && c < 0x10000:
			w.dst = fmt.Appendf(w.dst, `\u%04x`, c)
		case w.ascii && c >= 0x10000:
			w.dst = fmt.Appendf(w.dst, `\u%04x\u%04x`, 0xD800+(c-0x10000)>>10, 0xDC00+(c-0x10000)&0x3FF)
		default:
			w.dst = utf8.AppendRune(w.dst, c)
		}
	}
	w.dst = append(w.dst, '"')
	return nil
}

// maxFormatWidth bounds the precision of formatted numbers and the indent of JSON.
const maxFormatWidth = 1000

func opToJSON(r *Run, v any, args []any) (any, error) {
	indent, err := intArg(args, 0, 0)
	if err != nil {
		return nil, err
	}
	ascii := boolArg(args, 1, true)
	if indent < 0 || indent > maxFormatWidth {
		return nil, fmt.Errorf("indent is between 0 and %d", maxFormatWidth)
	}
	_, absent := args[0].(Missing)
	lines := !absent && args[0] != nil // also with an indent of 0
	w := jsonWriter{r: r, lines: lines, indent: strings.Repeat(" ", int(indent)), ascii: ascii}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	return string(w.dst), nil
}
