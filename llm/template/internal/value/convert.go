package value

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// plainDigits replaces the decimal digits of every script by ASCII digits and removes
// single underscores between digits, as Python's int and float do: "1_0" is "10". It
// fails if there is another underscore.
func plainDigits(s string) (string, bool) {
	if isASCII(s) && !strings.Contains(s, "_") {
		return s, true
	}
	var b strings.Builder
	alnum := false // whether the character before is
	for i, c := range s {
		if c == '_' {
			next := strings.IndexFunc(s[i+1:], func(c rune) bool { return c != '_' && isAlnum(c) })
			if !alnum || next != 0 {
				return "", false
			}
			alnum = false
			continue
		}
		alnum = isAlnum(c)
		b.WriteRune(plainDigit(c))
	}
	return b.String(), true
}

func plainDigit(c rune) rune {
	if c < 0x80 || !unicode.IsDigit(c) {
		return c
	}
	// The digits of a script are consecutive, from 0; adjacent scripts have ten each.
	before := rune(0)
	for unicode.IsDigit(c - before - 1) {
		before++
	}
	return '0' + before%10
}

// parseFloat reads a float as Python's float does: " 1_0.5 " is 10.5 and "inf" is infinite.
func parseFloat(s string) (float64, bool) {
	s, ok := plainDigits(strings.TrimFunc(s, IsSpace))
	if !ok || strings.ContainsAny(s, "xXpP") { // Go accepts hexadecimal floats
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

// parseInt reads an integer as Python's int does. In base 0 the prefix decides: "0x1f" is
// 31 and "10" is ten, while "010" is refused, which could mean eight or ten.
func parseInt(s string, base int64) (any, bool) {
	s, ok := plainDigits(strings.TrimFunc(s, IsSpace))
	if !ok || base != 0 && (base < 2 || base > 36) {
		return nil, false
	}
	sign := ""
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		sign, s = s[:1], s[1:]
	}
	if len(s) > 2 && s[0] == '0' {
		prefix := map[byte]int64{'b': 2, 'o': 8, 'x': 16}[s[1]|0x20]
		switch {
		case prefix != 0 && (base == 0 || base == prefix):
			base, s = prefix, s[2:]
		case base == 0 && strings.Trim(s, "0") != "":
			return nil, false
		}
	}
	if base == 0 {
		base = 10
	}
	if s == "" || len(s) > MaxDigits || s[0] == '+' || s[0] == '-' || s[0] == '_' {
		return nil, false
	}
	i, ok := new(big.Int).SetString(sign+s, int(base))
	if !ok {
		return nil, false
	}
	v, err := integer(i)
	return v, err == nil
}

// filterFloat is |float(default). What is no number becomes the default, or 0.0.
func filterFloat(r *Run, v any, args []any) (any, error) {
	if s, ok := v.(string); ok {
		if err := r.SpendTimes(len(s), 4); err != nil { // even if the text is not a number
			return nil, err
		}
		if f, ok := parseFloat(s); ok {
			return f, nil
		}
	}
	if n, ok := number(v); ok {
		if _, isFloat := v.(float64); !isFloat && math.IsInf(n.f, 0) {
			return nil, errFloatRange
		}
		return n.f, nil
	}
	if args[0] == any(Missing{}) {
		return 0.0, nil
	}
	return args[0], nil
}

// filterInt is |int(default, base). What is no number becomes the default, or 0. A text
// with a fraction is cut, as in Jinja: "3.9" is 3. Reading digits takes time that grows
// faster than their number, so each byte costs 16 and not 1.
func filterInt(r *Run, v any, args []any) (any, error) {
	if s, ok := v.(string); ok {
		if err := r.SpendTimes(len(s), 16); err != nil {
			return nil, err
		}
		if i, ok := parseInt(s, intOr(args[1], 10)); ok {
			return i, nil
		}
		if f, ok := parseFloat(s); ok && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return truncated(f)
		}
	}
	switch f, isFloat := v.(float64); {
	case isFloat && !math.IsNaN(f):
		return truncated(f)
	case !isFloat:
		if _, ok := number(v); ok {
			return Positive(r, v, nil)
		}
	}
	if args[0] == any(Missing{}) {
		return int64(0), nil
	}
	return args[0], nil
}

// filterRound is |round(precision, method). The method common rounds a half to the even
// neighbour, as Python does: 2.5 becomes 2.0 and 3.5 becomes 4.0. A negative precision
// rounds to tens: 1234|round(-2) is 1200.
func filterRound(r *Run, v any, args []any) (any, error) {
	n, ok := number(v)
	precision, method := intOr(args[0], 0), textOr(args[1], "common")
	switch {
	case !ok:
		return nil, fmt.Errorf("%s is not a number", article(v))
	case precision < -300 || precision > 300:
		return nil, errors.New("the precision must be between -300 and 300")
	}
	if err := r.SpendTimes(largeCost(n.large), 4); err != nil {
		return nil, err
	}
	switch method {
	case "ceil", "floor":
		return roundTo(r, v, precision, method)
	case "common":
	default:
		return nil, fmt.Errorf(`the method must be "common", "ceil" or "floor", not %q`, method)
	}
	switch {
	case n.isInt && precision >= 0:
		return Positive(r, v, nil)
	case n.isInt:
		return integer(roundEven(new(big.Rat).SetInt(n.bigInt()), -precision))
	case math.IsInf(n.f, 0) || math.IsNaN(n.f):
		return n.f, nil
	case precision < 0:
		f, _ := new(big.Float).SetInt(roundEven(new(big.Rat).SetFloat64(n.f), -precision)).Float64()
		return math.Copysign(f, n.f), nil
	}
	// Rounds the exact decimal value: 0.285 is below the half, 0.5 rounds to the even 0.
	f, _ := strconv.ParseFloat(strconv.FormatFloat(n.f, 'f', int(precision), 64), 64)
	return f, nil
}

// roundEven returns v rounded to a multiple of 10**digits, a half to the even one: of 250
// and two digits it is 200. With v = n/d in such units, the nearest integer is
// floor(v + 1/2) = floor((2n + d) / 2d), and without a remainder v was at a half.
func roundEven(v *big.Rat, digits int64) *big.Int {
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(digits), nil)
	v = new(big.Rat).Quo(v, new(big.Rat).SetInt(unit))

	two := big.NewInt(2)
	above := new(big.Int).Mul(v.Num(), two)
	above.Add(above, v.Denom())
	below := new(big.Int).Mul(v.Denom(), two)
	q, m := new(big.Int).DivMod(above, below, new(big.Int))
	if m.Sign() == 0 && q.Bit(0) == 1 { // a half, rounded up
		q.Sub(q, big.NewInt(1))
	}
	return q.Mul(q, unit)
}

// roundTo rounds up or down as Jinja does: func(value * 10**precision) / 10**precision.
func roundTo(r *Run, v any, precision int64, method string) (any, error) {
	scale, err := opPower(r, int64(10), []any{precision})
	if err != nil {
		return nil, err
	}
	if v, err = mulNumbers(r, v, []any{scale}); err != nil {
		return nil, err
	}
	if f, ok := v.(float64); ok {
		if f = math.Floor(f); method == "ceil" {
			f = math.Ceil(v.(float64)) //nolint:forcetypeassert // as above
		}
		if v, err = truncated(f); err != nil {
			return nil, err
		}
	}
	return opDivide(r, v, []any{scale})
}
