package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

func filterUnique(r *Run, v any, args []any) (any, error) {
	items, err := r.Items(v)
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
		name, err := r.uniqueKey(k, caseSensitive)
		if err != nil {
			return nil, err
		}
		if err := r.Spend(4*itemCost + 2*len(name)); err != nil {
			return nil, err
		}
		if !seen[name] {
			seen[name] = true
			out = append(out, items[i])
		}
	}
	return out, nil
}

// uniqueKey writes equal scalars and tuples alike, and others differently.
func (r *Run) uniqueKey(v any, caseSensitive bool) (string, error) {
	if s, ok := v.(string); ok {
		if !caseSensitive {
			s = lower(s)
		}
		return "s" + s, r.SpendTimes(len(s), 2)
	}
	if digits, ok := v.(json.Number); ok {
		return "n" + digits.String(), r.SpendTimes(len(digits), itemCost)
	}
	if n, ok := number(v); ok {
		switch {
		case n.isInt:
			return "n" + strconv.FormatInt(n.i, 10), nil
		case n.f == 0: // -0.0 too
			return "n0", nil
		case n.f == math.Trunc(n.f) && !math.IsInf(n.f, 0):
			return "n" + strconv.FormatFloat(n.f+0, 'f', 0, 64), r.Spend(StepCost) // + 0: of -0.0, too, it makes 0
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
	for _, item := range items { // case is ignored in the key itself alone
		one, err := r.uniqueKey(item, true)
		if err == nil {
			err = r.Spend(itemCost + len(key) + len(one))
		}
		if err != nil {
			return "", err
		}
		key += strconv.Itoa(len(one)) + ":" + one
	}
	return key, nil
}

func filterGroupby(r *Run, v any, args []any) (any, error) {
	items, err := r.Items(v)
	if err != nil {
		return nil, err
	}
	columns, err := r.attributesOr(items, args[0], args[1])
	if err != nil {
		return nil, err
	}
	keys := slices.Clone(columns)
	if !boolArg(args, 2, false) {
		for i, k := range keys {
			if keys[i], err = r.folded(k); err != nil {
				return nil, err
			}
		}
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
		first := order[i+1-len(list)] // whose key is written as it is
		out = append(out, &series{kind: kindTuple, items: []any{columns[first], list}, group: true})
		list = nil
	}
	return out, r.SpendTimes(len(items), 2*itemCost)
}

// filterBatch returns the items in lists of a length, the last one filled up.
func filterBatch(r *Run, v any, args []any) (any, error) {
	items, err := r.Items(v)
	if err != nil {
		return nil, err
	}
	count, err := intArg(args, 0, 0)
	if err != nil {
		return nil, err
	}
	if count < 1 {
		return nil, errors.New("the length is 1 or more")
	}
	if err := r.SpendTimes(len(items), 3*itemCost); err != nil {
		return nil, err
	}
	out := []any{}
	for len(items) > 0 {
		n := int(min(count, int64(len(items))))
		list := slices.Clone(items[:n])
		items = items[n:]
		if missed := int(min(count, math.MaxInt32)) - n; missed > 0 && args[1] != any(Missing{}) && args[1] != nil {
			if err := r.SpendTimes(missed, itemCost); err != nil {
				return nil, err
			}
			list = slices.Concat(list, slices.Repeat([]any{args[1]}, missed))
		}
		out = append(out, list)
	}
	return out, nil
}

// filterSlice returns the items in a number of lists of about the same length, shorter ones filled up.
func filterSlice(r *Run, v any, args []any) (any, error) {
	items, err := r.Items(v)
	if err != nil {
		return nil, err
	}
	count, err := intArg(args, 0, 0)
	if err != nil {
		return nil, err
	}
	if count < 1 {
		return nil, errors.New("the number of lists is 1 or more")
	}
	if err := r.SpendTimes(int(min(count, math.MaxInt32))+len(items), 3*itemCost); err != nil {
		return nil, err
	}
	each, longer := len(items)/int(count), len(items)%int(count)
	out := []any{}
	for i := range int(count) {
		n := each
		if i < longer {
			n++
		}
		list := slices.Clone(items[:n])
		items = items[n:]
		if i >= longer && args[1] != any(Missing{}) && args[1] != nil {
			list = append(list, args[1])
		}
		out = append(out, list)
	}
	return out, nil
}
