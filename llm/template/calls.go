package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// arguments are what a call has between its brackets.
type arguments struct {
	line       int // of what is called
	positional []expr
	named      map[string]expr
}

// arguments reads the arguments of what is called at line, if it has any.
func (p *parser) arguments(line int) (a arguments, err error) {
	a = arguments{line: line, named: map[string]expr{}}
	if !p.skip("(") {
		return a, nil
	}
	_, err = p.list(")", func() ([]expr, error) { return p.argument(&a) })
	return a, err
}

// argument reads one argument into a.
func (p *parser) argument(a *arguments) (one []expr, err error) {
	t := p.present()
	if t.is("*") || t.is("**") {
		return nil, p.failf(t.line, "%s before an argument is not available", t.text)
	}
	name := ""
	if t.kind == nameToken && p.tokens[1].is("=") {
		name = t.text
		p.tokens = p.tokens[2:]
	}
	x, err := p.expression(true)
	_, again := a.named[name]
	switch {
	case err != nil:
		return nil, err
	case again:
		return nil, p.failf(t.line, "the argument %s is given twice", name)
	case name != "":
		a.named[name] = x
	case len(a.named) > 0:
		return nil, p.failf(t.line, "positional arguments must come first")
	default:
		a.positional = append(a.positional, x)
	}
	return []expr{x}, nil
}

// first removes the first argument and returns the string that it must be.
func (a *arguments) first(name string) (string, error) {
	if len(a.positional) == 0 {
		return "", a.failf("%s: an argument is missing", name)
	}
	c, _ := a.positional[0].(*constExpr)
	if c != nil {
		if s, ok := c.value.(string); ok {
			a.positional = a.positional[1:]
			return s, nil
		}
	}
	return "", a.failf("%s: the first arguments must be string literals", name)
}

func (a *arguments) failf(format string, args ...any) error {
	return &fault{line: a.line, err: fmt.Errorf(format, args...)}
}

// invokeNext reads the arguments of what is called name in table, and returns the call of it for the value of.
func (p *parser) invokeNext(kind string, name *token, table map[string]value.Callable, of expr) (expr, error) {
	a, err := p.arguments(name.line)
	if err != nil {
		return nil, err
	}
	return invoke(kind, name.text, table, of, a)
}

// invoke returns the call of name in table for the value of.
func invoke(kind, name string, table map[string]value.Callable, of expr, a arguments) (expr, error) {
	f, ok := table[name]
	if !ok {
		if instead := notAvailable[kind+" "+name]; instead != "" {
			return nil, a.failf("the %s %s is not available; %s", kind, name, instead)
		}
		return nil, a.failf("the %s %s is not available; there are %s", kind, name, strings.Join(slices.Sorted(maps.Keys(table)), ", "))
	}
	call := &callExpr{name: name, op: f.Op, of: of, undefined: f.Undefined, line: a.line}
	var err error
	switch {
	case f.Named:
		err = call.takeNamed(a)
	case f.Free:
		call.takeFree(a)
	default:
		err = call.take(strings.Fields(f.Params), a)
	}
	return call, err
}

// take puts the arguments in their places among params.
func (x *callExpr) take(params []string, a arguments) error {
	if len(a.positional) > len(params) {
		return a.failf("%s: %d arguments, at most %d are allowed", x.name, len(a.positional), len(params))
	}
	used := 0
	x.args = make([]expr, len(params))
	for i, p := range params {
		p, optional := strings.CutSuffix(p, "?")
		named, byName := a.named[p]
		switch {
		case i < len(a.positional) && byName:
			return a.failf("%s: the argument %s is given twice", x.name, p)
		case i < len(a.positional):
			x.args[i] = a.positional[i]
		case byName:
			x.args[i] = named
			used++
		case optional:
			x.args[i] = &constExpr{value.Missing{}}
		default:
			return a.failf("%s: the argument %s is missing", x.name, p)
		}
	}
	if used < len(a.named) {
		return a.failf("%s: the only arguments are %s", x.name, strings.ReplaceAll(strings.Join(params, " "), "?", ""))
	}
	return nil
}

// takeNamed makes pairs of name and value of the arguments, after those of a mapping.
func (x *callExpr) takeNamed(a arguments) error {
	if len(a.positional) > 1 {
		return a.failf("%s: %d positional arguments, at most 1 is allowed", x.name, len(a.positional))
	}
	for _, key := range slices.Sorted(maps.Keys(a.named)) {
		x.args = append(x.args, &constExpr{key}, a.named[key])
	}
	if len(a.positional) == 0 {
		return nil
	}
	x.of = a.positional[0]
	op := x.op
	x.op = func(r *value.Run, v any, pairs []any) (any, error) {
		all, err := value.PairsOf(r, v)
		if err != nil {
			return nil, err
		}
		return op(r, nil, append(all, pairs...))
	}
	return nil
}

// takeFree passes the positional arguments, followed by the named ones as a mapping.
func (x *callExpr) takeFree(a arguments) {
	var pairs []expr
	for _, name := range slices.Sorted(maps.Keys(a.named)) {
		pairs = append(pairs, &constExpr{name}, a.named[name])
	}
	x.args = append(a.positional, &listExpr{value.Dict, pairs, a.line})
}

// notAvailable says what to write instead of filters and methods of Jinja that are not supported.
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

// filters reads the filters that the value of passes.
func (p *parser) filters(of expr) (expr, error) {
	for n := 1; p.skip("|"); n++ {
		var err error
		if of, err = p.oneFilter(of); err == nil {
			err = p.row(n)
		}
		if err != nil {
			return nil, err
		}
	}
	return of, nil
}

func (p *parser) oneFilter(of expr) (expr, error) {
	name, err := p.expectName("the name of a filter")
	if err != nil {
		return nil, err
	}
	a, err := p.arguments(name.line)
	if err != nil {
		return nil, err
	}
	switch name.text {
	case "default", "d":
		p.ask(of)
		return defaultFilter(of, a)
	case "map", "select", "reject", "selectattr", "rejectattr":
		return eachFilter(name.text, of, a)
	}
	return invoke("filter", name.text, value.Filters, of, a)
}

// defaultFilter returns of|default(value, boolean).
func defaultFilter(of expr, a arguments) (expr, error) {
	given := []expr{&constExpr{""}, &constExpr{false}}
	used := 0
	for i, name := range []string{"default_value", "boolean"} {
		if x, ok := a.named[name]; ok {
			given[i], used = x, used+1
		} else if i < len(a.positional) {
			given[i], used = a.positional[i], used+1
		}
	}
	if used < len(a.positional)+len(a.named) {
		return nil, a.failf("default: the only arguments are default_value boolean, each once")
	}
	return &defaultExpr{of, given[0], given[1], a.line}, nil
}

// eachFilter returns the call of a filter that applies a filter or test, named by its first argument, to each item. The
// name must be in the template: a name that comes from a row could be any.
func eachFilter(name string, of expr, a arguments) (expr, error) {
	kind, table, attribute := "test", value.Tests, ""
	if name == "map" {
		if _, ok := a.named["attribute"]; ok {
			return invoke("filter", name, map[string]value.Callable{name: value.EachAttribute}, of, a)
		}
		kind, table = "filter", value.Filters
	}
	var err error
	if strings.HasSuffix(name, "attr") {
		if attribute, err = a.first(name); err != nil {
			return nil, err
		}
	}
	if len(a.positional) == 0 && name != "map" {
		return invoke("filter", name, map[string]value.Callable{name: value.Each(name, attribute, value.Callable{Op: value.Truth})}, of, a)
	}
	inner, err := a.first(name)
	if err != nil {
		return nil, err
	}
	if f, ok := table[inner]; ok {
		table = map[string]value.Callable{inner: value.Each(name, attribute, f)}
	}
	call, err := invoke(kind, inner, table, of, a)
	return call, err
}

// test reads is name, is not name, and the arguments of the test: one may be without brackets.
func (p *parser) test(of expr) (expr, error) {
	line := p.advance().line
	negative := p.skip("not")
	name, err := p.expectName("the name of a test")
	if err != nil {
		return nil, err
	}
	a, err := p.testArguments(name)
	if err != nil {
		return nil, err
	}
	if name.text == "defined" || name.text == "undefined" {
		p.ask(of)
	}
	table := value.Tests
	if _, ok := value.NameTests[name.text]; ok {
		table = value.NameTests
	}
	x, err := invoke("test", name.text, table, of, a)
	if negative && err == nil {
		x = &unaryExpr{x, value.Not, line}
	}
	return x, err
}

func (p *parser) testArguments(name *token) (arguments, error) {
	t := p.present()
	switch {
	case t.is("is"):
		return arguments{}, p.failf(t.line, `put the test before "is" in brackets`)
	case t.kind == numberToken, t.kind == stringToken, t.is("["), t.is("{"),
		t.kind == nameToken && !t.is("else") && !t.is("or") && !t.is("and"):
		if slices.Contains(operatorWords, t.text) { // Jinja takes them for an argument
			return arguments{}, p.failf(t.line, "put the test before %q in brackets", t.text)
		}
		x, err := p.operand()
		return arguments{line: name.line, positional: []expr{x}}, err
	}
	return p.arguments(name.line)
}
