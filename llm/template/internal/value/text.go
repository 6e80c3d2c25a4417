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

// Text returns v as it is printed.
func (r *Run) Text(v any) (string, error) {
	if s, ok := v.(string); ok {
		return s, nil
	}
	w := writer{r: r}
	w.value(v, 0)
	return string(w.dst), w.err
}

// writer writes values as Python's str does, or as JSON.
type writer struct {
	r   *Run
	dst []byte
	err error // the first one

	// As Jinja's tojson: < > & ' are escaped too, which makes the text safe in HTML.
	json   bool
	ascii  bool   // everything but ASCII is escaped
	lines  bool   // each item is on its own line
	indent string // for each level
}

// written returns the text that write writes.
func (r *Run) written(write func(w *writer)) (string, error) {
	w := writer{r: r}
	write(&w)
	return string(w.dst), w.err
}

// pay pays n times each for the text that is written next, and reports whether it may be
// written. If not, or after an error, nothing more is written.
func (w *writer) pay(n, each int) bool {
	if w.err == nil {
		w.err = w.r.SpendTimes(n, each)
	}
	return w.err == nil
}

// check records err, unless there was an error before.
func (w *writer) check(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *writer) fail(format string, args ...any) { w.check(fmt.Errorf(format, args...)) }

// value writes v. Strings in lists and mappings, that is below depth 0, are in quotes.
func (w *writer) value(v any, depth int) {
	if depth > maxValueDepth {
		w.fail("the value is nested deeper than %d", maxValueDepth)
	}
	if !w.pay(depth+1, len(w.indent)) || !w.pay(1, StepCost) {
		return
	}
	switch v := v.(type) {
	case nil:
		w.word("None", "null")
	case bool:
		if v {
			w.word("True", "true")
		} else {
			w.word("False", "false")
		}
	case int64:
		w.dst = strconv.AppendInt(w.dst, v, 10)
	case json.Number:
		if w.pay(len(v), 1) {
			w.dst = append(w.dst, v...)
		}
	case float64:
		if w.json && (math.IsNaN(v) || math.IsInf(v, 0)) {
			w.fail("JSON has no infinity and no NaN")
		}
		w.dst = appendPythonFloat(w.dst, v)
	case string:
		w.str(v, depth)
	case []any:
		w.items("[", v, depth, "]")
	case map[string]any:
		w.mapping(v, depth)
	default:
		w.other(v, depth)
	}
}

// other writes values without a JSON form: a series, as Python's repr does, a namespace
// or a loop. A tuple is a JSON array.
func (w *writer) other(v any, depth int) {
	s, ok := v.(*series)
	switch {
	case ok && s.kind == kindTuple && w.json: // json.dumps takes no other series
		w.items("[", s.items, depth, "]")
	case w.json:
		w.fail("%s cannot be written as JSON", article(v))
	case ok && s.kind == kindTuple && len(s.items) == 1:
		w.items("(", s.items, depth, ",)")
	case ok && s.kind == kindTuple:
		w.items("(", s.items, depth, ")")
	case ok && s.kind == kindRange:
		w.dst = fmt.Appendf(w.dst, "range(%d, %d", s.bounds[0], s.bounds[1])
		if step := s.bounds[2]; step != 1 {
			w.dst = fmt.Appendf(w.dst, ", %d", step)
		}
		w.dst = append(w.dst, ')')
	case ok:
		w.dst = append(w.dst, s.kind...)
		w.items("([", s.items, depth, "])")
	case v != Blank{}:
		w.dst = fmt.Appendf(w.dst, "<%s>", typeName(v))
	}
}

func (w *writer) word(python, json string) {
	if w.json {
		python = json
	}
	w.dst = append(w.dst, python...)
}

func (w *writer) items(open string, items []any, depth int, closing string) {
	w.dst = append(w.dst, open...)
	for i, item := range items {
		if w.separate(i, depth+1); w.err != nil {
			return
		}
		w.value(item, depth+1)
	}
	w.close(len(items), depth, closing)
}

func (w *writer) mapping(m map[string]any, depth int) {
	keys, err := w.r.Items(m)
	w.check(err)
	w.dst = append(w.dst, '{')
	for i, k := range keys {
		if w.separate(i, depth+1); w.err != nil {
			return
		}
		key, _ := k.(string)
		w.str(key, depth+1)
		w.dst = append(w.dst, ": "...)
		w.value(m[key], depth+1)
	}
	w.close(len(m), depth, "}")
}

// separate begins the i-th item.
func (w *writer) separate(i, depth int) {
	if i > 0 {
		w.dst = append(w.dst, ',')
	}
	if w.lines {
		w.newline(depth)
	} else if i > 0 {
		w.dst = append(w.dst, ' ')
	}
}

func (w *writer) close(items, depth int, bracket string) {
	if items > 0 && w.lines {
		w.newline(depth)
	}
	w.dst = append(w.dst, bracket...)
}

func (w *writer) newline(depth int) {
	w.dst = append(w.dst, '\n')
	for range depth {
		w.dst = append(w.dst, w.indent...)
	}
}

func (w *writer) str(s string, depth int) {
	switch {
	case !w.pay(len(s), 1):
	case w.json && w.pay(len(s), 1):
		w.quoteJSON(s)
	case depth == 0:
		w.dst = append(w.dst, s...)
	default:
		w.quotePython(s)
	}
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

// shortEscape returns the letter that escapes c if it is one of the first n of the
// characters that JSON escapes so, or 0.
func shortEscape(c rune, n int) byte {
	at := strings.IndexRune("\\\n\r\t\b\f"[:n], c)
	if at < 0 {
		return 0
	}
	return `\nrtbf`[at]
}

// quotePython writes s as Python's repr does.
func (w *writer) quotePython(s string) {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	dst := append(w.dst, byte(quote))
	for _, c := range s {
		switch {
		case c == quote:
			dst = append(dst, '\\', byte(quote))
		case c >= ' ' && c < 0x7f && c != '\\':
			dst = append(dst, byte(c))
		case shortEscape(c, 4) != 0: // Python has no \b and \f
			dst = append(dst, '\\', shortEscape(c, 4))
		case unicode.IsPrint(c):
			dst = utf8.AppendRune(dst, c)
		default:
			dst = appendEscaped(dst, c)
		}
	}
	w.dst = append(dst, byte(quote))
}

func (w *writer) quoteJSON(s string) {
	dst := append(w.dst, '"')
	for _, c := range s {
		switch {
		case c == '"':
			dst = append(dst, `\"`...)
		case c == '<' || c == '>' || c == '&' || c == '\'' || w.ascii && c >= 0x7f && c < 0x10000:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		case w.ascii && c >= 0x10000:
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, 0xD800+(c-0x10000)>>10, 0xDC00+(c-0x10000)&0x3FF)
		case c >= ' ' && c != '\\':
			dst = utf8.AppendRune(dst, c)
		case shortEscape(c, 6) != 0:
			dst = append(dst, '\\', shortEscape(c, 6))
		default:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		}
	}
	w.dst = append(dst, '"')
}

// maxPrecision bounds the precision of formatted numbers, and the indent of JSON.
const maxPrecision = 1000

// opToJSON is Jinja's tojson.
func opToJSON(r *Run, v any, args []any) (any, error) {
	indent := intOr(args[0], 0)
	if indent < 0 || indent > maxPrecision {
		return nil, fmt.Errorf("indent must be between 0 and %d", maxPrecision)
	}
	w := writer{r: r, json: true, lines: !absent(args[0]), indent: strings.Repeat(" ", int(indent)), ascii: truthOr(args[1], true)}
	w.value(v, 0)
	return string(w.dst), w.err
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
