package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"


	"github.com/llm-stage/stage/llm/row"
)

// The values of templates: nil, bool, int64, float64, string, []any, map[string]any, *series for sequences that are
// no lists, and json.Number for integers beyond int64. None is ever changed. Beside them a template meets its own
// *namespace, and *loopState.

// namespace is what the function of that name makes: the one thing a template can change.
type namespace struct{ members map[string]any }

// blank is "a if b" where b is false: it is written as nothing, is false, and is not defined.
type blank struct{}

// maxValueDepth bounds how deep a value may nest to be written or compared. Rows nest less.
const maxValueDepth = 20_000

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
	case *namespace:
		return "namespace"
	case blank:
		return "undefined"
	}
	return "loop"
}

// article returns the name of v's type with its article, for messages.
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

// truthy is the truth of a value in a condition.
func truthy(v any) bool {
	switch v := v.(type) {
	case nil, blank:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case *series:
		return len(v.items) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

func opTruth(_ *run, v any, _ []any) (any, error) { return truthy(v), nil }
func opNot(_ *run, v any, _ []any) (any, error)   { return !truthy(v), nil }

func opList(r *run, _ any, args []any) (any, error) {
	return args, r.spendTimes(len(args), itemCost)
}

func opDict(r *run, _ any, args []any) (any, error) {
	if err := r.spendTimes(len(args), 2*itemCost); err != nil {
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

// pairsOf returns keys and values in turn of a mapping or a list of pairs.
func pairsOf(r *run, v any) ([]any, error) {
	keys, err := r.items(v)
	if err != nil {
		return nil, err
	}
	if err := r.spendTimes(len(keys), 2*itemCost); err != nil {
		return nil, err
	}
	pairs := make([]any, 0, 2*len(keys))
	m, isMapping := v.(map[string]any)
	for _, key := range keys {
		if name, ok := key.(string); ok && isMapping {
			pairs = append(pairs, key, m[name])
			continue
		}
		pair, err := r.items(key)
		if err != nil || len(pair) != 2 {
			return nil, fmt.Errorf("%s is no pair of key and value", article(key))
		}
		pairs = append(pairs, pair...)
	}
	return pairs, nil
}

// mapKey returns the key that v stands for. Keys are strings: 1 finds "1".
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

// item returns v.key or v[key]. written is how the template has it.
func (r *run) item(v, key any, written string) (any, error) {
	index, isIndex := key.(int64)
	if truth, ok := key.(bool); ok { // which is 0 or 1, as in Python
		n, _ := number(truth)
		index, isIndex = n.i, true
	}
	name, _ := mapKey(key)
	switch v := v.(type) {
	case *row.Variables:
		if got, ok := v.Member(name); ok {
			return got, nil
		}
	case map[string]any:
		if got, ok := v[name]; ok {
			return got, nil
		}
	case *namespace:
		if got, ok := v.members[name]; ok {
			return got, nil
		}
	case *loopState:
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
		if err := r.spendTimes(len(v), 4); err != nil {
			return nil, err
		}
		runes := []rune(v)
		if i, ok := position(index, len(runes)); ok {
			return string(runes[i]), nil
		}
	}
	return nil, &undefined{what: written, in: v, isItem: true}
}

// position returns the place that index means in n items; negative ones count from the end.
func position(index int64, n int) (int, bool) {
	if index < 0 {
		index += int64(n)
	}
	return int(index), index >= 0 && index < int64(n)
}

// undefined is the error of a name or an item that does not exist.
type undefined struct {
	what   string // as the template has it
	in     any    // where an item was looked for
	isItem bool
}

func (u *undefined) Error() string { return "undefined: " + u.what }

func isUndefined(err error) bool {
	_, ok := errors.AsType[*undefined](err)
	return ok
}

// hint says what there is in the value in which an item is undefined. It waits until it is needed: the default filter
// forgives what is undefined.
func (u *undefined) hint() string {
	if !u.isItem {
		return ""
	}
	m, ok := u.in.(map[string]any)
	if v, isRow := u.in.(*row.Variables); isRow {
		m, ok = v.All(), true
	}
	if !ok {
		return "it is looked for in " + article(u.in)
	}
	what := u.what[:max(0, strings.LastIndexAny(u.what, ".["))]
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

// loopState is what a loop knows about its progress. Templates see it as loop.
type loopState struct {
	items []any
	index int
	seen  []any // by loop.changed, at its last call
}

func (l *loopState) attribute(name string) (any, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.index + 1), true
	case "index0":
		return int64(l.index), true
	case "revindex":
		return int64(n - l.index), true
	case "revindex0":
		return int64(n - l.index - 1), true
	case "first":
		return l.index == 0, true
	case "last":
		return l.index == n-1, true
	case "length":
		return int64(n), true
	case "depth": // of recursion, which there is none
		return int64(1), true
	case "depth0":
		return int64(0), true
	case "previtem":
		if l.index > 0 {
			return l.items[l.index-1], true
		}
	case "nextitem":
		if l.index < n-1 {
			return l.items[l.index+1], true
		}
	}
	return nil, false
}

// items returns what a loop over v goes through: the items of a list, the keys of a
// mapping in their order, the characters of a string.
func (r *run) items(v any) ([]any, error) {
	switch v := v.(type) {
	case blank:
		return []any{}, nil
	case []any:
		return v, nil
	case *series:
		return v.items, nil
	case map[string]any:
		if err := r.spendTimes(len(v), 8*itemCost); err != nil {
			return nil, err
		}
		items := make([]any, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			items = append(items, k)
		}
		return items, nil
	case string:
		if err := r.spendTimes(len(v), 2*itemCost); err != nil {
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
