package value

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// fieldFormat writes "{}" formats, as str.format does.
type fieldFormat struct {
	*writer
	args  []any
	named map[string]any
	next  int     // of args, for "{}"
	mixed [2]bool // whether the format has "{}", and whether it has "{0}"
}

// methodFormat is "{} {name}".format(...).
func methodFormat(r *Run, v any, args []any) (any, error) {
	s, _ := v.(string)
	return r.written(func(w *writer) {
		f := fieldFormat{writer: w}
		f.args, f.named = freeArgs(args)
		f.text(s, 0)
	})
}

// text writes format with its fields replaced. A specification may have fields itself,
// one level deep.
func (f *fieldFormat) text(format string, depth int) {
	if depth > 1 {
		f.fail("the format has fields nested too deep")
	}
	for {
		at := strings.IndexAny(format, "{}")
		if at < 0 {
			at = len(format)
		}
		if !f.pay(StepCost+at, 1) {
			return
		}
		f.dst = append(f.dst, format[:at]...)
		format = format[at:]
		switch {
		case format == "":
			return
		case len(format) > 1 && format[0] == format[1]: // "{{" and "}}"
			f.dst = append(f.dst, format[0])
			format = format[2:]
			continue
		case format[0] == '}':
			f.fail(`a "}" without its "{" in the format; write "}}" for the character`)
			return
		}
		end := closingBrace(format)
		if end < 0 {
			f.fail(`a "{" without its "}" in the format; write "{{" for the character`)
			return
		}
		start := len(f.dst)
		f.field(format[1:end], depth)
		f.pay(len(f.dst)-start, 1)
		format = format[end+1:]
	}
}

// closingBrace returns the end of the field that format begins with, or -1.
func closingBrace(format string) int {
	open := 0
	for i := range len(format) {
		switch format[i] {
		case '{':
			open++
		case '}':
			if open--; open == 0 {
				return i
			}
		}
	}
	return -1
}

// field writes the value of name!conversion:specification.
func (f *fieldFormat) field(field string, depth int) {
	name, end := field, len(field)
	for i, inIndex := 0, false; i < len(field); i++ {
		if c := field[i]; c == '[' {
			inIndex = true
		} else if c == ']' {
			inIndex = false
		} else if !inIndex && (c == '!' || c == ':') {
			name, end = field[:i], i
			break
		}
	}
	v, rest := f.value(name), field[end:]
	if conversion, ok := strings.CutPrefix(rest, "!"); ok {
		if len(conversion) == 0 || strings.IndexByte("sra", conversion[0]) < 0 || len(conversion) > 1 && conversion[1] != ':' {
			f.fail("the conversion in {%.40s} must be !s, !r or !a", field)
			return
		}
		v = f.converted(v, conversion[0])
		rest = conversion[1:]
	}
	spec := strings.TrimPrefix(rest, ":")
	if strings.ContainsAny(spec, "{}") {
		spec = f.cut(func() { f.text(spec, depth+1) })
	}
	f.format(v, spec)
}

// value returns what a field names: the next argument, or the one of a number or of a
// name, or an item of it.
func (f *fieldFormat) value(name string) (v any) {
	first, path := name, ""
	if at := strings.IndexAny(name, ".["); at >= 0 {
		first, path = name[:at], name[at:]
	}
	index, isNumber := f.next, first == ""
	if isNumber {
		f.next++
		f.mixed[0] = true
	} else if strings.Trim(first, "0123456789") == "" {
		if n, err := strconv.Atoi(first); err == nil && n <= 1<<20 {
			index, isNumber = n, true
			f.mixed[1] = true
		}
	}
	known := true
	switch {
	case f.mixed[0] && f.mixed[1]:
		f.fail("a format cannot mix {} and {0}")
	case isNumber && index >= len(f.args):
		f.fail("the format has more fields than the %d arguments", len(f.args))
	case isNumber:
		v = f.args[index]
	default:
		v, known = f.named[first]
	}
	if !known {
		f.fail("there is no argument for the field {%.40s}", first)
	}
	for path != "" && f.err == nil {
		key, rest, closed := strings.Cut(path[1:], "]")
		if path[0] != '[' || !closed || key == "" {
			f.fail("the field {%.40s} can only have an index, as in {0[name]}", name)
		}
		var k any = key
		if i, err := strconv.ParseInt(key, 10, 64); err == nil {
			k = i
		}
		v = f.item(v, k, "{"+name+"}")
		path = rest
	}
	return v
}

func (w *writer) item(v, key any, written string) any {
	item, err := w.r.Item(v, key, written)
	w.check(err)
	return item
}

// cut returns what write writes and removes it again.
func (w *writer) cut(write func()) string {
	start := len(w.dst)
	write()
	text := string(w.dst[start:])
	w.dst = w.dst[:start]
	return text
}

// converted returns v as text: as printed for 's', quoted for 'r', quoted in ASCII for 'a'.
func (w *writer) converted(v any, how byte) string {
	if s, ok := v.(string); ok && how == 's' {
		return s
	}
	depth := 1
	if how == 's' {
		depth = 0
	}
	text := w.cut(func() { w.value(v, depth) })
	if how != 'a' || !w.pay(len(text), 4) {
		return text
	}
	var ascii []byte
	for _, c := range text {
		if c < utf8.RuneSelf {
			ascii = append(ascii, byte(c))
		} else {
			ascii = appendEscaped(ascii, c)
		}
	}
	return string(ascii)
}
