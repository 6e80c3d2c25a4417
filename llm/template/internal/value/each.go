package value

import "strings"

// Each returns the filter called name (map, select, reject, selectattr or rejectattr)
// that applies f to each item, or to its attribute unless that is "".
func Each(name, attribute string, f Callable) Callable {
	keep := !strings.HasPrefix(name, "reject")
	return Callable{Params: f.Params, Free: f.Free, Op: onTruthy(func(r *Run, items, args []any) (_ any, err error) {
		out := []any{}
		for _, item := range items {
			if err := r.Spend(StepCost + ItemCost); err != nil {
				return nil, err
			}
			of := item
			if attribute != "" {
				if of, err = attributePath(r, item, attribute); err != nil {
					if !f.Undefined || !IsUndefined(err) {
						return nil, err
					}
					of = Missing{}
				}
			}
			got, err := f.Op(r, of, args)
			if err != nil {
				return nil, err
			}
			if name == "map" {
				out = append(out, got)
			} else if Truthy(got) == keep {
				out = append(out, item)
			}
		}
		return out, nil
	})}
}

// EachAttribute is map(attribute=…).
var EachAttribute = Callable{Params: "attribute default?", Op: onTruthy(func(r *Run, items, args []any) (any, error) {
	return r.column(items, args[0], args[1], true)
})}

// onTruthy passes op the items of a value. As in Jinja, none, false and 0 have none.
func onTruthy(op func(r *Run, items, args []any) (any, error)) Operation {
	items := onItems(op)
	return func(r *Run, v any, args []any) (any, error) {
		if !Truthy(v) {
			return []any{}, nil
		}
		return items(r, v, args)
	}
}
