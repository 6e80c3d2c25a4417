package value

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Functions are what a template can call by name.
var Functions = map[string]Callable{
	"dict":      {Op: newDict, Named: true},
	"namespace": {Op: newNamespace, Named: true},
	"range":     typed("start:int stop?:int step?:int", opRange),
}

func newNamespace(r *Run, _ any, args []any) (any, error) {
	m, err := newDict(r, nil, args)
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
	start, stop, step := intOr(args[0], 0), intOr(args[1], 0), intOr(args[2], 1)
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

func methodGet(_ *Run, v any, args []any) (any, error) {
	m, _ := v.(map[string]any)
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

// view returns a method of mappings, whose result is a series of what of returns for each
// key and its value.
func view(kind string, of func(key, v any) any) Callable {
	return method("mapping", "", onMapping(func(r *Run, m map[string]any, keys, _ []any) (any, error) {
		items, err := r.members(m, keys, of)
		return &series{kind: kind, items: items}, err
	}))
}

// members returns what of returns for each key and its value.
func (r *Run) members(m map[string]any, keys []any, of func(key, v any) any) ([]any, error) {
	if err := r.SpendTimes(len(keys), 4*ItemCost); err != nil {
		return nil, err
	}
	out := make([]any, len(keys))
	for i, k := range keys {
		key, _ := k.(string)
		out[i] = of(k, m[key])
	}
	return out, nil
}

func pair(key, v any) any { return tuple(key, v) }

// methodCycle returns its arguments in turn, one for each turn of a loop.
func methodCycle(_ *Run, v any, args []any) (any, error) {
	l, _ := v.(*Loop)
	args, _ = freeArgs(args)
	if len(args) == 0 {
		return nil, errors.New("there are no arguments")
	}
	return args[l.Index%len(args)], nil
}

// ErrElementChanged is returned for loop.changed of an element, which would be true of
// each.
var ErrElementChanged = errors.New("loop.changed is not available for elements: each is rendered by itself; compare item with the one before, in the array of the row at loop.index0 - 1")

// methodChanged reports whether its arguments differ from the last call's in the same
// loop.
func methodChanged(r *Run, v any, args []any) (any, error) {
	l, _ := v.(*Loop)
	if l.Items == nil {
		return nil, ErrElementChanged
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
	"callable":    isValue(nothing{}), // no value is callable
	"divisibleby": {Op: func(r *Run, v any, args []any) (any, error) { return r.remainderIs(v, args, 0) }, Params: "num"},
	"escaped":     isValue(nothing{}),
	"even":        {Op: func(r *Run, v any, _ []any) (any, error) { return r.remainderIs(v, []any{int64(2)}, 0) }},
	"false":       isValue(false),
	"float":       typeTest("float"),
	"in":          {Op: opIn, Params: "seq"},
	"integer":     typeTest("integer"),
	"iterable":    typeTest("string", "list", "mapping", kindTuple, kindRange, kindKeys, kindValues, kindItems),
	"lower":       {Op: mapped(allCased(isLower, isUpper))},
	"mapping":     typeTest("mapping"),
	"none":        isValue(nil),
	"number":      typeTest("integer", "float", "boolean"),
	"odd":         {Op: func(r *Run, v any, _ []any) (any, error) { return r.remainderIs(v, []any{int64(2)}, 1) }},
	"sameas":      {Op: testSame, Params: "other"},
	"sequence":    typeTest("string", "list", "mapping", kindTuple, kindRange),
	"string":      typeTest("string"),
	"true":        isValue(true),
	"upper":       {Op: mapped(allCased(isUpper, isLower))},

	"==": comparison("=="), "eq": comparison("=="), "equalto": comparison("=="),
	"!=": comparison("!="), "ne": comparison("!="),
	"<": comparison("<"), "lt": comparison("<"), "lessthan": comparison("<"),
	"<=": comparison("<="), "le": comparison("<="),
	">": comparison(">"), "gt": comparison(">"), "greaterthan": comparison(">"),
	">=": comparison(">="), "ge": comparison(">="),
}

func comparison(operator string) Callable {
	return Callable{Op: Comparisons[operator], Params: "other"}
}

// NameTests are the tests of whether a value is the name of a filter or of a test. They
// refer to the tables, so they cannot be in them.
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

// specialFilters are the filters that need more than the values of their arguments: default
// does not evaluate all of them, and the others are given the name of a filter or test.
var specialFilters = []string{"default", "d", "map", "select", "reject", "selectattr", "rejectattr"}

// nothing equals no value of a template.
type nothing struct{}

// testSame reports whether both are the same number, text, boolean or none. The identity
// of lists and mappings is not tracked.
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

// remainderIs reports whether v % divisor[0] is want.
func (r *Run) remainderIs(v any, divisor []any, want int64) (bool, error) {
	rest, err := modNumbers(r, v, divisor)
	if err != nil {
		return false, err
	}
	return r.equal(rest, want, 0)
}
