package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// operation computes a value from v and args, or says why it cannot. It pays for what it
// does and changes neither.
type operation func(r *rendering, v any, args []any) (any, error)

// callable is a filter, test, function or method.
type callable struct {
	op operation
	// params are the names of the arguments. Those that may be left out end in "?".
	params string
	// named: takes any named arguments, as pairs of name and value, and before them a mapping or list of pairs.
	named bool
	// free: takes any arguments, which freeArgs takes apart.
	free bool
	// undefined: op gets missing for an attribute that does not exist.
	undefined bool
}

// missing stands in the place of an argument that is left out.
type missing struct{}

// invoke compiles a call of the name in table for the value of.
func (c *templateCompiler) invoke(kind, name string, table map[string]callable, of nodes.Expression, args []nodes.Expression, kwargs map[string]nodes.Expression) (nodes.Expression, error) {
	f, ok := table[name]
	if !ok {
		if instead := notAvailable[kind+" "+name]; instead != "" {
			return nil, c.errorf("the %s %s is not available; %s", kind, name, instead)
		}
		return nil, c.errorf("the %s %s is not available; there are %s", kind, name, strings.Join(slices.Sorted(maps.Keys(table)), ", "))
	}
	op := func(r *rendering, v any, args []any) (any, error) {
		got, err := f.op(r, v, args)
		if _, ok := err.(*templateFault); err != nil && !ok { //nolint:errorlint // faults of ours are never wrapped
			err = fmt.Errorf("%s: %w", name, err)
		}
		return got, err
	}
	if f.named {
		return c.invokeNamed(name, op, args, kwargs)
	}
	if f.free {
		return c.invokeFree(op, of, args, kwargs)
	}
	params := strings.Fields(f.params)
	if len(args) > len(params) {
		return nil, c.errorf("%s: %d arguments, at most %d are allowed", name, len(args), len(params))
	}
	var given []nodes.Expression
	slots := make([]int, 0, len(params)) // of given in params
	used := 0
	for i, p := range params {
		p, optional := strings.CutSuffix(p, "?")
		x, byName := kwargs[p]
		switch {
		case i < len(args) && byName:
			return nil, c.errorf("%s: the argument %s is given twice", name, p)
		case i < len(args):
			x = args[i]
		case byName:
			used++
		case optional:
			continue
		default:
			return nil, c.errorf("%s: the argument %s is missing", name, p)
		}
		given, slots = append(given, x), append(slots, i)
	}
	if used < len(kwargs) {
		return nil, c.errorf("%s: it has only the arguments %s", name, strings.ReplaceAll(f.params, "?", ""))
	}
	given, err := c.expressions(given)
	if err != nil {
		return nil, err
	}
	return c.apply(func(r *rendering, v any, given []any) (any, error) {
		all := given
		if len(given) < len(params) {
			all = slices.Repeat([]any{missing{}}, len(params))
			for i, slot := range slots {
				all[slot] = given[i]
			}
		}
		return op(r, v, all)
	}, of, given...), nil
}

func (c *templateCompiler) invokeNamed(name string, op operation, args []nodes.Expression, kwargs map[string]nodes.Expression) (nodes.Expression, error) {
	if len(args) > 1 {
		return nil, c.errorf("%s: %d arguments without names, at most 1 is allowed", name, len(args))
	}
	var pairs []nodes.Expression
	for _, key := range slices.Sorted(maps.Keys(kwargs)) {
		x, err := c.expression(kwargs[key])
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, &nodes.String{Location: &tokens.Token{Val: key}, Val: key}, x)
	}
	if len(args) == 0 {
		return c.apply(op, none, pairs...), nil
	}
	base, err := c.expression(args[0])
	return c.apply(func(r *rendering, v any, pairs []any) (any, error) {
		all, err := pairsOf(r, v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return op(r, nil, append(all, pairs...))
	}, base, pairs...), err
}

// invokeFree gives op the positional arguments, and behind them the named ones as a mapping.
func (c *templateCompiler) invokeFree(op operation, of nodes.Expression, args []nodes.Expression, kwargs map[string]nodes.Expression) (nodes.Expression, error) {
	names := slices.Sorted(maps.Keys(kwargs))
	for _, name := range names {
		args = append(slices.Clip(args), kwargs[name])
	}
	all, err := c.expressions(args)
	return c.apply(func(r *rendering, v any, args []any) (any, error) {
		if err := r.spendTimes(len(args), itemCost); err != nil {
			return nil, err
		}
		positional := len(args) - len(names)
		named := make(map[string]any, len(names))
		for i, name := range names {
			named[name] = args[positional+i]
		}
		return op(r, v, append(slices.Clone(args[:positional]), named))
	}, of, all...), err
}

// freeArgs takes apart the arguments of what is free.
func freeArgs(args []any) (positional []any, named map[string]any) {
	last := len(args) - 1
	named, _ = args[last].(map[string]any)
	return args[:last], named
}

// notAvailable says what to write in the place of filters and methods of Jinja that there are not.
var notAvailable = map[string]string{
	"filter random":     "a prompt must be the same each time; take an item by a field of the row, as in list[row.id % list|length]",
	"filter pprint":     "write tojson(indent=2)",
	"filter urlize":     "a prompt needs no links; write the text itself",
	"filter attr":       "write row.name or row[name]",
	"filter wordwrap":   "a model needs no line breaks; write truncate to shorten a text",
	"method encode":     "text is UTF-8; write the string itself",
	"method append":     "lists cannot be changed; write {% set x = x + [item] %}",
	"method update":     "mappings cannot be changed; write dict(a=1) or {\"a\": 1} as a whole",
	"method format_map": "write format(a=m.a), or \"%(a)s\" % m",
	"method translate":  "write replace",
}

// filtered compiles x|filter|filter.
func (c *templateCompiler) filtered(x *nodes.FilteredExpression) (nodes.Expression, error) {
	first := x.Filters[0].Token
	c.at(first)
	if t := lastTest(x.Expression); t != nil && c.source.together(t.Test.Token, first) &&
		(x.Expression != nodes.Expression(t) || c.leftOfTest(t) != nil) {
		// Where a test ends an expression, gonja gives the filter behind it the whole expression.
		return nil, c.errorf("put brackets around what the filter %s is for", x.Filters[0].Name)
	}
	if c.depth+len(x.Filters) > maxExpressionDepth { // each is evaluated within the next
		return nil, c.errorf("more than %d filters in a row", maxExpressionDepth-c.depth)
	}
	of, err := c.expression(x.Expression)
	for i, f := range x.Filters {
		if err != nil {
			return nil, err
		}
		c.at(f.Token)
		if i == 0 {
			c.askDefault(f, x.Expression)
		}
		of, err = c.oneFilter(f, of)
	}
	return of, err
}

// lastTest returns the test that ends x, or nil.
func lastTest(x nodes.Expression) *nodes.TestExpression {
	for {
		switch e := x.(type) {
		case *nodes.TestExpression:
			return e
		case *nodes.Negation:
			x = e.Term
		case *nodes.BinaryExpression:
			x = e.Right
		default:
			return nil
		}
	}
}

// askDefault notes that a default filter asks whether x is defined.
func (c *templateCompiler) askDefault(f *nodes.FilterCall, x nodes.Expression) {
	if f.Name == "default" || f.Name == "d" {
		c.ask(x)
	}
}

// ownFilters are those that are more than an operation on values.
var ownFilters = []string{"default", "d", "map", "select", "reject", "selectattr", "rejectattr"}

func isFilter(name string) bool {
	_, ok := filters[name]
	return ok || slices.Contains(ownFilters, name)
}

func (c *templateCompiler) oneFilter(f *nodes.FilterCall, of nodes.Expression) (nodes.Expression, error) {
	switch f.Name {
	case "default", "d":
		return c.defaultFilter(f, of)
	case "map", "select", "reject", "selectattr", "rejectattr":
		return c.eachFilter(f, of)
	}
	return c.invoke("filter", f.Name, filters, of, f.Args, f.Kwargs)
}

// defaultFilter compiles of|default(value, boolean): the value is evaluated only when needed.
func (c *templateCompiler) defaultFilter(f *nodes.FilterCall, of nodes.Expression) (nodes.Expression, error) {
	value, boolean := nodes.Expression(&nodes.String{Location: &tokens.Token{}}), nodes.Expression(&nodes.Bool{Location: &tokens.Token{}})
	used := 0
	for i, p := range []struct {
		name string
		to   *nodes.Expression
	}{{"default_value", &value}, {"boolean", &boolean}} {
		if x, ok := f.Kwargs[p.name]; ok {
			*p.to, used = x, used+1
		} else if i < len(f.Args) {
			*p.to, used = f.Args[i], used+1
		}
	}
	if used < len(f.Args)+len(f.Kwargs) {
		return nil, c.errorf("default: it has only the arguments default_value boolean, each once")
	}
	both, err := c.expressions([]nodes.Expression{value, boolean})
	if err != nil {
		return nil, err
	}
	return c.filter(func(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
		if in.IsError() {
			if !renderingOf(e).forgive() {
				return in
			}
			return e.Eval(both[0])
		}
		if truthy(valueOf(params.Args[0])) && !truthy(valueOf(in)) {
			return e.Eval(both[0])
		}
		return in
	}, of, both[1]), nil
}

// eachFilter compiles the filters that apply a filter or test, named by their first
// argument, to each item. The name must be in the template: a name that comes from a row
// could be any.
func (c *templateCompiler) eachFilter(f *nodes.FilterCall, of nodes.Expression) (nodes.Expression, error) {
	args := f.Args
	literal := func() (string, error) {
		if len(args) == 0 {
			return "", c.errorf("%s: an argument is missing", f.Name)
		}
		s, ok := args[0].(*nodes.String)
		if !ok {
			return "", c.errorf("%s: its first arguments must be written as strings", f.Name)
		}
		args = args[1:]
		return s.Val, nil
	}
	kind, table, attribute := "test", tests, ""
	if f.Name == "map" {
		if _, ok := f.Kwargs["attribute"]; ok {
			m := map[string]callable{"map": {op: mapAttribute, params: "attribute default?"}}
			return c.invoke("filter", "map", m, of, args, f.Kwargs)
		}
		kind, table = "filter", filters
	}
	if strings.HasSuffix(f.Name, "attr") {
		var err error
		if attribute, err = literal(); err != nil {
			return nil, err
		}
	}
	if len(args) == 0 && f.Name != "map" {
		m := map[string]callable{f.Name: each(f.Name, attribute, callable{op: opTruth})}
		return c.invoke("filter", f.Name, m, of, nil, f.Kwargs)
	}
	name, err := literal()
	if err != nil {
		return nil, err
	}
	if inner, ok := table[name]; ok {
		table = map[string]callable{name: each(f.Name, attribute, inner)}
	}
	return c.invoke(kind, name, table, of, args, f.Kwargs)
}

// each returns the filter called name that applies f to each item, or to its attribute.
func each(name, attribute string, f callable) callable {
	keep := !strings.HasPrefix(name, "reject")
	return callable{params: f.params, free: f.free, op: func(r *rendering, v any, args []any) (any, error) {
		if !truthy(v) { // none, too, as in Jinja
			return []any{}, nil
		}
		items, err := r.items(v)
		if err != nil {
			return nil, err
		}
		out := []any{}
		for _, item := range items {
			if err := r.spend(stepCost + itemCost); err != nil {
				return nil, err
			}
			of := item
			if attribute != "" {
				if of, err = attributePath(r, item, attribute); err != nil {
					if !f.undefined || !isUndefined(err) {
						return nil, err
					}
					of = missing{}
				}
			}
			got, err := f.op(r, of, args)
			if err != nil {
				return nil, err
			}
			if name == "map" {
				out = append(out, got)
			} else if truthy(got) == keep {
				out = append(out, item)
			}
		}
		return out, nil
	}}
}
