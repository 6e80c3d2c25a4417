package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

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
			return errors.New("JSON has no infinity and no NaN")
		}
		w.dst = appendPythonFloat(w.dst, v)
	case string:
		return w.str(v)
	case []any:
		return w.list(v, depth)
	case map[string]any:
		return w.mapping(v, depth)
	default:
		return fmt.Errorf("%s cannot be written as JSON", article(v))
	}
	return nil
}

func (w *jsonWriter) list(items []any, depth int) error {
	w.dst = append(w.dst, '[')
	for i, item := range items {
		w.separate(i, depth+1)
		if err := w.value(item, depth+1); err != nil {
			return err
		}
	}
	w.close(len(items), depth, ']')
	return nil
}

func (w *jsonWriter) mapping(m map[string]any, depth int) error {
	keys, err := w.r.Items(m)
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
		if err := w.value(m[key], depth+1); err != nil {
			return err
		}
	}
	w.close(len(m), depth, '}')
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
	indent, ascii := intOr(args[0], 0), truthOr(args[1], true)
	if indent < 0 || indent > maxFormatWidth {
		return nil, fmt.Errorf("indent must be between 0 and %d", maxFormatWidth)
	}
	w := jsonWriter{r: r, lines: !absent(args[0]), indent: strings.Repeat(" ", int(indent)), ascii: ascii}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	return string(w.dst), nil
}
