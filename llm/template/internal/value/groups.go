package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

func filterUnique(r *Run, items, args []any) (any, error) {
	keys, err := r.column(items, args[1], nil, truthOr(args[0], false))
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	out := []any{}
	for i, k := range keys {
		name, err := r.uniqueKey(k)
		if err != nil {
			return nil, err
		}
		if err := r.Spend(4*ItemCost + 2*len(name)); err != nil {
			return nil, err
		}
		if !seen[name] {
			seen[name] = true
			out = append(out, items[i])
		}
	}
	return out, nil
}

// uniqueKey returns a text that is the same for equal scalars and tuples only.
func (r *Run) uniqueKey(v any) (string, error) {
	if s, ok := v.(string); ok {
		return "s" + s, r.SpendTimes(len(s), 2)
	}
	if digits, ok := v.(json.Number); ok {
		return "n" + digits.String(), r.SpendTimes(len(digits), ItemCost)
	}
	if n, ok := number(v); ok {
		switch {
		case n.isInt:
			return "n" + strconv.FormatInt(n.i, 10), nil
		case n.f == 0: // -0.0 too
			return "n0", nil
		case n.f == math.Trunc(n.f) && !math.IsInf(n.f, 0):
			// Adding 0 turns -0.0 into 0.
			return "n" + strconv.FormatFloat(n.f+0, 'f', 0, 64), r.Spend(StepCost)
		}
		return "n" + strconv.FormatFloat(n.f, 'g', -1, 64), nil
	}
	if v == nil {
		return "none", nil
	}
	items, ok := sequence(v)
	if !ok || kindOf(v) != kindTuple {
		return "", fmt.Errorf("%s cannot be compared with all others", article(v))
	}
	key := "t"
	for _, item := range items {
		one, err := r.uniqueKey(item)
		if err == nil {
			err = r.Spend(ItemCost + len(key) + len(one))
		}
		if err != nil {
			return "", err
		}
		key += strconv.Itoa(len(one)) + ":" + one
	}
	return key, nil
}

func filterGroupby(r *Run, items, args []any) (any, error) {
	columns, err := r.column(items, args[0], args[1], true)
	if err != nil {
		return nil, err
	}
	keys, err := r.column(columns, nil, nil, truthOr(args[2], false))
	if err != nil {
		return nil, err
	}
	order, err := r.sorted(keys, false)
	if err != nil {
		return nil, err
	}
	out := []any{}
	var list []any
	for i, at := range order {
		list = append(list, items[at])
		if i+1 < len(order) {
			same, err := r.equal(keys[at], keys[order[i+1]], 0)
			if err != nil {
				return nil, err
			}
			if same {
				continue
			}
		}
		first := order[i+1-len(list)] // the key is taken from the first item, not folded
		out = append(out, &series{kind: kindTuple, items: []any{columns[first], list}, group: true})
		list = nil
	}
	return out, r.SpendTimes(len(items), 2*ItemCost)
}

// filterBatch splits the items into lists of one length and fills up the last one.
func filterBatch(r *Run, items, args []any) (any, error) {
	count, err := r.listCount(items, args, "the length must be 1 or more")
	if err != nil {
		return nil, err
	}
	out := []any{}
	for len(items) > 0 {
		n := min(count, len(items))
		list := slices.Clone(items[:n])
		items = items[n:]
		if missed := count - n; missed > 0 && !absent(args[1]) {
			if err := r.SpendTimes(missed, ItemCost); err != nil {
				return nil, err
			}
			list = append(list, slices.Repeat(args[1:], missed)...)
		}
		out = append(out, list)
	}
	return out, nil
}

// filterSlice splits the items into a number of lists of about the same length and fills
// up the shorter ones.
func filterSlice(r *Run, items, args []any) (any, error) {
	count, err := r.listCount(items, args, "the number of lists must be 1 or more")
	if err == nil {
		err = r.SpendTimes(count, 3*ItemCost)
	}
	if err != nil {
		return nil, err
	}
	each, longer := len(items)/count, len(items)%count
	out := []any{}
	for i := range count {
		n := each
		if i < longer {
			n++
		}
		list := slices.Clone(items[:n])
		items = items[n:]
		if i >= longer && !absent(args[1]) {
			list = append(list, args[1])
		}
		out = append(out, list)
	}
	return out, nil
}

// listCount returns the first argument, which must be at least 1, and pays for lists of
// items.
func (r *Run) listCount(items, args []any, otherwise string) (int, error) {
	count := intOr(args[0], 0)
	if count < 1 {
		return 0, errors.New(otherwise)
	}
	return int(min(count, math.MaxInt32)), r.SpendTimes(len(items), 3*ItemCost)
}
