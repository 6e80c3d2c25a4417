package value

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// formatPercent is Python's format % values, of its directives d, i, u, s, r, a, c, f, e, g, x, o, those in capitals,
// and %. A tuple has a value for each directive, a mapping those of %(name)s.
func (r *Run) formatPercent(format string, values any) (string, error) {
	args := []any{values}
	if kindOf(values) == kindTuple {
		args, _ = itemsOf(values)
	}
	_, named := values.(map[string]any)
	_, list := values.([]any)
	var b strings.Builder
	for {
		text, rest, found := strings.Cut(format, "%")
		if err := r.Spend(StepCost + len(text)); err != nil {
			return "", err
		}
		b.WriteString(text)
		if !found {
			break
		}
		if literal, ok := strings.CutPrefix(rest, "%"); ok {
			b.WriteByte('%')
			format = literal
			continue
		}
		if strings.HasPrefix(rest, "(") {
			name, after, closed := strings.Cut(rest[1:], ")")
			if !closed || !named {
				return "", fmt.Errorf("%%(%.30s needs a name in brackets and a mapping", name)
			}
			v, err := r.Item(values, name, "%("+name+")")
			if err != nil {
				return "", err
			}
			rest, args = after, []any{v} // as in Python, no directive without a name can follow
		}
		one, tail, left, err := r.directive(rest, args)
		if err != nil {
			return "", err
		}
		b.WriteString(one)
		format, args = tail, left
	}
	if len(args) > 0 && !named && !list { // as in Python, which takes a list for a mapping
		return "", errors.New("there are more values than directives")
	}
	return b.String(), nil
}

// directive formats one value as the directive says that begins text, and returns the rest and the values
// that are left.
func (r *Run) directive(text string, args []any) (one, rest string, left []any, err error) {
	s := formatSpec{fill: ' ', precision: -1}
	flags := len(text) - len(strings.TrimLeft(text, "-+ #0"))
	for _, c := range text[:flags] {
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
	if s.width, rest, err = leadingNumber(text[flags:], 1<<30); err != nil {
		return "", "", nil, err
	}
	if after, ok := strings.CutPrefix(rest, "."); ok {
		if s.precision, rest, err = leadingNumber(after, maxFormatWidth); err != nil {
			return "", "", nil, err
		}
	}
	rest = strings.TrimLeft(rest, "hlL") // sizes, which have no meaning in Python
	switch {
	case rest == "":
		return "", "", nil, errors.New("the format ends within a directive; write %% for a percent sign")
	case len(args) == 0:
		return "", "", nil, errors.New("there are fewer values than directives")
	}
	s.verb = rest[0]
	one, err = r.percent(s, args[0])
	return one, rest[1:], args[1:], err
}

// percent formats v as a directive says.
func (r *Run) percent(s formatSpec, v any) (string, error) {
	if strings.IndexByte("sra", s.verb) >= 0 {
		text, err := r.converted(v, s.verb)
		if err != nil {
			return "", err
		}
		s.fill = ' '
		return s.alignRight().text(r, text)
	}
	n, ok := number(v)
	if s.verb == 'c' {
		s.fill, s.precision = ' ', -1
		if str, isText := v.(string); isText && utf8.RuneCountInString(str) == 1 {
			return s.alignRight().text(r, str)
		}
		if !ok || !n.isInt {
			return "", fmt.Errorf("%%c needs a character or an integer, not %s", article(v))
		}
		return s.character(r, n, '>')
	}
	if s.align == '<' {
		s.fill = ' '
	}
	switch {
	case strings.IndexByte("diuxXoeEfFgG", s.verb) < 0:
		return "", fmt.Errorf("the directive %%%s is not available", string(rune(s.verb)))
	case !ok:
		return "", fmt.Errorf("%%%c needs a number, not %s", s.verb, article(v))
	case strings.IndexByte("xXo", s.verb) >= 0 && !n.isInt:
		return "", fmt.Errorf("%%%c needs an integer, not %s", s.verb, article(v))
	case strings.IndexByte("diuxXo", s.verb) >= 0:
		i := n.bigInt()
		if !n.isInt {
			whole, err := truncated(n.f)
			if err != nil {
				return "", err
			}
			n, _ = number(whole)
			i = n.bigInt()
		}
		return s.integer(r, i)
	case n.beyondFloat():
		return "", errFloatRange
	}
	return s.float(r, n.f)
}

// alignRight returns s with the alignment that a directive has without "-".
func (s formatSpec) alignRight() formatSpec {
	if s.align == 0 {
		s.align = '>'
	}
	return s
}
