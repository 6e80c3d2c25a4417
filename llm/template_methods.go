package llm

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// functions are what a template can call by name.
var functions = map[string]callable{
	"dict":      {op: opDict, named: true},
	"namespace": {op: newNamespace, named: true},
	"range":     {op: opRange, params: "start stop? step?"},
}

func newNamespace(r *rendering, _ any, args []any) (any, error) {
	m, err := opDict(r, nil, args)
	if err != nil {
		return nil, err
	}
	members, _ := m.(map[string]any)
	return &namespace{members}, nil
}

func opRange(r *rendering, _ any, args []any) (any, error) {
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
	return out, nil
}

// methods are the methods of strings and mappings, and loop.cycle. There are none that
// change anything.
var methods = map[string]callable{
	"capitalize":   onStrings("", onText(capitalize)),
	"count":        onStrings("sub", methodCount),
	"cycle":        {op: methodCycle, params: "a b? c? d? e? f? g? h?"},
	"endswith":     onStrings("suffix", onTwo(func(s, t string) any { return strings.HasSuffix(s, t) })),
	"find":         onStrings("sub", methodFind),
	"get":          {op: methodGet, params: "key default?"},
	"items":        {op: methodItems},
	"join":         onStrings("items", methodJoin),
	"keys":         {op: methodKeys},
	"lower":        onStrings("", onText(strings.ToLower)),
	"lstrip":       onStrings("chars?", trimmer(strings.TrimLeft)),
	"removeprefix": onStrings("prefix", onTwo(func(s, t string) any { return strings.TrimPrefix(s, t) })),
	"removesuffix": onStrings("suffix", onTwo(func(s, t string) any { return strings.TrimSuffix(s, t) })),
	"replace":      onStrings("old new count?", filterReplace),
	"rstrip":       onStrings("chars?", trimmer(strings.TrimRight)),
	"split":        onStrings("sep? maxsplit?", methodSplit),
	"splitlines":   onStrings("", methodSplitlines),
	"startswith":   onStrings("prefix", onTwo(func(s, t string) any { return strings.HasPrefix(s, t) })),
	"strip":        onStrings("chars?", trimmer(strings.Trim)),
	"title":        onStrings("", onText(title)),
	"upper":        onStrings("", onText(strings.ToUpper)),
	"values":       {op: methodValues},
}

// onStrings is a method that only strings have.
func onStrings(params string, op operation) callable {
	return callable{params: params, op: func(r *rendering, v any, args []any) (any, error) {
		if _, ok := v.(string); !ok {
			return nil, fmt.Errorf("%s has no such method", article(v))
		}
		return op(r, v, args)
	}}
}

// onTwo is a method of a string and another one.
func onTwo(f func(s, t string) any) operation {
	return func(r *rendering, v any, args []any) (any, error) {
		s, _ := v.(string)
		t, ok := args[0].(string)
		if !ok {
			return nil, fmt.Errorf("argument 1 is a string, not %s", article(args[0]))
		}
		return f(s, t), r.spend(len(t))
	}
}

func methodCount(r *rendering, v any, args []any) (any, error) {
	s, _ := v.(string)
	sub, err := stringArg(args, 0, "")
	if err == nil {
		err = r.spend(len(s))
	}
	if err != nil {
		return nil, err
	}
	return int64(strings.Count(s, sub)), nil
}

func methodFind(r *rendering, v any, args []any) (any, error) {
	s, _ := v.(string)
	sub, err := stringArg(args, 0, "")
	if err == nil {
		err = r.spendTimes(len(s), 2)
	}
	if err != nil {
		return nil, err
	}
	before, _, found := strings.Cut(s, sub)
	if !found {
		return int64(-1), nil
	}
	return countText(r, before, utf8.RuneCountInString)
}

func methodJoin(r *rendering, v any, args []any) (any, error) {
	return filterJoin(r, args[0], []any{v, missing{}})
}

func methodSplit(r *rendering, v any, args []any) (any, error) {
	s, _ := v.(string)
	sep, err := stringArg(args, 0, "")
	if err != nil {
		return nil, err
	}
	most, err := intArg(args, 1, -1)
	if err != nil {
		return nil, err
	}
	if err := r.spendTimes(len(s), 2*itemCost); err != nil {
		return nil, err
	}
	var parts []string
	n := -1
	if most >= 0 {
		n = int(min(most, math.MaxInt32)) + 1
	}
	switch {
	case sep != "":
		parts = strings.SplitN(s, sep, n)
	case args[0] == any(""):
		return nil, errors.New("the separator is empty")
	case n < 0:
		parts = strings.Fields(s)
	default:
		for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
			end := strings.IndexAny(s, " \t\n\r\v\f")
			if end < 0 || len(parts) == n-1 {
				end = len(s)
			}
			parts, s = append(parts, s[:end]), s[end:]
		}
	}
	return stringList(parts), nil
}

func methodSplitlines(r *rendering, v any, _ []any) (any, error) {
	s, _ := v.(string)
	if err := r.spendTimes(len(s), 2*itemCost); err != nil {
		return nil, err
	}
	s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	if s == "" {
		return []any{}, nil
	}
	return stringList(strings.Split(strings.TrimSuffix(s, "\n"), "\n")), nil
}

func stringList(parts []string) []any {
	out := make([]any, len(parts))
	for i, s := range parts {
		out[i] = s
	}
	return out
}

func mappingOf(v any) (map[string]any, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s has no such method", article(v))
	}
	return m, nil
}

func methodGet(_ *rendering, v any, args []any) (any, error) {
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

func methodKeys(r *rendering, v any, _ []any) (any, error) {
	m, err := mappingOf(v)
	if err != nil {
		return nil, err
	}
	return r.items(m)
}

func methodItems(r *rendering, v any, _ []any) (any, error) {
	m, err := mappingOf(v)
	if err != nil {
		return nil, err
	}
	keys, err := r.items(m)
	if err != nil {
		return nil, err
	}
	return r.pairs(m, keys)
}

func methodValues(r *rendering, v any, _ []any) (any, error) {
	m, err := mappingOf(v)
	if err != nil {
		return nil, err
	}
	keys, err := r.items(m)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(keys)
	for i, k := range keys {
		key, _ := k.(string)
		out[i] = m[key]
	}
	return out, nil
}

// methodCycle gives one argument after the other, one each turn of a loop.
func methodCycle(_ *rendering, v any, args []any) (any, error) {
	l, ok := v.(*loopState)
	if !ok {
		return nil, fmt.Errorf("%s has no such method", article(v))
	}
	args = given(args)
	return args[l.index%len(args)], nil
}

// tests are what may stand behind "is".
var tests = map[string]callable{
	"defined":     {op: func(_ *rendering, v any, _ []any) (any, error) { return v != any(missing{}), nil }, undefined: true},
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
	"iterable":    typeTest("string", "list", "mapping"),
	"le":          {op: ordering(func(c int) bool { return c <= 0 }), params: "other"},
	"lower":       {op: testCase(strings.ToLower)},
	"lt":          {op: ordering(func(c int) bool { return c < 0 }), params: "other"},
	"mapping":     typeTest("mapping"),
	"ne":          {op: func(r *rendering, v any, args []any) (any, error) { ok, err := r.equal(v, args[0], 0); return !ok, err }, params: "other"},
	"none":        isValue(nil),
	"number":      typeTest("integer", "float", "boolean"),
	"odd":         {op: testRemainder(1)},
	"sequence":    typeTest("string", "list", "mapping"),
	"string":      typeTest("string"),
	"true":        isValue(true),
	"upper":       {op: testCase(strings.ToUpper)},
}

func isValue(want any) callable {
	return callable{undefined: true, op: func(_ *rendering, v any, _ []any) (any, error) { return v == want, nil }}
}

func typeTest(names ...string) callable {
	return callable{undefined: true, op: func(_ *rendering, v any, _ []any) (any, error) {
		return slices.Contains(names, typeName(v)), nil
	}}
}

func testRemainder(want int64) operation {
	return func(r *rendering, v any, _ []any) (any, error) {
		rest, err := modNumbers(r, v, []any{int64(2)})
		if err != nil {
			return nil, err
		}
		return r.equal(rest, want, 0)
	}
}

func testDivisible(r *rendering, v any, args []any) (any, error) {
	rest, err := modNumbers(r, v, args)
	if err != nil {
		return nil, err
	}
	return r.equal(rest, int64(0), 0)
}

// testCase reports whether text has letters and all of them are as f writes them.
func testCase(f func(string) string) operation {
	return func(r *rendering, v any, _ []any) (any, error) {
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		if err := r.spendTimes(len(s), 4); err != nil {
			return nil, err
		}
		return f(s) == s && strings.ToLower(s) != strings.ToUpper(s), nil
	}
}
