package template

import (
	"maps"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// arguments are the arguments of a call.
type arguments struct {
	line       int // of the name that is called
	positional []expr
	named      map[string]expr
}

// arguments reads the arguments of the call at line, if it has any.
func (p *exprParser) arguments(line int) arguments {
	a := arguments{line: line, named: map[string]expr{}}
	if p.skip("(") {
		p.list(")", func() []expr { return p.argument(&a) })
	}
	return a
}

// argument reads one argument into a.
func (p *exprParser) argument(a *arguments) []expr {
	t := p.present()
	if t.is("*") || t.is("**") {
		p.failf(t.line, "%s before an argument is not available", t.text)
	}
	name := ""
	if t.kind == nameToken && p.tokens[1].is("=") {
		name = t.text
		p.tokens = p.tokens[2:]
	}
	x := p.expression(true)
	_, again := a.named[name]
	switch {
	case again:
		p.failf(t.line, "the argument %s is given twice", name)
	case name != "":
		a.named[name] = x
	case len(a.named) > 0:
		p.failf(t.line, "positional arguments must come first")
	default:
		a.positional = append(a.positional, x)
	}
	return []expr{x}
}

// first removes the first argument and returns the string that it must be.
func (p *exprParser) first(a *arguments, name string) string {
	if len(a.positional) == 0 {
		p.failf(a.line, "%s: an argument is missing", name)
		return ""
	}
	c, _ := a.positional[0].(*constExpr)
	if c != nil {
		if s, ok := c.value.(string); ok {
			a.positional = a.positional[1:]
			return s
		}
	}
	p.failf(a.line, "%s: the first arguments must be string literals", name)
	return ""
}

// invoke reads arguments and returns the call of name in table on of.
func (p *exprParser) invoke(kind string, name *token, table map[string]value.Callable, of expr) expr {
	return p.call(kind, name.text, table, of, p.arguments(name.line))
}

// call returns the call of name in table on of. It checks the arguments here, while the
// template is compiled, so that a misspelt one fails at start-up and not at the first row
// whose branch has it.
func (p *exprParser) call(kind, name string, table map[string]value.Callable, of expr, a arguments) expr {
	f, ok := table[name]
	if !ok {
		instead := notAvailable[kind+" "+name]
		if instead == "" {
			instead = "there are " + strings.Join(slices.Sorted(maps.Keys(table)), ", ")
		}
		p.failf(a.line, "the %s %s is not available; %s", kind, name, instead)
		return nil
	}
	x := &callExpr{name: name, op: f.Op, of: of, undefined: f.Undefined, line: a.line}
	switch {
	case f.Named:
		x.args = append([]expr{&constExpr{value.Missing{}}}, a.pairs()...)
		if len(a.positional) > 1 {
			p.failf(a.line, "%s: %d positional arguments, at most 1 is allowed", name, len(a.positional))
		}
		copy(x.args[:1], a.positional)
	case f.Free: // the positional ones, followed by the named ones as a mapping
		x.args = append(a.positional, &callExpr{op: value.Dict, args: a.pairs(), line: a.line})
	default:
		p.take(x, strings.Fields(f.Params), a)
	}
	return x
}

// take puts the arguments of x in the order of params. With the params "length end?", the
// calls truncate(9), truncate(length=9) and truncate(9, '…') all give two arguments, and
// the first two have [value.Missing] as the second.
func (p *exprParser) take(x *callExpr, params []string, a arguments) {
	if len(a.positional) > len(params) {
		p.failf(a.line, "%s: %d arguments, at most %d are allowed", x.name, len(a.positional), len(params))
		return
	}
	used := 0
	x.args = make([]expr, len(params))
	for i, param := range params {
		param, optional := strings.CutSuffix(param, "?")
		named, byName := a.named[param]
		switch {
		case i < len(a.positional) && byName:
			p.failf(a.line, "%s: the argument %s is given twice", x.name, param)
		case i < len(a.positional):
			x.args[i] = a.positional[i]
		case byName:
			x.args[i] = named
			used++
		case optional:
			x.args[i] = &constExpr{value.Missing{}}
		default:
			p.failf(a.line, "%s: the argument %s is missing", x.name, param)
		}
	}
	if used < len(a.named) {
		p.failf(a.line, "%s: the only arguments are %s", x.name, strings.ReplaceAll(strings.Join(params, " "), "?", ""))
	}
}

// pairs returns the names and values of the named arguments in turn.
func (a arguments) pairs() (pairs []expr) {
	for _, name := range slices.Sorted(maps.Keys(a.named)) {
		pairs = append(pairs, &constExpr{name}, a.named[name])
	}
	return pairs
}

// notAvailable has what to write instead of filters and methods of Jinja that are not
// supported.
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

// filters reads the filters applied to of.
func (p *exprParser) filters(of expr) expr {
	for n := 1; p.skip("|"); n++ {
		of = p.oneFilter(of)
		p.chained(n)
	}
	return of
}

// oneFilter reads a filter and its arguments. A filter that needs more than the values of
// its arguments is not in the table of filters: default evaluates only those that it needs,
// and map has the name of a filter as an argument.
func (p *exprParser) oneFilter(of expr) expr {
	name := p.expectName("the name of a filter")
	a := p.arguments(name.line)
	switch name.text {
	case "default", "d":
		p.ask(of)
		return p.defaultFilter(of, a)
	case "map", "select", "reject", "selectattr", "rejectattr":
		return p.eachFilter(name.text, of, a)
	}
	return p.call("filter", name.text, value.Filters, of, a)
}

// defaultFilter returns of|default(value, boolean).
func (p *exprParser) defaultFilter(of expr, a arguments) expr {
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
		p.failf(a.line, "default: the only arguments are default_value boolean, each once")
	}
	return &defaultExpr{of, given[0], given[1], a.line}
}

// eachFilter returns the call of a filter that applies a filter or test, named by its
// first argument, to each item. The name must be in the template: a name from a row could
// be any.
func (p *exprParser) eachFilter(name string, of expr, a arguments) expr {
	kind, table, attribute := "test", value.Tests, ""
	if name == "map" {
		if _, ok := a.named["attribute"]; ok {
			each := map[string]value.Callable{name: value.EachAttribute}
			return p.call("filter", name, each, of, a)
		}
		kind, table = "filter", value.Filters
	}
	if strings.HasSuffix(name, "attr") {
		attribute = p.first(&a, name)
	}
	if len(a.positional) == 0 && name != "map" {
		each := value.Each(name, attribute, value.Callable{Op: value.Truth})
		return p.call("filter", name, map[string]value.Callable{name: each}, of, a)
	}
	inner := p.first(&a, name)
	if f, ok := table[inner]; ok {
		table = map[string]value.Callable{inner: value.Each(name, attribute, f)}
	}
	return p.call(kind, inner, table, of, a)
}

// test reads is name, is not name, and the arguments of the test: one may be without
// brackets.
func (p *exprParser) test(of expr) expr {
	line := p.advance().line
	negative := p.skip("not")
	name := p.expectName("the name of a test")
	a := p.testArguments(name)
	if name.text == "defined" || name.text == "undefined" {
		p.ask(of)
	}
	table := value.Tests
	if _, ok := value.NameTests[name.text]; ok {
		table = value.NameTests
	}
	x := p.call("test", name.text, table, of, a)
	if negative {
		x = &callExpr{op: value.Not, of: x, line: line}
	}
	return x
}

// testArguments reads the arguments of a test. "x is divisibleby 3" needs no brackets, but
// in "x is defined and y" the word behind the test must not be taken for its argument.
func (p *exprParser) testArguments(name *token) arguments {
	t := p.present()
	switch {
	case t.is("is"):
		p.failf(t.line, `put the test before "is" in brackets`)
	case t.kind == numberToken, t.kind == stringToken, t.is("["), t.is("{"),
		t.kind == nameToken && !t.is("else") && !t.is("or") && !t.is("and"):
		if slices.Contains(operatorWords, t.text) { // Jinja takes them for an argument
			p.failf(t.line, "put the test before %q in brackets", t.text)
		}
		return arguments{line: name.line, positional: []expr{p.operand()}}
	}
	return p.arguments(name.line)
}
