package value

import (
	"cmp"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatSpec is how one value is formatted, by the rules of Python.
type formatSpec struct {
	fill      rune
	align     byte // '<', '>', '^', '=' (after the sign), or 0 for the default of the type
	sign      byte // '+' or ' ' for positive numbers, or '-' or 0 for none there
	alternate bool // "#"
	group     byte // between thousands, or 0
	width     int
	precision int  // -1: none
	verb      byte // or 0 for the default of the type
}

// text writes a string.
func (s formatSpec) text(w *writer, text string) {
	if s.precision >= 0 {
		n := 0
		for i := range text {
			if n == s.precision {
				text = text[:i]
				break
			}
			n++
		}
	}
	s.pad(w, "", text, '<')
}

// pad writes sign and body padded to the width, with the alignment usual unless s has one.
func (s formatSpec) pad(w *writer, sign, body string, usual byte) {
	missing := max(0, s.width-utf8.RuneCountInString(sign)-utf8.RuneCountInString(body))
	if !w.pay(len(sign)+len(body), 2) || !w.pay(missing, utf8.UTFMax) {
		return
	}
	before, after := 0, 0
	switch cmp.Or(s.align, usual) {
	case '<':
		after = missing
	case '>':
		before = missing
	case '^':
		before, after = missing/2, missing-missing/2
	case '=':
		sign += strings.Repeat(string(s.fill), missing)
	}
	for _, part := range []string{strings.Repeat(string(s.fill), before), sign, body, strings.Repeat(string(s.fill), after)} {
		w.dst = append(w.dst, part...)
	}
}

// number writes a number, with its digits in groups of size if s separates groups.
func (s formatSpec) number(w *writer, negative bool, prefix, digits string, size int) {
	sign := ""
	switch {
	case negative:
		sign = "-"
	case s.sign == '+' || s.sign == ' ':
		sign = string(s.sign)
	}
	sign += prefix
	if s.fill == '0' && s.align == 0 {
		s.align = '='
	}
	if s.group != 0 {
		least := 0
		if s.fill == '0' && s.align == '=' { // the zeros are grouped too
			least = s.width - len(sign)
		}
		if !w.pay(max(least, len(digits)), 4) {
			return
		}
		digits = grouped(digits, s.group, size, least)
	}
	s.pad(w, sign, digits, '>')
}

// grouped separates the digits before the point, after adding zeros until there are least
// characters.
func grouped(digits string, separator byte, size, least int) string {
	end := strings.IndexFunc(digits, func(c rune) bool { return c == '.' || c == '%' || c == 'e' && size == 3 || c == 'E' && size == 3 })
	if end < 0 || size == 4 { // e is a digit of base 16
		end = len(digits)
	}
	n := end
	for n+(n-1)/size+len(digits)-end < least {
		n++
	}
	var b strings.Builder
	for i := range n {
		if i > 0 && (n-i)%size == 0 {
			b.WriteByte(separator)
		}
		if at := i - (n - end); at >= 0 {
			b.WriteByte(digits[at])
		} else {
			b.WriteByte('0')
		}
	}
	return b.String() + digits[end:]
}

// integer writes an integer as d, b, o, x or X.
func (s formatSpec) integer(w *writer, i *big.Int) {
	if !w.pay(1, largeCost(i)) {
		return
	}
	base, prefix, size := 10, "", 4
	switch s.verb {
	case 'b':
		base, prefix = 2, "0b"
	case 'o':
		base, prefix = 8, "0o"
	case 'x', 'X':
		base, prefix = 16, "0"+string(s.verb)
	default:
		size = 3
	}
	digits := new(big.Int).Abs(i).Text(base)
	if s.verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	if n := s.precision - len(digits); n > 0 { // as in "%.3d"
		digits = strings.Repeat("0", n) + digits
	}
	if !s.alternate {
		prefix = ""
	}
	s.number(w, i.Sign() < 0, prefix, digits, size)
}

// float writes a float as e, f, g, % or as it is printed.
func (s formatSpec) float(w *writer, f float64) {
	negative := math.Signbit(f) && !math.IsNaN(f)
	f = math.Abs(f)
	digits := s.digits(f)
	if digits[0] > '9' { // inf or nan
		s.group = 0
	} else if s.alternate && !strings.Contains(digits, ".") {
		end := len(digits)
		if at := strings.IndexAny(digits, "e%"); at >= 0 {
			end = at
		}
		digits = digits[:end] + "." + digits[end:]
	}
	if strings.IndexByte("EFG", s.verb) >= 0 {
		digits = strings.ToUpper(digits)
	}
	s.number(w, negative, "", digits, 3)
}

func (s formatSpec) digits(f float64) string {
	precision := s.precision
	if precision < 0 {
		precision = 6
	}
	if s.verb == '%' {
		s.verb = 'f'
		return s.digits(100*f) + "%"
	}
	switch {
	case math.IsInf(f, 0), math.IsNaN(f):
		return string(appendPythonFloat(nil, f))
	case s.verb == 'f' || s.verb == 'F':
		return strconv.FormatFloat(f, 'f', precision, 64)
	case s.verb == 'e' || s.verb == 'E':
		return strconv.FormatFloat(f, 'e', precision, 64)
	case s.verb == 0 && s.precision < 0:
		return string(appendPythonFloat(nil, f))
	}
	return s.general(f, max(1, precision))
}

// general is "g": with an exponent if f is very small or large. Without a verb there is a
// digit after the point.
func (s formatSpec) general(f float64, precision int) string {
	text := strconv.FormatFloat(f, 'e', precision-1, 64)
	mantissa, exponent, _ := strings.Cut(text, "e")
	exp, _ := strconv.Atoi(exponent)
	limit := precision
	if s.verb == 0 {
		limit--
	}
	trim := func(digits string) string {
		if s.alternate || !strings.Contains(digits, ".") {
			return digits
		}
		return strings.TrimSuffix(strings.TrimRight(digits, "0"), ".")
	}
	if exp < -4 || exp >= limit {
		return trim(mantissa) + "e" + exponent
	}
	digits := trim(strconv.FormatFloat(f, 'f', max(0, precision-1-exp), 64))
	if s.verb == 0 && !strings.Contains(digits, ".") {
		digits += ".0"
	}
	return digits
}

// format writes v as f"{v:text}" does.
func (w *writer) format(v any, text string) {
	if text == "" {
		w.value(v, 0)
		return
	}
	s := w.parseSpec(text)
	if str, ok := v.(string); ok {
		if s.align == '=' || s.sign != 0 || s.group != 0 || s.alternate || s.verb != 0 && s.verb != 's' {
			w.fail("the format %q is not for a string", text)
		}
		s.text(w, str)
		return
	}
	n, ok := number(v)
	switch {
	case !ok:
		w.fail("the format %q is not for %s; convert it with |string", text, article(v))
	case n.isInt && s.verb == 'c' && s.precision < 0 && s.sign == 0 && s.group == 0 && !s.alternate:
		s.character(w, n, '<')
	case n.isInt && strings.IndexByte("\x00dnboxX", s.verb) >= 0:
		if s.precision >= 0 || s.group == ',' && strings.IndexByte("boxX", s.verb) >= 0 || s.group != 0 && s.verb == 'n' {
			w.fail("the format %q is not for an integer", text)
		}
		s.integer(w, n.bigInt())
	case n.beyondFloat():
		w.check(errFloatRange)
	case s.verb == 'n' && s.group == 0:
		s.verb = 'g'
		s.float(w, n.f)
	case strings.IndexByte("\x00eEfFgG%", s.verb) < 0:
		w.fail("the format %q is not for %s", text, article(v))
	default:
		s.float(w, n.f)
	}
}

// character writes the character with the code n.
func (s formatSpec) character(w *writer, n numeric, usual byte) {
	if n.large != nil || n.i < 0 || n.i > utf8.MaxRune || !utf8.ValidRune(rune(n.i)) {
		w.fail("no character has this number")
	}
	s.pad(w, "", string(rune(n.i)), usual)
}

// parseSpec reads [[fill]align][sign][#][0][width][group][.precision][verb].
func (w *writer) parseSpec(text string) (s formatSpec) {
	all := text
	s.fill, s.precision = ' ', -1
	filled := false
	if first, size := utf8.DecodeRuneInString(text); len(text) > size && strings.IndexByte("<>^=", text[size]) >= 0 {
		s.fill, s.align, text, filled = first, text[size], text[size+1:], true
	} else if text != "" && strings.IndexByte("<>^=", text[0]) >= 0 {
		s.align, text = text[0], text[1:]
	}
	take := func(of string) (c byte) {
		if text != "" && strings.IndexByte(of, text[0]) >= 0 {
			c, text = text[0], text[1:]
		}
		return c
	}
	s.sign = take("+- ")
	s.alternate = take("#") != 0
	if !filled && take("0") != 0 {
		s.fill = '0'
	}
	s.width, text = w.leadingNumber(text, math.MaxInt32)
	s.group = take(",_")
	if take(".") != 0 {
		before := len(text)
		if s.precision, text = w.leadingNumber(text, maxPrecision); len(text) == before {
			w.fail("the format %q has no precision after the point", all)
		}
	}
	if s.verb = take("bcdeEfFgGnosxX%"); text != "" {
		w.fail("the format %q is not valid", all)
	}
	return s
}

// leadingNumber reads the number that text begins with, if any.
func (w *writer) leadingNumber(text string, most int) (n int, rest string) {
	rest = strings.TrimLeft(text, "0123456789")
	digits := text[:len(text)-len(rest)]
	if digits == "" {
		return 0, text
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n > most {
		w.fail("the width or precision %.30s is more than %d", digits, most)
		return 0, rest
	}
	return n, rest
}
