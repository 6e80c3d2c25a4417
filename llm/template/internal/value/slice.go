package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Slice is v[start:end:step], with the rules of Python.
func Slice(r *Run, v any, args []any) (any, error) {
	text, isText := v.(string)
	list, isList := itemsOf(v)
	view, isSeries := v.(*series)
	var runes []rune
	switch {
	case isText:
		if err := r.SpendTimes(len(text), 4); err != nil {
			return nil, err
		}
		runes = []rune(text)
	case !isList, isSeries && !view.indexed():
		return nil, fmt.Errorf("%s cannot be sliced", article(v))
	}
	n := int64(max(len(list), len(runes)))
	start, end, step, err := sliceBounds(args, n)
	if err != nil {
		return nil, err
	}
	if err := r.SpendTimes(int(n), itemCost); err != nil {
		return nil, err
	}
	out, outRunes := []any{}, []rune{}
	for i := start; step > 0 && i < end || step < 0 && i > end; i += step {
		if isText {
			outRunes = append(outRunes, runes[i])
		} else {
			out = append(out, list[i])
		}
		if step > n || step < -n { // and i+step might overflow
			break
		}
	}
	switch {
	case isText:
		return string(outRunes), nil
	case isSeries:
		return view.slice(out, start, end, step), nil
	}
	return out, nil
}

// sliceBounds returns the bounds and the step of a slice of n items, of which those left out are none.
func sliceBounds(args []any, n int64) (start, end, step int64, err error) {
	var given [3]*int64
	for i, a := range args {
		switch a := a.(type) {
		case nil:
		case int64:
			given[i] = &a
		case json.Number: // beyond every item
			far := int64(math.MaxInt64)
			if a[0] == '-' {
				far = math.MinInt64
			}
			given[i] = &far
		default:
			return 0, 0, 0, fmt.Errorf("a slice has integers, not %s", article(a))
		}
	}
	step = 1
	if given[2] != nil {
		step = *given[2]
	}
	if step == 0 {
		return 0, 0, 0, errors.New("the step of a slice is 0")
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
