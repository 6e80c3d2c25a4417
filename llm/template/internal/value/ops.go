package value

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Operators are the binary operators except comparisons.
var Operators = map[string]Operation{
	"~":  opConcat,
	"+":  opAdd,
	"-":  subNumbers,
	"*":  opMultiply,
	"/":  opDivide,
	"//": floorNumbers,
	"%":  opModulo,
	"**": opPower,
}

// Comparisons are the operators that can be chained, as in a < b <= c.
var Comparisons = map[string]Operation{
	"in":     opIn,
	"not in": opNotIn,
	"==":     opEqual,
	"!=":     opNotEqual,
	"<":      ordering(func(c int) bool { return c < 0 }),
	"<=":     ordering(func(c int) bool { return c <= 0 }),
	">":      ordering(func(c int) bool { return c > 0 }),
	">=":     ordering(func(c int) bool { return c >= 0 }),
}

// opAdd joins two strings or two sequences of one kind, and adds numbers. As in Python, a
// list and a tuple cannot be joined.
func opAdd(r *Run, v any, args []any) (any, error) {
	if a, ok := v.(string); ok {
		if b, ok := args[0].(string); ok {
			return a + b, r.Spend(len(a) + len(b))
		}
	}
	if a, b, ok := bothSequences(v, args[0]); ok {
		if err := r.SpendTimes(len(a)+len(b), ItemCost); err != nil {
			return nil, err
		}
		return likeSequence(v, slices.Concat(a, b)), nil
	}
	return addNumbers(r, v, args)
}

// opMultiply repeats a string or a sequence, in either order ("ab" * 2 and 2 * "ab" are
// "abab"), and multiplies numbers.
func opMultiply(r *Run, v any, args []any) (any, error) {
	a, b := v, args[0]
	if _, ok := number(a); ok {
		a, b = b, a
	}
	if times, ok := number(b); ok && times.isInt && times.large == nil {
		n := int(max(0, min(times.i, math.MaxInt32)))
		if a, ok := a.(string); ok {
			if err := r.SpendTimes(n, len(a)); err != nil {
				return nil, err
			}
			return strings.Repeat(a, n), nil
		}
		if items, ok := sequence(a); ok {
			if err := r.SpendTimes(n, len(items)*ItemCost); err != nil {
				return nil, err
			}
			return likeSequence(a, slices.Repeat(items, n)), nil
		}
	}
	return mulNumbers(r, v, args)
}

// opModulo is the remainder of numbers, and the formatting of strings: "%d" % 3.
func opModulo(r *Run, v any, args []any) (any, error) {
	s, ok := v.(string)
	if !ok {
		return modNumbers(r, v, args)
	}
	return r.written(func(w *writer) { w.percentFormat(s, args[0]) })
}

func opConcat(r *Run, v any, args []any) (any, error) {
	w := writer{r: r}
	w.value(v, 0)
	w.value(args[0], 0)
	return string(w.dst), w.err
}

func opEqual(r *Run, v any, args []any) (any, error) { return r.equal(v, args[0], 0) }

func opNotEqual(r *Run, v any, args []any) (any, error) {
	same, err := r.equal(v, args[0], 0)
	return !same, err
}

// equal compares by value, as Python does: 1, 1.0 and true are equal.
func (r *Run) equal(a, b any, depth int) (bool, error) {
	if depth > maxValueDepth {
		return false, fmt.Errorf("the value is nested deeper than %d", maxValueDepth)
	}
	if err := r.Spend(StepCost); err != nil {
		return false, err
	}
	if a, ok := a.(json.Number); ok {
		if b, ok := b.(json.Number); ok { // equal integers have the same digits
			return a == b, r.Spend(len(a))
		}
	}
	m, ok := number(a)
	n, alsoOK := number(b)
	if ok || alsoOK {
		return ok && alsoOK && compareNumbers(m, n) == 0, r.Spend(largeCost(m.large) + largeCost(n.large))
	}
	switch a := a.(type) {
	case nil:
		return b == nil, nil
	case string:
		b, ok := b.(string)
		return ok && a == b, r.Spend(len(a))
	case []any, *series:
		return r.equalItems(a, b, depth)
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

// equalItems compares two lists, or two series of one kind.
func (r *Run) equalItems(a, b any, depth int) (bool, error) {
	if kindOf(a) == kindValues { // as in Python, equal only to itself
		return a == b, nil
	}
	items, _ := itemsOf(a)
	others, ok := itemsOf(b)
	if !ok || kindOf(a) != kindOf(b) || len(items) != len(others) {
		return false, nil
	}
	for i := range items {
		if same, err := r.equal(items[i], others[i], depth+1); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// ordering returns a comparison: holds takes the result of compare, unless it is unordered.
func ordering(holds func(c int) bool) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		c, err := r.compare(v, args[0])
		return c != unordered && holds(c), err
	}
}

// ErrOrder means that neither of two values is the smaller one.
var ErrOrder = errors.New("cannot be ordered")

// compare orders numbers, strings, and lists or tuples of equal things: -1, 0, 1, or
// unordered.
func (r *Run) compare(a, b any) (int, error) {
	if err := r.Spend(StepCost); err != nil {
		return 0, err
	}
	m, ok := number(a)
	n, alsoOK := number(b)
	if ok && alsoOK {
		if !m.isInt && !n.isInt && typeName(a) == "integer" && typeName(b) == "integer" {
			return 0, errOverflow
		}
		return compareNumbers(m, n), r.Spend(largeCost(m.large) + largeCost(n.large))
	}
	if a, ok := a.(string); ok {
		if b, ok := b.(string); ok {
			return strings.Compare(a, b), r.Spend(min(len(a), len(b)))
		}
	}
	if items, others, ok := bothSequences(a, b); ok {
		for i := range min(len(items), len(others)) {
			if same, err := r.equal(items[i], others[i], 0); err != nil {
				return 0, err
			} else if !same {
				return r.compare(items[i], others[i])
			}
		}
		return cmp.Compare(len(items), len(others)), nil
	}
	return 0, fmt.Errorf("%s and %s %w", article(a), article(b), ErrOrder)
}

// opIn is "v in args[0]".
func opIn(r *Run, v any, args []any) (any, error) {
	switch in := args[0].(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("%s cannot be in a string; convert it with |string", article(v))
		}
		if err := r.Spend(len(in) + len(s)); err != nil {
			return nil, err
		}
		return strings.Contains(in, s), nil
	case map[string]any:
		key, ok := mapKey(v)
		if ok {
			_, ok = in[key]
		}
		return ok, unlessKey(v)
	}
	items, ok := itemsOf(args[0])
	if kindOf(args[0]) == kindKeys {
		if err := unlessKey(v); err != nil {
			return nil, err
		}
	}
	for _, item := range items {
		if same, err := r.equal(v, item, 0); same || err != nil {
			return same, err
		}
	}
	if ok {
		return false, nil
	}
	return nil, fmt.Errorf("%s cannot be searched with \"in\"", article(args[0]))
}

func opNotIn(r *Run, v any, args []any) (any, error) {
	in, err := opIn(r, v, args)
	return !Truthy(in), err
}

// unlessKey fails if v is a list, a mapping or its keys or items, which cannot be keys of
// a mapping.
func unlessKey(v any) error {
	switch typeName(v) {
	case "list", "mapping", kindKeys, kindItems:
		return fmt.Errorf("%s cannot be the key of a mapping", article(v))
	}
	return nil
}
