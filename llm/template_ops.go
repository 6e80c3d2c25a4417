package llm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/nikolalohinski/gonja/v2/tokens"
)

// number returns v as a number: as an int64 where it is a boolean or fits one.
func number(v any) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	case json.Number:
		f, _ := v.Float64() // digits, or ±Inf
		return 0, f, false, true
	}
	return 0, 0, false, false
}

var errOverflow = errors.New("the integer is too large; make one side a float with |float")

func opNegative(_ *rendering, v any, _ []any) (any, error) {
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s has no sign", article(v))
	case !isInt:
		return -f, nil
	case i == math.MinInt64:
		return nil, errOverflow
	}
	return -i, nil
}

func opPositive(_ *rendering, v any, _ []any) (any, error) {
	if _, _, _, ok := number(v); !ok {
		return nil, fmt.Errorf("%s has no sign", article(v))
	}
	return v, nil
}

var binaryOperations = map[tokens.Type]operation{
	tokens.Tilde:              opConcat,
	tokens.Addition:           opAdd,
	tokens.Subtraction:        arithmetic("-", subInt, func(a, b float64) (float64, error) { return a - b, nil }),
	tokens.Multiply:           opMultiply,
	tokens.Division:           opDivide,
	tokens.FloorDivision:      arithmetic("//", floorInt, floorFloat),
	tokens.Modulo:             opModulo,
	tokens.Power:              arithmetic("**", powInt, powFloat),
	tokens.Equals:             opEqual,
	tokens.Ne:                 func(r *rendering, v any, a []any) (any, error) { ok, err := r.equal(v, a[0], 0); return !ok, err },
	tokens.LowerThan:          ordering(func(c int) bool { return c < 0 }),
	tokens.LowerThanOrEqual:   ordering(func(c int) bool { return c <= 0 }),
	tokens.GreaterThan:        ordering(func(c int) bool { return c > 0 }),
	tokens.GreaterThanOrEqual: ordering(func(c int) bool { return c >= 0 }),
}

func isComparison(kind tokens.Type) bool {
	return slices.Contains([]tokens.Type{
		tokens.Equals, tokens.Ne, tokens.LowerThan, tokens.LowerThanOrEqual, tokens.GreaterThan, tokens.GreaterThanOrEqual,
	}, kind)
}

// arithmetic returns an operation on numbers: on two integers, or else on two floats.
func arithmetic(name string, ints func(a, b int64) (int64, error), floats func(a, b float64) (float64, error)) operation {
	return func(_ *rendering, v any, args []any) (any, error) {
		i, f, isInt, ok := number(v)
		j, g, alsoInt, alsoOK := number(args[0])
		switch {
		case !ok || !alsoOK:
			return nil, fmt.Errorf("%s %s %s is not possible; convert with |int, |float or |string", typeName(v), name, typeName(args[0]))
		case isInt && alsoInt && (name != "**" || j >= 0):
			return ints(i, j)
		}
		return floats(f, g)
	}
}

var errZero = errors.New("division by zero")

func addInt(a, b int64) (int64, error) {
	if c := a + b; (c > a) == (b > 0) {
		return c, nil
	}
	return 0, errOverflow
}

func subInt(a, b int64) (int64, error) {
	if c := a - b; (c < a) == (b > 0) {
		return c, nil
	}
	return 0, errOverflow
}

func mulInt(a, b int64) (int64, error) {
	high, low := bits.Mul64(magnitude(a), magnitude(b))
	negative := (a < 0) != (b < 0)
	switch {
	case high != 0 || low > 1<<63 || low == 1<<63 && !negative:
		return 0, errOverflow
	case negative:
		return -int64(low), nil
	}
	return int64(low), nil
}

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

func floorInt(a, b int64) (int64, error) {
	switch b {
	case 0:
		return 0, errZero
	case -1:
		return subInt(0, a)
	}
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q, nil
}

func modInt(a, b int64) (int64, error) {
	if b == 0 {
		return 0, errZero
	}
	m := a % b
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m, nil
}

func powInt(a, b int64) (result int64, err error) {
	result = 1
	for ; b > 0 && err == nil; b >>= 1 {
		if b&1 == 1 {
			if result, err = mulInt(result, a); err != nil {
				return 0, err
			}
		}
		if b > 1 {
			a, err = mulInt(a, a)
		}
	}
	return result, err
}

func powFloat(a, b float64) (float64, error) {
	if a == 0 && b < 0 {
		return 0, errZero
	}
	c := math.Pow(a, b)
	if math.IsNaN(c) || math.IsInf(c, 0) {
		return 0, fmt.Errorf("%v ** %v is no number that a float can be", a, b)
	}
	return c, nil
}

func floorFloat(a, b float64) (float64, error) {
	if b == 0 {
		return 0, errZero
	}
	return math.Floor(a / b), nil
}

func modFloat(a, b float64) (float64, error) {
	if b == 0 {
		return 0, errZero
	}
	m := math.Mod(a, b)
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m, nil
}

func opDivide(_ *rendering, v any, args []any) (any, error) {
	_, f, _, ok := number(v)
	_, g, _, alsoOK := number(args[0])
	switch {
	case !ok || !alsoOK:
		return nil, fmt.Errorf("%s / %s is not possible; convert with |int or |float", typeName(v), typeName(args[0]))
	case g == 0:
		return nil, errZero
	}
	return f / g, nil
}

var (
	addNumbers = arithmetic("+", addInt, func(a, b float64) (float64, error) { return a + b, nil })
	mulNumbers = arithmetic("*", mulInt, func(a, b float64) (float64, error) { return a * b, nil })
	modNumbers = arithmetic("%", modInt, modFloat)
)

func opAdd(r *rendering, v any, args []any) (any, error) {
	switch a := v.(type) {
	case string:
		if b, ok := args[0].(string); ok {
			if err := r.spend(len(a) + len(b)); err != nil {
				return nil, err
			}
			return a + b, nil
		}
	case []any:
		if b, ok := args[0].([]any); ok {
			if err := r.spendTimes(len(a)+len(b), itemCost); err != nil {
				return nil, err
			}
			return slices.Concat(a, b), nil
		}
	}
	return addNumbers(r, v, args)
}

func opMultiply(r *rendering, v any, args []any) (any, error) {
	a, b := v, args[0]
	if _, ok := a.(int64); ok {
		a, b = b, a
	}
	times, isInt := b.(int64)
	if isInt {
		n := int(max(0, min(times, math.MaxInt32)))
		switch a := a.(type) {
		case string:
			if err := r.spendTimes(n, len(a)); err != nil {
				return nil, err
			}
			return strings.Repeat(a, n), nil
		case []any:
			if err := r.spendTimes(n, len(a)*itemCost); err != nil {
				return nil, err
			}
			return slices.Repeat(a, n), nil
		}
	}
	return mulNumbers(r, v, args)
}

// opModulo is the remainder of numbers, and the formatting of strings: "%d" % 3.
func opModulo(r *rendering, v any, args []any) (any, error) {
	s, ok := v.(string)
	if !ok {
		return modNumbers(r, v, args)
	}
	return r.format(s, args)
}

func opConcat(r *rendering, v any, args []any) (any, error) {
	text, err := r.appendText(nil, v, 0)
	if err == nil {
		text, err = r.appendText(text, args[0], 0)
	}
	return string(text), err
}

func opEqual(r *rendering, v any, args []any) (any, error) { return r.equal(v, args[0], 0) }

// equal compares by value, as Python does: 1, 1.0 and true are equal.
func (r *rendering) equal(a, b any, depth int) (bool, error) {
	if depth > maxValueDepth {
		return false, fmt.Errorf("the value is nested deeper than %d", maxValueDepth)
	}
	if err := r.spend(stepCost); err != nil {
		return false, err
	}
	i, f, isInt, ok := number(a)
	j, g, alsoInt, alsoOK := number(b)
	if ok || alsoOK {
		if isInt && alsoInt {
			return i == j, nil
		}
		return ok && alsoOK && f == g, nil
	}
	switch a := a.(type) {
	case nil:
		return b == nil, nil
	case string:
		b, ok := b.(string)
		return ok && a == b, r.spend(len(a))
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false, nil
		}
		for i := range a {
			if same, err := r.equal(a[i], b[i], depth+1); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false, nil
		}
		for k, v := range a {
			w, ok := b[k]
			if !ok {
				return false, nil
			}
			if same, err := r.equal(v, w, depth+1); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	return a == b, nil
}

func ordering(holds func(c int) bool) operation {
	return func(r *rendering, v any, args []any) (any, error) {
		c, err := r.compare(v, args[0])
		return holds(c), err
	}
}

// compare orders numbers, strings, and lists of equal things.
func (r *rendering) compare(a, b any) (int, error) {
	if err := r.spend(stepCost); err != nil {
		return 0, err
	}
	i, f, isInt, ok := number(a)
	j, g, alsoInt, alsoOK := number(b)
	switch {
	case isInt && alsoInt:
		return cmp.Compare(i, j), nil
	case ok && alsoOK:
		return cmp.Compare(f, g), nil
	}
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			return strings.Compare(a, b), r.spend(min(len(a), len(b)))
		}
	case []any:
		if b, ok := b.([]any); ok {
			for i := range min(len(a), len(b)) {
				if same, err := r.equal(a[i], b[i], 0); err != nil {
					return 0, err
				} else if !same {
					return r.compare(a[i], b[i])
				}
			}
			return len(a) - len(b), nil
		}
	}
	return 0, fmt.Errorf("%s and %s have no order", article(a), article(b))
}

// opIn is "v in args[0]".
func opIn(r *rendering, v any, args []any) (any, error) {
	switch in := args[0].(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("%s cannot be in a string; convert it with |string", article(v))
		}
		if err := r.spend(len(in) + len(s)); err != nil {
			return nil, err
		}
		return strings.Contains(in, s), nil
	case map[string]any:
		key, ok := mapKey(v)
		if ok {
			_, ok = in[key]
		}
		return ok, nil
	case []any:
		for _, item := range in {
			if same, err := r.equal(v, item, 0); same || err != nil {
				return same, err
			}
		}
		return false, nil
	}
	return nil, fmt.Errorf("nothing can be in %s", article(args[0]))
}
