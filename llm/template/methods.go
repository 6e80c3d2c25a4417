package template

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// functions are what a template can call by name.
var functions = map[string]callable{
	"dict":      {op: opDict, named: true},
	"namespace": {op: newNamespace, named: true},
	"range":     {op: opRange, params: "start stop? step?"},
}

func newNamespace(r *run, _ any, args []any) (any, error) {
	m, err := opDict(r, nil, args)
	if err != nil {
		return nil, err
	}
	members, _ := m.(map[string]any)
	return &namespace{members}, nil
}

func opRange(r *run, _ any, args []any) (any, error) {
	if i := slices.Index(args, nil); i >= 0 {
		return nil, fmt.Errorf("argument %d is an integer, not none", i+1)
	}
	start, err := intArg(args, 0, 0)
	if err != nil {
		return nil, err
	}
	stop, err := intArg(args, 1, 0)
	if err != nil {
		return nil, err
	}
	step, err := intArg(args, 2, 1)
	if err != nil {
		return nil, err
	}
	if args[1] == any(missing{}) {
		start, stop = 0, start
	}
	switch {
	case step == 0:
		return nil, errors.New("the step is 0")
	case max(start, stop, -start, -stop) > math.MaxInt32 || start == math.MinInt64 || stop == math.MinInt64 || step == math.MinInt64:
		return nil, errors.New("the bounds are too far out")
	}
	n := 0
	if span := stop - start; (span > 0) == (step > 0) && span != 0 {
		n = int((max(span, -span)-1)/max(step, -step)) + 1
	}
	if err := r.spendTimes(n, 2*itemCost); err != nil {
		return nil, err
	}
	out := make([]any, n)
	for i := range out {
		out[i] = start + int64(i)*step
	}
	return &series{kind: kindRange, items: out, bounds: [3]int64{start, stop, step}}, nil
}

func mappingOf(v any) (map[string]any, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s has no such method", article(v))
	}
	return m, nil
}

func methodGet(_ *run, v any, args []any) (any, error) {
	m, err := mappingOf(v)
	if err != nil {
		return nil, err
	}
	if key, ok := mapKey(args[0]); ok {
		if got, ok := m[key]; ok {
			return got, nil
		}
	}
	if args[1] == any(missing{}) {
		return nil, nil //nolint:nilnil // none is a value
	}
	return args[1], nil
}

// view is a method that gives what of returns for a mapping and its keys.
func view(kind string, of func(r *run, m map[string]any, keys []any) ([]any, error)) callable {
	return callable{op: func(r *run, v any, _ []any) (any, error) {
		m, err := mappingOf(v)
		if err != nil {
			return nil, err
		}
		keys, err := r.items(m)
		if err != nil {
			return nil, err
		}
		items, err := of(r, m, keys)
		return &series{kind: kind, items: items}, err
	}}
}

func keysOf(_ *run, _ map[string]any, keys []any) ([]any, error) { return keys, nil }

func valuesOf(_ *run, m map[string]any, keys []any) ([]any, error) {
	out := make([]any, len(keys))
	for i, k := range keys {
		key, _ := k.(string)
		out[i] = m[key]
	}
	return out, nil
}

// methodCycle gives one argument after the other, one each turn of a loop.
func methodCycle(_ *run, v any, args []any) (any, error) {
	l, ok := v.(*loopState)
	if !ok {
		return nil, fmt.Errorf("%s has no such method", article(v))
	}
	args, _ = freeArgs(args)
	if len(args) == 0 {
		return nil, errors.New("there are no arguments")
	}
	return args[l.index%len(args)], nil
}

// methodChanged reports whether its arguments are others than at its last call in the same loop.
func methodChanged(r *run, v any, args []any) (any, error) {
	l, ok := v.(*loopState)
	if !ok {
		return nil, fmt.Errorf("%s has no such method", article(v))
	}
	args, _ = freeArgs(args)
	same, err := r.equal(args, l.seen, 0)
	same = same && l.seen != nil
	l.seen = append([]any{}, args...)
	return !same, err
}

// tests are what may stand behind "is".
var tests = map[string]callable{
	"defined":     {op: func(_ *run, v any, _ []any) (any, error) { return v != any(missing{}), nil }, undefined: true},
	"undefined":   isValue(missing{}),
	"boolean":     typeTest("boolean"),
	"divisibleby": {op: testDivisible, params: "num"},
	"eq":          {op: opEqual, params: "other"},
	"equalto":     {op: opEqual, params: "other"},
	"even":        {op: testRemainder(0)},
	"false":       isValue(false),
	"float":       typeTest("float"),
	"ge":          {op: ordering(func(c int) bool { return c >= 0 }), params: "other"},
	"gt":          {op: ordering(func(c int) bool { return c > 0 }), params: "other"},
	"in":          {op: opIn, params: "seq"},
	"integer":     typeTest("integer"),
	"iterable":    typeTest("string", "list", "mapping", kindTuple, kindRange, kindKeys, kindValues, kindItems),
	"le":          {op: ordering(func(c int) bool { return c <= 0 }), params: "other"},
	"lower":       {op: onAnyText(testCase(isLower, isUpper))},
	"lt":          {op: ordering(func(c int) bool { return c < 0 }), params: "other"},
	"mapping":     typeTest("mapping"),
	"ne":          {op: func(r *run, v any, args []any) (any, error) { ok, err := r.equal(v, args[0], 0); return !ok, err }, params: "other"},
	"none":        isValue(nil),
	"number":      typeTest("integer", "float", "boolean"),
	"odd":         {op: testRemainder(1)},
	"sequence":    typeTest("string", "list", "mapping", kindTuple, kindRange),
	"string":      typeTest("string"),
	"true":        isValue(true),
	"upper":       {op: onAnyText(testCase(isUpper, isLower))},

	"callable":    isValue(nothing{}), // no value is
	"escaped":     isValue(nothing{}),
	"greaterthan": {op: ordering(func(c int) bool { return c > 0 }), params: "other"},
	"lessthan":    {op: ordering(func(c int) bool { return c < 0 }), params: "other"},
	"sameas":      {op: testSame, params: "other"},
	"!=":          {op: comparisons["!="], params: "other"},
	"<":           {op: comparisons["<"], params: "other"},
	"<=":          {op: comparisons["<="], params: "other"},
	"==":          {op: comparisons["=="], params: "other"},
	">":           {op: comparisons[">"], params: "other"},
	">=":          {op: comparisons[">="], params: "other"},
}

// nothing is no value of any template.
type nothing struct{}

// testSame reports whether both are one: the same number, text, boolean or none. Of what has items that is not known.
func testSame(r *run, v any, args []any) (any, error) {
	for _, x := range []any{v, args[0]} {
		if !slices.Contains([]string{"none", "boolean", "integer", "float", "string"}, typeName(x)) {
			return nil, fmt.Errorf("%s cannot be compared so; use ==", article(x))
		}
	}
	if typeName(v) != typeName(args[0]) {
		return false, nil
	}
	return r.equal(v, args[0], 0)
}

func isValue(want any) callable {
	return callable{undefined: true, op: func(_ *run, v any, _ []any) (any, error) { return v == want, nil }}
}

func typeTest(names ...string) callable {
	return callable{undefined: true, op: func(_ *run, v any, _ []any) (any, error) {
		return slices.Contains(names, typeName(v)), nil
	}}
}

func testRemainder(want int64) operation {
	return func(r *run, v any, _ []any) (any, error) {
		rest, err := modNumbers(r, v, []any{int64(2)})
		if err != nil {
			return nil, err
		}
		return r.equal(rest, want, 0)
	}
}

func testDivisible(r *run, v any, args []any) (any, error) {
	rest, err := modNumbers(r, v, args)
	if err != nil {
		return nil, err
	}
	return r.equal(rest, int64(0), 0)
}

// onAnyText gives op a value as text.
func onAnyText(op operation) operation {
	return func(r *run, v any, args []any) (any, error) {
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		return op(r, s, args)
	}
}
