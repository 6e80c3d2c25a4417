package value

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatSpec is how one value is formatted, by the rules of Python.
type formatSpec struct {
	fill      rune
	align     byte // '<', '>', '^', '=' (after the sign), or 0: as the type has it
	sign      byte // '+', ' ', or '-' and 0: only that of negative numbers
	alternate bool // "#"
	group     byte // between thousands; 0: nothing
	width     int
	precision int  // -1: none
	verb      byte // 0: as the type has it
}

// text formats a string.
func (s formatSpec) text(r *Run, text string) (string, error) {
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
	return s.pad(r, "", text, '<')
}

// pad returns sign and body at the width, aligned as said or else as usual.
func (s formatSpec) pad(r *Run, sign, body string, usual byte) (string, error) {
	if err := r.SpendTimes(len(sign)+len(body), 2); err != nil {
		return "", err
	}
	missing := s.width - utf8.RuneCountInString(sign) - utf8.RuneCountInString(body)
	if missing <= 0 {
		return sign + body, nil
	}
	if err := r.SpendTimes(missing, utf8.UTFMax); err != nil {
		return "", err
	}
	align := s.align
	if align == 0 {
		align = usual
	}
	left := 0
	switch align {
	case '>':
		left = missing
	case '^':
		left = missing / 2
	case '=':
		return sign + strings.Repeat(string(s.fill), missing) + body, nil
	}
	return strings.Repeat(string(s.fill), left) + sign + body + strings.Repeat(string(s.fill), missing-left), nil
}

// number formats the digits of a number, whose integers come in groups of size where they are separated.
func (s formatSpec) number(r *Run, negative bool, prefix, digits string, size int) (string, error) {
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
		if s.fill == '0' && s.align == '=' { // the zeros are separated too
			least = s.width - len(sign)
		}
		if err := r.SpendTimes(max(least, len(digits)), 4); err != nil {
			return "", err
		}
		digits = grouped(digits, s.group, size, least)
	}
	return s.pad(r, sign, digits, '>')
}

// grouped separates the digits before a point, with zeros in front until there are least characters.
func grouped(digits string, separator byte, size, least int) string {
	end := strings.IndexFunc(digits, func(c rune) bool { return c == '.' || c == '%' || c == 'e' && size == 3 || c == 'E' && size == 3 })
	if end < 0 || size == 4 { // base 16 has the digit e
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

// integer formats an integer as d, b, o, x or X.
func (s formatSpec) integer(r *Run, i *big.Int) (string, error) {
	if err := r.Spend(largeCost(i)); err != nil {
		return "", err
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
	if n := s.precision - len(digits); n > 0 { // of "%.3d"
		digits = strings.Repeat("0", n) + digits
	}
	if !s.alternate {
		prefix = ""
	}
	return s.number(r, i.Sign() < 0, prefix, digits, size)
}

// float formats a float as e, f, g, % or as it is written without a format.
func (s formatSpec) float(r *Run, f float64) (string, error) {
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
	return s.number(r, negative, "", digits, 3)
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

// general is "g": with an exponent where it is far from 0. Without a verb there is a digit after the point.
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

// formatWith formats v as the text of a specification says, as in f"{v:spec}".
func (r *Run) formatWith(v any, text string) (string, error) {
	if text == "" {
		return r.Text(v)
	}
	s, err := parseSpec(text)
	if err != nil {
		return "", err
	}
	if str, ok := v.(string); ok {
		if s.align == '=' || s.sign != 0 || s.group != 0 || s.alternate || s.verb != 0 && s.verb != 's' {
			return "", fmt.Errorf("the format %q is not for a string", text)
		}
		return s.text(r, str)
	}
	n, ok := number(v)
	switch {
	case !ok:
		return "", fmt.Errorf("the format %q is not for %s; convert it with |string", text, article(v))
	case n.isInt && s.verb == 'c' && s.precision < 0 && s.sign == 0 && s.group == 0 && !s.alternate:
		return s.character(r, n, '<')
	case n.isInt && strings.IndexByte("\x00dnboxX", s.verb) >= 0:
		if s.precision >= 0 || s.group == ',' && strings.IndexByte("boxX", s.verb) >= 0 || s.group != 0 && s.verb == 'n' {
			return "", fmt.Errorf("the format %q is not for an integer", text)
		}
		return s.integer(r, n.bigInt())
	case n.beyondFloat():
		return "", errFloatRange
	case s.verb == 'n' && s.group == 0:
		s.verb = 'g'
	case strings.IndexByte("\x00eEfFgG%", s.verb) < 0 || s.verb == 'n':
		return "", fmt.Errorf("the format %q is not for %s", text, article(v))
	}
	return s.float(r, n.f)
}

// character formats the character of a code.
func (s formatSpec) character(r *Run, n numeric, usual byte) (string, error) {
	if n.large != nil || n.i < 0 || n.i > utf8.MaxRune || !utf8.ValidRune(rune(n.i)) {
		return "", errors.New("no character has this number")
	}
	return s.pad(r, "", string(rune(n.i)), usual)
}

// parseSpec reads [[fill]align][sign][#][0][width][group][.precision][verb].
func parseSpec(text string) (s formatSpec, err error) {
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
	if s.width, text, err = leadingNumber(text, math.MaxInt32); err != nil {
		return s, err
	}
	s.group = take(",_")
	if take(".") != 0 {
		before := len(text)
		if s.precision, text, err = leadingNumber(text, maxFormatWidth); err != nil {
			return s, err
		} else if len(text) == before {
			return s, fmt.Errorf("the format %q has no precision after the point", all)
		}
	}
	if s.verb = take("bcdeEfFgGnosxX%"); text != "" {
		return s, fmt.Errorf("the format %q is not valid", all)
	}
	return s, nil
}

// leadingNumber cuts the digits that begin text, if any.
func leadingNumber(text string, most int) (n int, rest string, err error) {
	end := strings.IndexFunc(text, func(c rune) bool { return c < '0' || c > '9' })
	if end < 0 {
		end = len(text)
	}
	if end == 0 {
		return 0, text, nil
	}
	n, err = strconv.Atoi(text[:end])
	if err != nil || n > most {
		return 0, "", fmt.Errorf("the width or precision %s is more than %d", text[:min(end, 30)], most)
	}
	return n, text[end:], nil
}
