// Package value holds the values of templates and their operators, filters, tests,
// functions and methods, as in Jinja.
//
// A value is nil, bool, int64, float64, string, []any, map[string]any, a series for
// sequences that are not lists, or [json.Number] for integers beyond int64. None is ever
// modified. Templates also use [*Namespace], [*Loop] and [Blank].
//
// Every operation pays its [Run] for time and memory before it uses them. "'ab' *
// 1000000000" asks for 2 GB, fails at that, and has allocated nothing:
//
//	if err := r.SpendTimes(n, len(a)); err != nil {
//		return nil, err
//	}
//	return strings.Repeat(a, n), nil
//
// The results follow Python where Jinja's do, since a template that was tested in Python
// must render the same prompt here.
//
// The tables of what a template can use are in filters.go ([Filters]), methods.go
// ([Functions], [Tests]), strings.go ([Methods]) and ops.go ([Operators], [Comparisons]).
// callable.go has the checks of arguments, text.go how a value is printed, and format.go,
// fields.go and percent.go Python's ways to format it. Any other file has what it is named
// after, such as numbers.go the arithmetic.
package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Namespace is the result of the function namespace: the only thing that a template can
// modify.
type Namespace struct{ Members map[string]any }

// Blank is "a if b" where b is false: it renders as nothing, is false, and is not defined.
type Blank struct{}

// lazyMembers is a mapping whose members are decoded when they are read.
type lazyMembers interface {
	Member(name string) (any, bool)
	All() map[string]any
}

// maxValueDepth bounds the nesting of values that are printed or compared. Rows nest less.
const maxValueDepth = 20_000

// typeName returns the name of a value's type. Errors show it, and methods are defined for
// the types of one name.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case bool:
		return "boolean"
	case int64, json.Number:
		return "integer"
	case float64:
		return "float"
	case string:
		return "string"
	case []any:
		return "list"
	case *series:
		return v.kind
	case map[string]any:
		return "mapping"
	case *Namespace:
		return "namespace"
	case Blank:
		return "undefined"
	}
	return "loop"
}

// article returns the name of v's type with an indefinite article, for messages.
func article(v any) string {
	switch name := typeName(v); name {
	case "none", "undefined":
		return name
	case "integer":
		return "an " + name
	default:
		return "a " + name
	}
}

// Truthy reports whether a value is true in a condition.
func Truthy(v any) bool {
	switch v := v.(type) {
	case nil, Blank:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	}
	n, ok := size(v)
	return n > 0 || !ok
}

// size returns the length of a text in bytes, or the number of items of a container.
func size(v any) (n int, ok bool) {
	switch v := v.(type) {
	case string:
		return len(v), true
	case []any:
		return len(v), true
	case *series:
		return len(v.items), true
	case map[string]any:
		return len(v), true
	}
	return 0, false
}

// Truth is "not not v".
func Truth(_ *Run, v any, _ []any) (any, error) { return Truthy(v), nil }

// Not is "not v".
func Not(_ *Run, v any, _ []any) (any, error) { return !Truthy(v), nil }

// List returns args as a list, without copying them.
func List(r *Run, _ any, args []any) (any, error) {
	return args, r.SpendTimes(len(args), ItemCost)
}

// Dict returns a mapping of args, which are keys and values in turn.
func Dict(r *Run, _ any, args []any) (any, error) {
	if err := r.SpendTimes(len(args), 2*ItemCost); err != nil {
		return nil, err
	}
	m := make(map[string]any, len(args)/2)
	for i := 0; i < len(args); i += 2 {
		key, ok := mapKey(args[i])
		if !ok {
			return nil, fmt.Errorf("%s cannot be the key of a mapping", article(args[i]))
		}
		m[key] = args[i+1]
	}
	return m, nil
}

// newDict is dict(mapping, name=value, ...).
func newDict(r *Run, _ any, args []any) (any, error) {
	if args[0] == any(Missing{}) {
		return Dict(r, nil, args[1:])
	}
	pairs, err := r.flatPairs(args[0])
	if err != nil {
		return nil, err
	}
	return Dict(r, nil, append(pairs, args[1:]...))
}

// flatPairs returns the keys and values, in turn, of a mapping or a list of pairs.
func (r *Run) flatPairs(v any) ([]any, error) {
	items, err := r.pairsOf(v)
	if err != nil {
		return nil, err
	}
	if err := r.SpendTimes(len(items), 2*ItemCost); err != nil {
		return nil, err
	}
	pairs := make([]any, 0, 2*len(items))
	for _, item := range items {
		pair, err := r.Items(item)
		if err != nil || len(pair) != 2 {
			return nil, fmt.Errorf("%s is not a pair of key and value", article(item))
		}
		pairs = append(pairs, pair...)
	}
	return pairs, nil
}

// pairsOf returns the pairs of a mapping, or the items of another value.
func (r *Run) pairsOf(v any) ([]any, error) {
	items, err := r.Items(v)
	if m, ok := v.(map[string]any); ok && err == nil {
		return r.members(m, items, pair)
	}
	return items, err
}

// mapKey returns v as the key of a mapping. Keys are strings, as in JSON, so 1 finds "1".
func mapKey(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case int64:
		return strconv.FormatInt(v, 10), true
	case json.Number:
		return v.String(), true
	}
	return "", false
}

// Item returns v.key or v[key]. written is the expression, for errors.
func (r *Run) Item(v, key any, written string) (any, error) {
	index, isIndex := key.(int64)
	if truth, ok := key.(bool); ok { // which is 0 or 1, as in Python
		n, _ := number(truth)
		index, isIndex = n.i, true
	}
	name, _ := mapKey(key)
	switch v := v.(type) {
	case lazyMembers:
		if got, ok := v.Member(name); ok {
			return got, nil
		}
	case map[string]any:
		if got, ok := v[name]; ok {
			return got, nil
		}
	case *Namespace:
		if got, ok := v.Members[name]; ok {
			return got, nil
		}
	case *Loop:
		if got, ok := v.attribute(name); ok {
			return got, nil
		}
	case []any:
		if i, ok := position(index, len(v)); ok && isIndex {
			return v[i], nil
		}
	case *series:
		if got, ok := v.named(name); ok {
			return got, nil
		}
		if i, ok := position(index, len(v.items)); ok && isIndex && v.indexed() {
			return v.items[i], nil
		}
	case string:
		if !isIndex {
			break
		}
		if err := r.SpendTimes(len(v), 4); err != nil {
			return nil, err
		}
		runes := []rune(v)
		if i, ok := position(index, len(runes)); ok {
			return string(runes[i]), nil
		}
	}
	return nil, &Undefined{What: written, in: v, isItem: true}
}

// position resolves an index of n items; negative ones count from the end.
func position(index int64, n int) (int, bool) {
	if index < 0 {
		index += int64(n)
	}
	return int(index), index >= 0 && index < int64(n)
}

// Undefined is the error for a name or an item that does not exist.
type Undefined struct {
	What   string // as written in the template
	in     any    // the value in which an item was looked up
	isItem bool
}

// Error returns a text with What.
func (u *Undefined) Error() string { return "undefined: " + u.What }

// IsUndefined reports whether err is, or wraps, an [Undefined].
func IsUndefined(err error) bool {
	_, ok := errors.AsType[*Undefined](err)
	return ok
}

// Hint lists the members of the value in which the item was looked up. It is computed on
// demand because the default filter discards the error.
func (u *Undefined) Hint() string {
	if !u.isItem {
		return ""
	}
	m, ok := u.in.(map[string]any)
	if v, isRow := u.in.(lazyMembers); isRow {
		m, ok = v.All(), true
	}
	if !ok {
		return "it was looked up in " + article(u.in)
	}
	what := u.What[:max(0, strings.LastIndexAny(u.What, ".["))]
	const most, longest = 20, 40
	if len(m) == 0 {
		return "the " + what + " is empty"
	}
	keys := slices.Sorted(maps.Keys(m))
	more := ""
	if len(keys) > most {
		more = fmt.Sprintf(" and %d more", len(keys)-most)
		keys = keys[:most]
	}
	for i, k := range keys {
		if len(k) > longest {
			keys[i] = strings.ToValidUTF8(k[:longest], "") + "…"
		}
	}
	return "the " + what + " has: " + strings.Join(keys, ", ") + more
}

// Loop is the progress of a loop. Templates see it as loop.
type Loop struct {
	Items  []any // nil if only their number is known
	Length int
	Index  int
	seen   []any // the arguments of the last call of loop.changed
}

func (l *Loop) attribute(name string) (any, bool) {
	n := l.Length
	switch name {
	case "index":
		return int64(l.Index + 1), true
	case "index0":
		return int64(l.Index), true
	case "revindex":
		return int64(n - l.Index), true
	case "revindex0":
		return int64(n - l.Index - 1), true
	case "first":
		return l.Index == 0, true
	case "last":
		return l.Index == n-1, true
	case "length":
		return int64(n), true
	case "depth": // there is no recursion
		return int64(1), true
	case "depth0":
		return int64(0), true
	case "previtem":
		if l.Index > 0 && l.Items != nil {
			return l.Items[l.Index-1], true
		}
	case "nextitem":
		if l.Index < n-1 && l.Items != nil {
			return l.Items[l.Index+1], true
		}
	}
	return nil, false
}

// Items returns what a loop over v iterates over: the items of a list, the sorted keys of
// a mapping, the characters of a string.
func (r *Run) Items(v any) ([]any, error) {
	switch v := v.(type) {
	case Blank:
		return []any{}, nil
	case []any:
		return v, nil
	case *series:
		return v.items, nil
	case map[string]any:
		if err := r.SpendTimes(len(v), 8*ItemCost); err != nil {
			return nil, err
		}
		items := make([]any, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			items = append(items, k)
		}
		return items, nil
	case string:
		if err := r.SpendTimes(len(v), 2*ItemCost); err != nil {
			return nil, err
		}
		items := make([]any, 0, len(v))
		for _, c := range v {
			items = append(items, string(c))
		}
		return items, nil
	}
	return nil, fmt.Errorf("%s has no items", article(v))
}
