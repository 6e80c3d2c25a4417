package value

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Functions are what a template can call by name.
var Functions = map[string]Callable{
	"dict":      {Op: Dict, Named: true},
	"namespace": {Op: newNamespace, Named: true},
	"range":     {Op: opRange, Params: "start stop? step?"},
}

func newNamespace(r *Run, _ any, args []any) (any, error) {
	m, err := Dict(r, nil, args)
	if err != nil {
		return nil, err
	}
	members, _ := m.(map[string]any)
	return &Namespace{members}, nil
}

func opRange(r *Run, _ any, args []any) (any, error) {
	if i := slices.Index(args, nil); i >= 0 {
		return nil, fmt.Errorf("argument %d must be an integer, not none", i+1)
	}
	g := given{args: args}
	start, stop, step := g.int(0, 0), g.int(1, 0), g.int(2, 1)
	if g.err != nil {
		return nil, g.err
	}
	if args[1] == any(Missing{}) {
		start, stop = 0, start
	}
	switch {
	case step == 0:
		return nil, errors.New("the step must not be 0")
	case max(start, stop, -start, -stop) > math.MaxInt32 || start == math.MinInt64 || stop == math.MinInt64 || step == math.MinInt64:
		return nil, errors.New("the bounds are too large")
	}
	n := 0
	if span := stop - start; (span > 0) == (step > 0) && span != 0 {
		n = int((max(span, -span)-1)/max(step, -step)) + 1
	}
	if err := r.SpendTimes(n, 2*ItemCost); err != nil {
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

func methodGet(_ *Run, v any, args []any) (any, error) {
	m, err := mappingOf(v)
	if err != nil {
		return nil, err
	}
	if key, ok := mapKey(args[0]); ok {
		if got, ok := m[key]; ok {
			return got, nil
		}
	}
	if args[1] == any(Missing{}) {
		return nil, nil //nolint:nilnil // none is a value
	}
	return args[1], nil
}

// view is a method that returns what of does for a mapping and its keys.
func view(kind string, of func(r *Run, m map[string]any, keys []any) ([]any, error)) Callable {
	return Callable{Op: func(r *Run, v any, _ []any) (any, error) {
		m, err := mappingOf(v)
		if err != nil {
			return nil, err
		}
		keys, err := r.Items(m)
		if err != nil {
			return nil, err
		}
		items, err := of(r, m, keys)
		return &series{kind: kind, items: items}, err
	}}
}

func keysOf(_ *Run, _ map[string]any, keys []any) ([]any, error) { return keys, nil }

func valuesOf(_ *Run, m map[string]any, keys []any) ([]any, error) {
	out := make([]any, len(keys))
	for i, k := range keys {
		key, _ := k.(string)
		out[i] = m[key]
	}
	return out, nil
}

// methodCycle returns one argument after the other, one per turn of a loop.
func methodCycle(_ *Run, v any, args []any) (any, error) {
	l, ok := v.(*Loop)
	if !ok {
		return nil, fmt.Errorf("%s has no such method", article(v))
	}
	args, _ = freeArgs(args)
	if len(args) == 0 {
		return nil, errors.New("there are no arguments")
	}
	return args[l.Index%len(args)], nil
}

// methodChanged reports whether its arguments differ from those of its last call in the same loop.
func methodChanged(r *Run, v any, args []any) (any, error) {
	l, ok := v.(*Loop)
	if !ok {
		return nil, fmt.Errorf("%s has no such method", article(v))
	}
	args, _ = freeArgs(args)
	same, err := r.equal(args, l.seen, 0)
	same = same && l.seen != nil
	l.seen = append([]any{}, args...)
	return !same, err
}

// Tests are what can follow "is".
var Tests = map[string]Callable{
	"defined":     {Op: func(_ *Run, v any, _ []any) (any, error) { return v != any(Missing{}), nil }, Undefined: true},
	"undefined":   isValue(Missing{}),
	"boolean":     typeTest("boolean"),
	"divisibleby": {Op: testDivisible, Params: "num"},
	"eq":          {Op: opEqual, Params: "other"},
	"equalto":     {Op: opEqual, Params: "other"},
	"even":        {Op: testRemainder(0)},
	"false":       isValue(false),
	"float":       typeTest("float"),
	"ge":          {Op: ordering(func(c int) bool { return c >= 0 }), Params: "other"},
	"gt":          {Op: ordering(func(c int) bool { return c > 0 }), Params: "other"},
	"in":          {Op: opIn, Params: "seq"},
	"integer":     typeTest("integer"),
	"iterable":    typeTest("string", "list", "mapping", kindTuple, kindRange, kindKeys, kindValues, kindItems),
	"le":          {Op: ordering(func(c int) bool { return c <= 0 }), Params: "other"},
	"lower":       {Op: onAnyText(testCase(isLower, isUpper))},
	"lt":          {Op: ordering(func(c int) bool { return c < 0 }), Params: "other"},
	"mapping":     typeTest("mapping"),
	"ne":          {Op: func(r *Run, v any, args []any) (any, error) { ok, err := r.equal(v, args[0], 0); return !ok, err }, Params: "other"},
	"none":        isValue(nil),
	"number":      typeTest("integer", "float", "boolean"),
	"odd":         {Op: testRemainder(1)},
	"sequence":    typeTest("string", "list", "mapping", kindTuple, kindRange),
	"string":      typeTest("string"),
	"true":        isValue(true),
	"upper":       {Op: onAnyText(testCase(isUpper, isLower))},

	"callable":    isValue(nothing{}), // no value is
	"escaped":     isValue(nothing{}),
	"greaterthan": {Op: ordering(func(c int) bool { return c > 0 }), Params: "other"},
	"lessthan":    {Op: ordering(func(c int) bool { return c < 0 }), Params: "other"},
	"sameas":      {Op: testSame, Params: "other"},
	"!=":          {Op: Comparisons["!="], Params: "other"},
	"<":           {Op: Comparisons["<"], Params: "other"},
	"<=":          {Op: Comparisons["<="], Params: "other"},
	"==":          {Op: Comparisons["=="], Params: "other"},
	">":           {Op: Comparisons[">"], Params: "other"},
	">=":          {Op: Comparisons[">="], Params: "other"},
}

// NameTests are the tests of whether a value is the name of a filter or of a test. They refer to the tables, so they
// cannot be in one.
var NameTests = map[string]Callable{
	"filter": {Op: func(_ *Run, v any, _ []any) (any, error) {
		name, _ := v.(string)
		_, ok := Filters[name]
		return ok || slices.Contains(specialFilters, name), nil
	}},
	"test": {Op: func(_ *Run, v any, _ []any) (any, error) {
		name, _ := v.(string)
		_, ok := Tests[name]
		return ok, nil
	}},
}

// specialFilters are those that need more than the values of their arguments.
var specialFilters = []string{"default", "d", "map", "select", "reject", "selectattr", "rejectattr"}

// nothing is a value that no template has.
type nothing struct{}

// testSame reports whether both are the same number, text, boolean or none. Identity of lists and mappings is not
// tracked.
func testSame(r *Run, v any, args []any) (any, error) {
	for _, x := range []any{v, args[0]} {
		if !slices.Contains([]string{"none", "boolean", "integer", "float", "string"}, typeName(x)) {
			return nil, fmt.Errorf("%s cannot be compared by identity; use ==", article(x))
		}
	}
	if typeName(v) != typeName(args[0]) {
		return false, nil
	}
	return r.equal(v, args[0], 0)
}

func isValue(want any) Callable {
	return Callable{Undefined: true, Op: func(_ *Run, v any, _ []any) (any, error) { return v == want, nil }}
}

func typeTest(names ...string) Callable {
	return Callable{Undefined: true, Op: func(_ *Run, v any, _ []any) (any, error) {
		return slices.Contains(names, typeName(v)), nil
	}}
}

func testRemainder(want int64) Operation {
	return func(r *Run, v any, _ []any) (any, error) {
		rest, err := modNumbers(r, v, []any{int64(2)})
		if err != nil {
			return nil, err
		}
		return r.equal(rest, want, 0)
	}
}

func testDivisible(r *Run, v any, args []any) (any, error) {
	rest, err := modNumbers(r, v, args)
	if err != nil {
		return nil, err
	}
	return r.equal(rest, int64(0), 0)
}

// onAnyText passes op a value as text.
func onAnyText(op Operation) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		s, err := r.Text(v)
		if err != nil {
			return nil, err
		}
		return op(r, s, args)
	}
}
