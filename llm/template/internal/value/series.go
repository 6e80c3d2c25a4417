package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Kinds of series, by their names in Python.
const (
	kindTuple  = "tuple"
	kindRange  = "range"
	kindKeys   = "dict_keys"
	kindValues = "dict_values"
	kindItems  = "dict_items"
)

// series is a sequence that is not a list: a tuple, a range, or the result of keys,
// values or items of a mapping. It is printed as in Python and equal only to its own
// kind.
type series struct {
	kind   string
	items  []any
	bounds [3]int64 // of a range: start, stop and step
	group  bool     // a pair of groupby, whose items are named grouper and list
}

func tuple(items ...any) *series { return &series{kind: kindTuple, items: items} }

// Tuple returns args as a tuple, without copying them.
func Tuple(r *Run, _ any, args []any) (any, error) {
	return tuple(args...), r.SpendTimes(len(args), ItemCost)
}

// itemsOf returns the items of a list or of any series.
func itemsOf(v any) (items []any, ok bool) {
	switch v := v.(type) {
	case []any:
		return v, true
	case *series:
		return v.items, true
	}
	return nil, false
}

// kindOf returns the kind of a series, or "" for other values.
func kindOf(v any) string {
	if s, ok := v.(*series); ok {
		return s.kind
	}
	return ""
}

// sequence returns the items of a list or a tuple, which can be added and ordered.
func sequence(v any) (items []any, ok bool) {
	if kind := kindOf(v); kind != "" && kind != kindTuple {
		return nil, false
	}
	return itemsOf(v)
}

// bothSequences returns the items of two lists, or of two tuples.
func bothSequences(v, w any) (a, b []any, ok bool) {
	a, ok = sequence(v)
	b, alsoOK := sequence(w)
	return a, b, ok && alsoOK && kindOf(v) == kindOf(w)
}

// likeSequence returns items as a tuple if v is one, and as a list otherwise.
func likeSequence(v any, items []any) any {
	if kindOf(v) == kindTuple {
		return tuple(items...)
	}
	return items
}

// indexed reports whether s[0] is possible: not for keys, values and items of a mapping.
func (s *series) indexed() bool { return s.kind == kindTuple || s.kind == kindRange }

// places returns the items of a list, tuple or range, which have indexes.
func places(v any) (items []any, ok bool) {
	if s, isSeries := v.(*series); isSeries && !s.indexed() {
		return nil, false
	}
	return itemsOf(v)
}

// named returns the item called name of a pair of groupby.
func (s *series) named(name string) (any, bool) {
	switch {
	case s.group && name == "grouper":
		return s.items[0], true
	case s.group && name == "list":
		return s.items[1], true
	}
	return nil, false
}

// slice returns the series of items, which are the items of s from start to end.
func (s *series) slice(items []any, start, end, step int64) *series {
	out := &series{kind: s.kind, items: items}
	if s.kind == kindRange {
		out.bounds = [3]int64{s.bounds[0] + start*s.bounds[2], s.bounds[0] + end*s.bounds[2], step * s.bounds[2]}
	}
	return out
}

// Slice is v[start:end:step], with the rules of Python.
func Slice(r *Run, v any, args []any) (any, error) {
	text, isText := v.(string)
	if err := r.SpendTimes(len(text), 4); err != nil {
		return nil, err
	}
	items, ok := places(v)
	if !ok && !isText {
		return nil, fmt.Errorf("%s cannot be sliced", article(v))
	}
	runes := []rune(text)
	n := max(len(items), len(runes))
	start, end, step, err := sliceBounds(args, int64(n))
	if err == nil {
		err = r.SpendTimes(n, ItemCost)
	}
	if err != nil {
		return nil, err
	}
	if isText {
		return string(cut(runes, start, end, step)), nil
	}
	items = cut(items, start, end, step)
	if s, ok := v.(*series); ok {
		return s.slice(items, start, end, step), nil
	}
	return items, nil
}

// cut returns every step-th item from start to before end.
func cut[T any](items []T, start, end, step int64) []T {
	out := []T{}
	n := int64(len(items))
	for i := start; step > 0 && i < end || step < 0 && i > end; i += step {
		out = append(out, items[i])
		if step > n || step < -n { // i+step might overflow
			break
		}
	}
	return out
}

// sliceBounds returns the bounds and the step of a slice of n items. Those that are none
// are left out.
func sliceBounds(args []any, n int64) (start, end, step int64, err error) {
	var given [3]*int64
	for i, a := range args {
		switch a := a.(type) {
		case nil:
		case int64:
			given[i] = &a
		case json.Number: // far beyond the items
			far := int64(math.MaxInt64)
			if a[0] == '-' {
				far = math.MinInt64
			}
			given[i] = &far
		default:
			return 0, 0, 0, fmt.Errorf("a slice takes integers, not %s", article(a))
		}
	}
	step = 1
	if given[2] != nil {
		step = *given[2]
	}
	if step == 0 {
		return 0, 0, 0, errors.New("the step of a slice must not be 0")
	}
	low, high := int64(0), n
	if step < 0 {
		low, high = -1, n-1
	}
	bound := func(i *int64, otherwise int64) int64 {
		switch {
		case i == nil:
			return otherwise
		case *i < 0:
			return max(*i+n, low)
		}
		return min(*i, high)
	}
	start, end = bound(given[0], low), bound(given[1], high)
	if step < 0 {
		start, end = bound(given[0], high), bound(given[1], low)
	}
	return start, end, step, nil
}
