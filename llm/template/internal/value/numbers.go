package value

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
)

// Integers beyond int64 are a [json.Number], as in a row, and a [big.Int] during a
// computation. The number of their digits is limited to what Python prints
// (sys.int_info.default_max_str_digits).
const (
	MaxDigits      = 4300
	maxIntegerBits = 14285 // of the largest integer of MaxDigits
	maxExactFloat  = 1 << 53
)

// numeric is a value as a number: an integer, in i or large, or a float.
type numeric struct {
	isInt bool
	i     int64
	large *big.Int // nil means that the integer is i
	f     float64  // for an integer, the nearest one or ±Inf
}

// number returns v as a number, if it is one. Of an integer with too many digits only f
// is set.
func number(v any) (n numeric, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return numeric{isInt: true, i: 1, f: 1}, true
		}
		return numeric{isInt: true}, true
	case int64:
		return numeric{isInt: true, i: v, f: float64(v)}, true
	case float64:
		return numeric{f: v}, true
	case json.Number:
		// Such a number is not parsed: a loop may compare an integer of a million digits a
		// million times.
		if len(v) > MaxDigits+1 {
			n.f = math.Inf(1)
			if v[0] == '-' {
				n.f = math.Inf(-1)
			}
			return n, true
		}
		n.f, _ = v.Float64() // digits, or ±Inf
		n.large, n.isInt = new(big.Int).SetString(v.String(), 10)
		return n, true
	}
	return n, false
}

// bigInt returns the integer as a big one, which must not be modified.
func (n numeric) bigInt() *big.Int {
	if n.large != nil {
		return n.large
	}
	return big.NewInt(n.i)
}

// beyondFloat reports whether n is an integer too large for a float.
func (n numeric) beyondFloat() bool { return n.isInt && math.IsInf(n.f, 0) }

// fits reports whether the integer is exactly a float.
func (n numeric) fits() bool { return n.large == nil && magnitude(n.i) <= maxExactFloat }

var (
	errOverflow   = fmt.Errorf("the integer has more than %d digits", MaxDigits)
	errZero       = errors.New("division by zero")
	errFloatRange = errors.New("the integer is too large for a float")
)

// integer returns i as a value.
func integer(i *big.Int) (any, error) {
	if i.IsInt64() {
		return i.Int64(), nil
	}
	if i.BitLen() > maxIntegerBits {
		return nil, errOverflow
	}
	digits := i.String()
	if len(digits) > MaxDigits+1 || len(digits) > MaxDigits && digits[0] != '-' {
		return nil, errOverflow
	}
	return json.Number(digits), nil
}

// truncated returns the integer of a float without its fraction.
func truncated(f float64) (any, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%s is not an integer", appendPythonFloat(nil, f))
	}
	i, _ := big.NewFloat(f).Int(nil)
	return integer(i)
}

// compareNumbers returns -1, 0 or 1, or unordered if one is NaN. No integer is rounded to
// a float.
func compareNumbers(a, b numeric) int {
	switch {
	case a.isInt && b.isInt:
		if a.large == nil && b.large == nil {
			return cmp.Compare(a.i, b.i)
		}
		return a.bigInt().Cmp(b.bigInt())
	case math.IsNaN(a.f) || math.IsNaN(b.f):
		return unordered
	case a.isInt && math.IsInf(b.f, 0): // an integer is finite even if the nearest float is not
		return cmp.Compare(0, b.f)
	case a.isInt && !a.fits():
		return new(big.Float).SetInt(a.bigInt()).Cmp(big.NewFloat(b.f))
	case b.isInt && (!b.fits() || math.IsInf(a.f, 0)):
		return -compareNumbers(b, a)
	}
	return cmp.Compare(a.f, b.f)
}

// unordered is the result of a comparison with NaN: neither "<", "==" nor ">" holds.
const unordered = 2

// Negative is "-v".
func Negative(_ *Run, v any, _ []any) (any, error) {
	n, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s has no sign", article(v))
	case !n.isInt:
		return -n.f, nil
	case n.large != nil || n.i == math.MinInt64:
		return integer(new(big.Int).Neg(n.bigInt()))
	}
	return -n.i, nil
}

// Positive is "+v".
func Positive(_ *Run, v any, _ []any) (any, error) {
	n, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s has no sign", article(v))
	case n.isInt && n.large == nil:
		return n.i, nil // a boolean is an integer
	}
	return v, nil
}

// operands returns two numbers for the operation called name and pays for large ones.
func (r *Run) operands(name string, v, w any) (a, b numeric, err error) {
	a, ok := number(v)
	b, alsoOK := number(w)
	switch {
	case !ok || !alsoOK:
		return a, b, fmt.Errorf("%s %s %s is not possible; convert with |int, |float or |string", typeName(v), name, typeName(w))
	case !a.isInt && typeName(v) == "integer", !b.isInt && typeName(w) == "integer":
		return a, b, errOverflow
	}
	return a, b, r.Spend(largeCost(a.large) + largeCost(b.large))
}

// largeCost is the cost of a large integer in an operation, from reading it to writing
// the result.
func largeCost(i *big.Int) int {
	if i == nil {
		return 0
	}
	return 4 * i.BitLen()
}

// arithmetic returns an operation on numbers: on two integers or, if one is a float, on
// two floats. ints is used up to the magnitude small, where it cannot overflow. None of
// the three is called with the divisor 0.
func arithmetic(name string, small uint64, ints func(a, b int64) int64, bigs func(z, a, b *big.Int) *big.Int, floats func(a, b float64) float64) Operation {
	divides := name == "//" || name == "%"
	return func(r *Run, v any, args []any) (any, error) {
		a, b, err := r.operands(name, v, args[0])
		bothInts := a.isInt && b.isInt
		switch {
		case err != nil:
			return nil, err
		case !bothInts && (a.beyondFloat() || b.beyondFloat()):
			return nil, errFloatRange
		case divides && b.f == 0:
			return nil, errZero
		case !bothInts:
			return floats(a.f, b.f), nil
		case a.large == nil && b.large == nil && magnitude(a.i) <= small && magnitude(b.i) <= small:
			return ints(a.i, b.i), nil
		}
		return integer(bigs(new(big.Int), a.bigInt(), b.bigInt()))
	}
}

var (
	addNumbers   = arithmetic("+", 1<<61, func(a, b int64) int64 { return a + b }, (*big.Int).Add, func(a, b float64) float64 { return a + b })
	subNumbers   = arithmetic("-", 1<<61, func(a, b int64) int64 { return a - b }, (*big.Int).Sub, func(a, b float64) float64 { return a - b })
	mulNumbers   = arithmetic("*", 1<<31, func(a, b int64) int64 { return a * b }, (*big.Int).Mul, func(a, b float64) float64 { return a * b })
	floorNumbers = arithmetic("//", 1<<61, floorInt, floorBig, floorFloat)
	modNumbers   = arithmetic("%", 1<<61, modInt, modBig, modFloat)
)

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

func floorInt(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

func modInt(a, b int64) int64 {
	m := a % b
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m
}

func floorBig(z, a, b *big.Int) *big.Int {
	if b.Sign() < 0 { // Div rounds down for a positive divisor
		a, b = new(big.Int).Neg(a), new(big.Int).Neg(b)
	}
	return z.Div(a, b)
}

func modBig(z, a, b *big.Int) *big.Int {
	if z.Mod(a, b); b.Sign() < 0 && z.Sign() != 0 { // Mod is never negative
		z.Add(z, b)
	}
	return z
}

// floorFloat is a // b with the rounding and the signs of Python: -0.0 too.
func floorFloat(a, b float64) float64 {
	m := math.Mod(a, b)
	q := (a - m) / b
	if m != 0 && (m < 0) != (b < 0) {
		q--
	}
	if q == 0 {
		return math.Copysign(0, a/b)
	}
	floor := math.Floor(q)
	if q-floor > 0.5 { // a - m was rounded
		floor++
	}
	return floor
}

// modFloat is a % b, which has the sign of b.
func modFloat(a, b float64) float64 {
	m := math.Mod(a, b)
	switch {
	case m == 0:
		return math.Copysign(0, b)
	case (m < 0) != (b < 0):
		m += b
	}
	return m
}

// opDivide is v / args[0], always a float: for integers the one nearest to the quotient.
func opDivide(r *Run, v any, args []any) (any, error) {
	a, b, err := r.operands("/", v, args[0])
	switch {
	case err != nil:
		return nil, err
	case b.f == 0:
		return nil, errZero
	case a.isInt && b.isInt && a.f != 0 && (!a.fits() || !b.fits()):
		f, _ := new(big.Rat).SetFrac(a.bigInt(), b.bigInt()).Float64()
		if math.IsInf(f, 0) {
			return nil, errFloatRange
		}
		return f, nil
	case a.beyondFloat(), b.beyondFloat():
		return nil, errFloatRange
	}
	return a.f / b.f, nil
}

// opPower is v ** args[0]: for integers an integer, unless the exponent is negative.
func opPower(r *Run, v any, args []any) (any, error) {
	a, b, err := r.operands("**", v, args[0])
	switch {
	case err != nil:
		return nil, err
	case a.isInt && b.isInt && b.f >= 0:
		return r.powInt(a, b)
	case a.beyondFloat(), b.beyondFloat():
		return nil, errFloatRange
	}
	return powFloat(a.f, b.f)
}

func (r *Run) powInt(a, b numeric) (any, error) {
	base, exponent := a.bigInt(), b.i
	switch {
	case base.BitLen() > 1 && b.f*float64(base.BitLen()-1) > maxIntegerBits:
		return nil, errOverflow
	// For -1, 0 and 1 it only matters whether the exponent is odd.
	case base.BitLen() <= 1 && b.f > 0:
		exponent = 2 - int64(b.bigInt().Bit(0))
	}
	z := new(big.Int).Exp(base, big.NewInt(exponent), nil)
	if err := r.Spend(largeCost(z)); err != nil {
		return nil, err
	}
	return integer(z)
}

// powFloat is a ** b. If b is a whole number, the result is the nearest float, which
// [math.Pow] may miss.
func powFloat(a, b float64) (float64, error) {
	if a == 0 && b < 0 {
		return 0, errZero
	}
	c := math.Pow(a, b)
	if math.IsInf(a, 0) || math.IsInf(b, 0) || math.IsNaN(a) || math.IsNaN(b) {
		return c, nil
	}
	if n := math.Abs(b); a != 0 && n == math.Trunc(n) && n <= math.MaxInt32 {
		c = powWhole(a, uint32(n), b < 0)
	}
	if math.IsNaN(c) || math.IsInf(c, 0) {
		return 0, fmt.Errorf("%v ** %v is not a number that a float can hold", a, b)
	}
	return c, nil
}

// powWhole is a ** n, or 1 / a ** n, by squaring, with enough precision for the
// intermediate results.
func powWhole(a float64, n uint32, inverse bool) float64 {
	const precision = 192
	z := new(big.Float).SetPrec(precision).SetInt64(1)
	for square := new(big.Float).SetPrec(precision).SetFloat64(a); n > 0; n >>= 1 {
		if n&1 == 1 {
			z.Mul(z, square)
		}
		square.Mul(square, square)
	}
	if inverse {
		z.Quo(new(big.Float).SetPrec(precision).SetInt64(1), z)
	}
	f, _ := z.Float64()
	return f
}
