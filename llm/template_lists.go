package llm

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

var errEmpty = &templateFault{msg: "undefined: an item of something empty", undefined: true}

func filterFirst(r *rendering, v any, _ []any) (any, error) {
	items, err := r.items(v)
	if err != nil || len(items) == 0 {
		return nil, orEmpty(err)
	}
	return items[0], nil
}

func filterLast(r *rendering, v any, _ []any) (any, error) {
	items, err := r.items(v)
	if err != nil || len(items) == 0 {
		return nil, orEmpty(err)
	}
	return items[len(items)-1], nil
}

// orEmpty returns err, or the error of an item that something empty does not have.
func orEmpty(err error) error {
	if err == nil {
		fault := *errEmpty
		return &fault
	}
	return err
}

func filterJoin(r *rendering, v any, args []any) (any, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	between := ""
	if args[0] != any(missing{}) {
		if between, err = r.text(args[0]); err != nil {
			return nil, err
		}
	}
	if items, err = r.attributes(items, args[1]); err != nil {
		return nil, err
	}
	if err := r.spendTimes(len(items), len(between)); err != nil {
		return nil, err
	}
	var text []byte
	for i, item := range items {
		if i > 0 {
			text = append(text, between...)
		}
		if text, err = r.appendText(text, item, 0); err != nil {
			return nil, err
		}
	}
	return string(text), nil
}

func filterReverse(r *rendering, v any, _ []any) (any, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	if err := r.spendTimes(len(items), itemCost); err != nil {
		return nil, err
	}
	items = slices.Clone(items)
	slices.Reverse(items)
	if _, ok := v.(string); ok {
		return filterJoin(r, items, []any{missing{}, missing{}})
	}
	return items, nil
}

func filterSum(r *rendering, v any, args []any) (any, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	if items, err = r.attributes(items, args[0]); err != nil {
		return nil, err
	}
	sum := args[1]
	if sum == any(missing{}) {
		sum = int64(0)
	}
	for _, item := range items {
		if err := r.spend(stepCost); err != nil {
			return nil, err
		}
		if sum, err = addNumbers(r, sum, []any{item}); err != nil {
			return nil, err
		}
	}
	return sum, nil
}

// attributePath returns an attribute of v: a name, or several with points between, or an
// index.
func attributePath(r *rendering, v any, path string) (any, error) {
	for name := range strings.SplitSeq(path, ".") {
		var key any = name
		if i, err := strconv.ParseInt(name, 10, 64); err == nil {
			key = i
		}
		if err := r.spend(stepCost); err != nil {
			return nil, err
		}
		var err error
		if v, err = r.item(v, key, "item."+name); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func isUndefined(err error) bool {
	f, ok := err.(*templateFault) //nolint:errorlint // faults of ours are never wrapped
	return ok && f.undefined
}

// attributes returns the attribute of each item, or the items if there is no attribute.
func (r *rendering) attributes(items []any, attribute any) ([]any, error) {
	if attribute == any(missing{}) || attribute == nil {
		return items, nil
	}
	path, ok := mapKey(attribute)
	if !ok {
		return nil, fmt.Errorf("an attribute is a string or an integer, not %s", article(attribute))
	}
	if err := r.spendTimes(len(items), itemCost); err != nil {
		return nil, err
	}
	out := make([]any, len(items))
	for i, item := range items {
		var err error
		if out[i], err = attributePath(r, item, path); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func mapAttribute(r *rendering, v any, args []any) (any, error) {
	items, err := r.items(v)
	if err != nil || args[1] == any(missing{}) {
		if err == nil {
			items, err = r.attributes(items, args[0])
		}
		return items, err
	}
	path, _ := mapKey(args[0])
	out := []any{}
	for _, item := range items {
		if err := r.spend(itemCost); err != nil {
			return nil, err
		}
		got, err := attributePath(r, item, path)
		if isUndefined(err) {
			got, err = args[1], nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, got)
	}
	return out, nil
}

// sorted returns the order of keys, as indexes, equal ones in the order they have.
func (r *rendering) sorted(keys []any, caseSensitive bool) ([]int, error) {
	if err := r.spendTimes(len(keys), 2*itemCost); err != nil {
		return nil, err
	}
	order := make([]int, len(keys))
	folded := make([]any, len(keys))
	for i, k := range keys {
		order[i], folded[i] = i, k
		if s, ok := k.(string); ok && !caseSensitive {
			if err := r.spend(len(s)); err != nil {
				return nil, err
			}
			folded[i] = strings.ToLower(s)
		}
	}
	var fault error
	slices.SortStableFunc(order, func(i, j int) int {
		if fault != nil {
			return 0
		}
		var c int
		c, fault = r.compare(folded[i], folded[j])
		return c
	})
	return order, fault
}

func filterSort(r *rendering, v any, args []any) (any, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	reverse := boolArg(args, 0, false)
	caseSensitive := boolArg(args, 1, false)
	keys, err := r.attributes(items, args[2])
	if err != nil {
		return nil, err
	}
	if reverse { // so that equal items stay in their order
		items, keys = slices.Clone(items), slices.Clone(keys)
		slices.Reverse(items)
		slices.Reverse(keys)
	}
	order, err := r.sorted(keys, caseSensitive)
	if err != nil {
		return nil, err
	}
	out := make([]any, len(order))
	for i, at := range order {
		out[i] = items[at]
	}
	if reverse {
		slices.Reverse(out)
	}
	return out, nil
}

func filterDictsort(r *rendering, v any, _ []any) (any, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is no mapping", article(v))
	}
	keys, err := filterSort(r, m, []any{missing{}, missing{}, missing{}})
	if err != nil {
		return nil, err
	}
	return r.pairs(m, keys.([]any)) //nolint:forcetypeassert // filterSort returns lists
}

// extreme is the least item for -1, the greatest for 1; strings without regard to case.
func extreme(sign int) operation {
	return func(r *rendering, v any, args []any) (any, error) {
		items, err := r.items(v)
		if err != nil || len(items) == 0 {
			return nil, orEmpty(err)
		}
		keys, err := r.attributes(items, args[0])
		if err != nil {
			return nil, err
		}
		order, err := r.sorted(keys, false)
		if err != nil {
			return nil, err
		}
		at := order[0]
		if sign > 0 {
			at = order[len(order)-1]
			for _, i := range order { // of equal ones the first, as Jinja
				if c, err := r.compare(keys[i], keys[at]); err == nil && c == 0 {
					at = i
					break
				}
			}
		}
		return items[at], nil
	}
}

func filterUnique(r *rendering, v any, args []any) (any, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	caseSensitive := boolArg(args, 0, false)
	keys, err := r.attributes(items, args[1])
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	out := []any{}
	for i, k := range keys {
		name, err := uniqueKey(k, caseSensitive)
		if err != nil {
			return nil, err
		}
		if err := r.spend(4*itemCost + 2*len(name)); err != nil {
			return nil, err
		}
		if !seen[name] {
			seen[name] = true
			out = append(out, items[i])
		}
	}
	return out, nil
}

// uniqueKey writes equal scalars alike and others differently.
func uniqueKey(v any, caseSensitive bool) (string, error) {
	if s, ok := v.(string); ok {
		if !caseSensitive {
			s = strings.ToLower(s)
		}
		return "s" + s, nil
	}
	if _, f, _, ok := number(v); ok {
		if i, isInt := v.(int64); isInt {
			return "n" + strconv.FormatInt(i, 10), nil
		}
		if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
			return "n" + strconv.FormatInt(int64(f), 10), nil
		}
		return "n" + strconv.FormatFloat(f, 'g', -1, 64), nil
	}
	if v == nil {
		return "none", nil
	}
	return "", fmt.Errorf("%s cannot be compared with all others", article(v))
}

func filterGroupby(r *rendering, v any, args []any) (any, error) {
	sorted, err := filterSort(r, v, []any{missing{}, missing{}, args[0]})
	if err != nil {
		return nil, err
	}
	items, _ := sorted.([]any)
	keys, err := r.attributes(items, args[0])
	if err != nil {
		return nil, err
	}
	out := []any{}
	for start := 0; start < len(items); {
		end := start + 1
		for ; end < len(items); end++ {
			same, err := r.equal(folded(keys[start]), folded(keys[end]), 0)
			if err != nil {
				return nil, err
			}
			if !same {
				break
			}
		}
		out = append(out, []any{keys[start], items[start:end:end]})
		start = end
	}
	return out, r.spendTimes(len(items), 2*itemCost)
}

func folded(v any) any {
	if s, ok := v.(string); ok {
		return strings.ToLower(s)
	}
	return v
}

// pairs returns a list of key and value for each key.
func (r *rendering) pairs(m map[string]any, keys []any) ([]any, error) {
	if err := r.spendTimes(len(keys), 4*itemCost); err != nil {
		return nil, err
	}
	out := make([]any, len(keys))
	for i, k := range keys {
		key, _ := k.(string)
		out[i] = []any{k, m[key]}
	}
	return out, nil
}
