package value

import "strings"

// Each returns the filter called name (map, select, reject, selectattr or rejectattr) that applies f to each item, or
// to its attribute, unless that is empty.
func Each(name, attribute string, f Callable) Callable {
	keep := !strings.HasPrefix(name, "reject")
	return Callable{Params: f.Params, Free: f.Free, Op: func(r *Run, v any, args []any) (any, error) {
		if !Truthy(v) { // none, too, as in Jinja
			return []any{}, nil
		}
		items, err := r.Items(v)
		if err != nil {
			return nil, err
		}
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
	}}
}

// EachAttribute is map(attribute=…).
var EachAttribute = Callable{Op: mapAttribute, Params: "attribute default?"}

func mapAttribute(r *Run, v any, args []any) (any, error) {
	if !Truthy(v) {
		return []any{}, nil
	}
	items, err := r.Items(v)
	if err != nil {
		return nil, err
	}
	return r.attributesOr(items, args[0], args[1])
}
