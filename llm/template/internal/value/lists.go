package value

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// itemAt returns the item at an index; a negative index counts from the end, so -1 is the
// last.
func itemAt(index int64) func(r *Run, items, args []any) (any, error) {
	return func(_ *Run, items, _ []any) (any, error) {
		i, ok := position(index, len(items))
		if !ok {
			return nil, errEmpty
		}
		return items[i], nil
	}
}

var errEmpty = &Undefined{What: "an item of an empty value"}

func filterJoin(r *Run, items, args []any) (any, error) {
	between := ""
	var err error
	if args[0] != any(Missing{}) {
		between, err = r.Text(args[0])
	}
	if err == nil {
		items, err = r.column(items, args[1], nil, true)
	}
	if err == nil {
		err = r.SpendTimes(len(items), len(between))
	}
	if err != nil {
		return nil, err
	}
	w := writer{r: r}
	for i, item := range items {
		if i > 0 {
			w.dst = append(w.dst, between...)
		}
		if w.value(item, 0); w.err != nil {
			break
		}
	}
	return string(w.dst), w.err
}

func filterReverse(r *Run, v any, _ []any) (any, error) {
	items, err := r.Items(v)
	if err != nil {
		return nil, err
	}
	if err := r.SpendTimes(len(items), ItemCost); err != nil {
		return nil, err
	}
	items = slices.Clone(items)
	slices.Reverse(items)
	if _, ok := v.(string); ok {
		return filterJoin(r, items, []any{Missing{}, Missing{}})
	}
	return items, nil
}

func filterSum(r *Run, items, args []any) (any, error) {
	items, err := r.column(items, args[0], nil, true)
	if err != nil {
		return nil, err
	}
	sum := args[1]
	if sum == any(Missing{}) {
		sum = int64(0)
	}
	if _, ok := sum.(string); ok {
		return nil, errors.New("strings cannot be summed; use join")
	}
	for _, item := range items {
		if err := r.Spend(StepCost); err != nil {
			return nil, err
		}
		if sum, err = opAdd(r, sum, []any{item}); err != nil {
			return nil, err
		}
	}
	return sum, nil
}

// attributePath returns an attribute of v. path is names and indexes separated by points.
func attributePath(r *Run, v any, path string) (any, error) {
	for name := range strings.SplitSeq(path, ".") {
		var key any = name
		if i, err := strconv.ParseInt(name, 10, 64); err == nil {
			key = i
		}
		if err := r.Spend(StepCost); err != nil {
			return nil, err
		}
		var err error
		if v, err = r.Item(v, key, "item."+name); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// column returns an attribute of each item, or the items if attribute is absent.
// otherwise stands in for attributes that do not exist, unless it is absent. Unless
// caseSensitive, strings are in lower case.
func (r *Run) column(items []any, attribute, otherwise any, caseSensitive bool) (_ []any, err error) {
	path, ok := mapKey(attribute)
	switch {
	case absent(attribute) && caseSensitive:
		return items, nil
	case !ok && !absent(attribute):
		return nil, fmt.Errorf("an attribute must be a string or an integer, not %s", article(attribute))
	}
	if err := r.SpendTimes(len(items), ItemCost); err != nil {
		return nil, err
	}
	out := slices.Clone(items)
	for i, item := range items {
		if ok {
			out[i], err = attributePath(r, item, path)
		}
		if IsUndefined(err) && !absent(otherwise) {
			out[i], err = otherwise, nil
		}
		if s, isText := out[i].(string); isText && !caseSensitive {
			out[i], err = lower(s), r.SpendTimes(len(s), 2)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// sortKeys returns the key by which each item is sorted: a list if attribute is several,
// separated by commas.
func (r *Run) sortKeys(items []any, attribute any, caseSensitive bool) ([]any, error) {
	path, _ := attribute.(string)
	paths := strings.Split(path, ",")
	if len(paths) == 1 {
		return r.column(items, attribute, nil, caseSensitive)
	}
	if err := r.SpendTimes(len(items), len(paths)*ItemCost); err != nil {
		return nil, err
	}
	keys := make([][]any, len(items))
	for _, path := range paths {
		column, err := r.column(items, path, nil, caseSensitive)
		if err != nil {
			return nil, err
		}
		for i, key := range column {
			keys[i] = append(keys[i], key)
		}
	}
	lists := make([]any, len(keys))
	for i, key := range keys {
		lists[i] = key
	}
	return lists, nil
}

// sorted returns the indexes of keys in a stable order.
func (r *Run) sorted(keys []any, reverse bool) ([]int, error) {
	if err := r.SpendTimes(len(keys), 2*ItemCost); err != nil {
		return nil, err
	}
	order := make([]int, len(keys))
	for i := range keys {
		order[i] = i
	}
	var fault error
	slices.SortStableFunc(order, func(i, j int) int {
		if fault != nil {
			return 0
		}
		var c int
		if c, fault = r.compare(keys[i], keys[j]); c == unordered {
			return 0
		}
		if reverse {
			return -c
		}
		return c
	})
	return order, fault
}

func filterSort(r *Run, items, args []any) (any, error) {
	return r.sortBy(items, args[2], truthOr(args[1], false), truthOr(args[0], false))
}

// sortBy returns items in the order of an attribute.
func (r *Run) sortBy(items []any, attribute any, caseSensitive, reverse bool) ([]any, error) {
	keys, err := r.sortKeys(items, attribute, caseSensitive)
	if err != nil {
		return nil, err
	}
	order, err := r.sorted(keys, reverse)
	if err != nil {
		return nil, err
	}
	out := make([]any, len(order))
	for i, at := range order {
		out[i] = items[at]
	}
	return out, nil
}

func filterDictsort(r *Run, m map[string]any, keys, args []any) (any, error) {
	by := textOr(args[1], "key")
	at := slices.Index([]string{"key", "value"}, by)
	if at < 0 {
		return nil, fmt.Errorf(`by must be "key" or "value", not %q`, by)
	}
	pairs, err := r.members(m, keys, pair)
	if err != nil {
		return nil, err
	}
	return r.sortBy(pairs, int64(at), truthOr(args[0], false), truthOr(args[2], false))
}

func filterList(_ *Run, items, _ []any) (any, error) { return items, nil }

// extreme returns the least item for -1, the greatest for 1, the first of equal ones.
func extreme(sign int) func(r *Run, items, args []any) (any, error) {
	return func(r *Run, items, args []any) (any, error) {
		if len(items) == 0 {
			return nil, errEmpty
		}
		keys, err := r.column(items, args[1], nil, truthOr(args[0], false))
		if err != nil {
			return nil, err
		}
		best := 0
		for i := range keys {
			c, err := r.compare(keys[i], keys[best])
			if err != nil && i > 0 {
				return nil, err
			}
			if c == sign {
				best = i
			}
		}
		return items[best], nil
	}
}
