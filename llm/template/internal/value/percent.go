package value

import (
	"strings"
	"unicode/utf8"
)

// percentFormat writes Python's format % values, with its directives d, i, u, s, r, a, c,
// f, e, g, x, o, their capitals, and %. A tuple has a value for each directive, and a
// mapping the values for %(name)s.
func (w *writer) percentFormat(format string, values any) {
	args := []any{values}
	if kindOf(values) == kindTuple {
		args, _ = itemsOf(values)
	}
	_, named := values.(map[string]any)
	_, list := values.([]any)
	for {
		text, rest, found := strings.Cut(format, "%")
		if !w.pay(StepCost+len(text), 1) {
			return
		}
		w.dst = append(w.dst, text...)
		if !found {
			break
		}
		if literal, ok := strings.CutPrefix(rest, "%"); ok {
			w.dst = append(w.dst, '%')
			format = literal
			continue
		}
		if strings.HasPrefix(rest, "(") {
			name, after, closed := strings.Cut(rest[1:], ")")
			if !closed || !named {
				w.fail("%%(%.30s needs a name in brackets and a mapping", name)
				return
			}
			// As in Python, no directive without a name can follow.
			rest, args = after, []any{w.item(values, name, "%("+name+")")}
		}
		format, args = w.directive(rest, args)
	}
	if len(args) > 0 && !named && !list { // as in Python, which takes a list for a mapping
		w.fail("there are more values than directives")
	}
}

// directive formats one value by the directive that begins text, and returns the rest and
// the values that are left.
func (w *writer) directive(text string, args []any) (rest string, left []any) {
	s := formatSpec{fill: ' ', precision: -1}
	rest = strings.TrimLeft(text, "-+ #0")
	for _, c := range text[:len(text)-len(rest)] {
		switch c {
		case '-':
			s.align = '<'
		case '+':
			s.sign = '+'
		case ' ':
			s.sign = max(s.sign, ' ')
		case '#':
			s.alternate = true
		case '0':
			s.fill = '0'
		}
	}
	s.width, rest = w.leadingNumber(rest, 1<<30)
	if after, ok := strings.CutPrefix(rest, "."); ok {
		s.precision, rest = w.leadingNumber(after, maxPrecision)
	}
	rest = strings.TrimLeft(rest, "hlL") // sizes, which have no meaning in Python
	switch {
	case rest == "":
		w.fail("the format ends within a directive; write %%%% for a percent sign")
		return "", nil
	case len(args) == 0:
		w.fail("there are fewer values than directives")
		return "", nil
	}
	s.verb = rest[0]
	w.percent(s, args[0])
	return rest[1:], args[1:]
}

// percent formats v by a directive.
func (w *writer) percent(s formatSpec, v any) {
	isNumeric := strings.IndexByte("diuxXoeEfFgG", s.verb) >= 0
	if !isNumeric || s.align == '<' {
		s.fill = ' '
	}
	if s.align == 0 && s.fill == ' ' {
		s.align = '>'
	}
	n, ok := number(v)
	switch {
	case strings.IndexByte("sra", s.verb) >= 0:
		s.text(w, w.converted(v, s.verb))
	case s.verb == 'c':
		s.precision = -1
		if text, isText := v.(string); isText && utf8.RuneCountInString(text) == 1 {
			s.text(w, text)
		} else if ok && n.isInt {
			s.character(w, n, '>')
		} else {
			w.fail("%%c needs a character or an integer, not %s", article(v))
		}
	case !isNumeric:
		w.fail("the directive %%%s is not available", string(rune(s.verb)))
	case !ok:
		w.fail("%%%c needs a number, not %s", s.verb, article(v))
	case strings.IndexByte("xXo", s.verb) >= 0 && !n.isInt:
		w.fail("%%%c needs an integer, not %s", s.verb, article(v))
	case strings.IndexByte("diuxXo", s.verb) >= 0:
		if !n.isInt {
			whole, err := truncated(n.f)
			w.check(err)
			n, _ = number(whole)
		}
		s.integer(w, n.bigInt())
	case n.beyondFloat():
		w.check(errFloatRange)
	default:
		s.float(w, n.f)
	}
}
