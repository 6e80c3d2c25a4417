package value

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// fieldFormat writes "{}" formats, those of str.format.
type fieldFormat struct {
	r     *Run
	args  []any
	named map[string]any
	next  int // of args, for "{}"
	mixed [2]bool
}

// methodFormat is "{} {name}".format(...).
func methodFormat(r *Run, v any, args []any) (any, error) {
	s, _ := v.(string)
	f := fieldFormat{r: r}
	f.args, f.named = freeArgs(args)
	return f.text(s, 0)
}

// text replaces the fields of format. A specification may have fields itself, one level deep.
func (f *fieldFormat) text(format string, depth int) (string, error) {
	if depth > 1 {
		return "", errors.New("the format has fields nested too deep")
	}
	var b strings.Builder
	for {
		at := strings.IndexAny(format, "{}")
		if at < 0 {
			at = len(format)
		}
		if err := f.r.Spend(StepCost + at); err != nil {
			return "", err
		}
		b.WriteString(format[:at])
		format = format[at:]
		switch {
		case format == "":
			return b.String(), nil
		case len(format) > 1 && format[0] == format[1]: // "{{" and "}}"
			b.WriteByte(format[0])
			format = format[2:]
			continue
		case format[0] == '}':
			return "", errors.New(`a "}" without its "{" in the format; write "}}" for the character`)
		}
		end := closingBrace(format)
		if end < 0 {
			return "", errors.New(`a "{" without its "}" in the format; write "{{" for the character`)
		}
		one, err := f.field(format[1:end], depth)
		if err == nil {
			err = f.r.Spend(len(one))
		}
		if err != nil {
			return "", err
		}
		b.WriteString(one)
		format = format[end+1:]
	}
}

// closingBrace returns where the field ends that begins format.
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
func (f *fieldFormat) field(field string, depth int) (string, error) {
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
	v, err := f.value(name)
	if err != nil {
		return "", err
	}
	rest := field[end:]
	if conversion, ok := strings.CutPrefix(rest, "!"); ok {
		if len(conversion) == 0 || strings.IndexByte("sra", conversion[0]) < 0 || len(conversion) > 1 && conversion[1] != ':' {
			return "", fmt.Errorf("the conversion in {%.40s} must be !s, !r or !a", field)
		}
		if v, err = f.r.converted(v, conversion[0]); err != nil {
			return "", err
		}
		rest = conversion[1:]
	}
	spec := strings.TrimPrefix(rest, ":")
	if strings.ContainsAny(spec, "{}") {
		if spec, err = f.text(spec, depth+1); err != nil {
			return "", err
		}
	}
	return f.r.formatWith(v, spec)
}

// value returns what a field names: the next argument, the one of a number or of a name, and an item of it.
func (f *fieldFormat) value(name string) (v any, err error) {
	first, path := name, ""
	if at := strings.IndexAny(name, ".["); at >= 0 {
		first, path = name[:at], name[at:]
	}
	index, isNumber := f.next, first == ""
	if isNumber {
		f.next++
		f.mixed[0] = true
	} else if n, rest, err := leadingNumber(first, 1<<20); rest == "" && err == nil {
		index, isNumber = n, true
		f.mixed[1] = true
	}
	switch {
	case f.mixed[0] && f.mixed[1]:
		return nil, errors.New("a format cannot mix {} and {0}")
	case isNumber && index >= len(f.args):
		return nil, fmt.Errorf("the format has more fields than the %d arguments", len(f.args))
	case isNumber:
		v = f.args[index]
	default:
		var ok bool
		if v, ok = f.named[first]; !ok {
			return nil, fmt.Errorf("there is no argument for the field {%.40s}", first)
		}
	}
	for path != "" {
		key, rest, closed := strings.Cut(path[1:], "]")
		if path[0] != '[' || !closed || key == "" {
			return nil, fmt.Errorf("the field {%.40s} can only have an index, as in {0[name]}", name)
		}
		var k any = key
		if i, err := strconv.ParseInt(key, 10, 64); err == nil {
			k = i
		}
		if v, err = f.r.Item(v, k, "{"+name+"}"); err != nil {
			return nil, err
		}
		path = rest
	}
	return v, nil
}

// converted returns v as text: as it is written for 's', in quotes for 'r', and of ASCII alone for 'a'.
func (r *Run) converted(v any, how byte) (string, error) {
	if how == 's' {
		return r.Text(v)
	}
	b, err := r.appendText(nil, v, 1)
	if err != nil || how == 'r' {
		return string(b), err
	}
	if err := r.SpendTimes(len(b), 4); err != nil {
		return "", err
	}
	var ascii []byte
	for _, c := range string(b) {
		if c < utf8.RuneSelf {
			ascii = append(ascii, byte(c))
		} else {
			ascii = appendEscaped(ascii, c)
		}
	}
	return string(ascii), nil
}
