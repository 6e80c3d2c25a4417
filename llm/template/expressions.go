package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// maxExpressionDepth bounds how deep expressions may be within each other, and how many operators may be in a row.
const maxExpressionDepth = 200

// operatorWords are the words that cannot be names.
var operatorWords = []string{"and", "or", "not", "in", "is", "if", "else"}

// constants are the names of values.
var constants = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

// row counts operators in a row.
func (p *parser) row(n int) error {
	if n > maxExpressionDepth {
		return p.failf(p.present().line, "more than %d operators in a row", maxExpressionDepth)
	}
	return nil
}

// tuple reads an expression, or several with commas between, which are a tuple, up to the end of the tag, a closing
// bracket or the word end.
func (p *parser) tuple(conditional bool, end ...string) (expr, error) {
	line := p.present().line
	x, err := p.expression(conditional)
	if err != nil || !p.present().is(",") {
		return x, err
	}
	items := []expr{x}
	for p.skip(",") && !p.tupleEnds(end) {
		if x, err = p.expression(conditional); err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	return &listExpr{value.Tuple, items, line}, nil
}

func (p *parser) tupleEnds(ends []string) bool {
	t := p.present()
	return t.kind == endToken || t.is(")") || t.kind == nameToken && slices.Contains(ends, t.text)
}

// expression reads a if b else c, unless it must not be conditional, and everything that binds closer.
func (p *parser) expression(conditional bool) (expr, error) {
	if p.depth++; p.depth > maxExpressionDepth {
		return nil, p.failf(p.present().line, "the expression is nested deeper than %d", maxExpressionDepth)
	}
	defer func() { p.depth-- }()
	x, err := p.or()
	for n := 1; err == nil && conditional && p.present().is("if"); n++ {
		line := p.advance().line
		c := &condExpr{yes: x, no: &constExpr{value.Blank{}}, line: line}
		if c.condition, err = p.or(); err == nil && p.skip("else") {
			c.no, err = p.expression(true)
		}
		if err == nil {
			err = p.row(n)
		}
		x = c
	}
	return x, err
}

// level reads operands of the next level with operators of this one between them: a op b op c is (a op b) op c.
func (p *parser) level(next func() (expr, error), operators ...string) (expr, error) {
	x, err := next()
	for n := 1; err == nil; n++ {
		t := p.operator(operators)
		if t == nil {
			break
		}
		if err = p.row(n); err != nil {
			break
		}
		var right expr
		right, err = next()
		switch t.text {
		case "and", "or":
			x = &logicExpr{x, right, t.text == "or", t.line}
		default:
			x = &binaryExpr{x, right, value.Operators[t.text], t.line}
		}
	}
	return x, err
}

// operator consumes one of operators and returns it, or nil.
func (p *parser) operator(operators []string) *token {
	for _, text := range operators {
		if p.present().is(text) {
			return p.advance()
		}
	}
	return nil
}

func (p *parser) or() (expr, error)  { return p.level(p.and, "or") }
func (p *parser) and() (expr, error) { return p.level(p.not, "and") }

func (p *parser) not() (expr, error) {
	line, negations := p.present().line, 0
	for p.skip("not") {
		negations++
	}
	x, err := p.comparison()
	switch {
	case err != nil || negations == 0:
		return x, err
	case negations%2 == 0:
		return &unaryExpr{x, value.Truth, line}, p.row(negations)
	}
	return &unaryExpr{x, value.Not, line}, p.row(negations)
}

// comparison reads a < b <= c.
func (p *parser) comparison() (expr, error) {
	first, err := p.sum()
	x := &compareExpr{first: first}
	for err == nil {
		t := p.present()
		op := value.Comparisons[t.text]
		if t.is("not") {
			op = value.Comparisons["not in"]
			p.advance()
			if !p.present().is("in") {
				return nil, p.unexpected(`"in" after "not"`)
			}
		}
		if op == nil {
			break
		}
		p.advance()
		var right expr
		right, err = p.sum()
		x.others = append(x.others, comparand{op, right, t.line})
	}
	if err != nil || len(x.others) == 0 {
		return first, err
	}
	return x, nil
}

func (p *parser) sum() (expr, error)     { return p.level(p.concat, "+", "-") }
func (p *parser) concat() (expr, error)  { return p.level(p.product, "~") }
func (p *parser) product() (expr, error) { return p.level(p.power, "*", "/", "//", "%") }
func (p *parser) power() (expr, error)   { return p.level(p.filtered, "**") }

// filtered reads an operand with its filters and tests.
func (p *parser) filtered() (expr, error) {
	x, err := p.unary()
	for n := 1; err == nil; n++ {
		switch {
		case p.present().is("|"):
			x, err = p.filters(x)
		case p.present().is("is"):
			x, err = p.test(x)
		case p.present().is("("):
			return nil, p.failf(p.present().line, "only functions and methods can be called")
		default:
			return x, nil
		}
		if err == nil {
			err = p.row(n)
		}
	}
	return nil, err
}

// unary reads an operand with its signs.
func (p *parser) unary() (expr, error) {
	line, signs, negative := p.present().line, 0, false
	for t := p.operator([]string{"-", "+"}); t != nil; t = p.operator([]string{"-", "+"}) {
		negative = negative != (t.text == "-")
		signs++
	}
	x, err := p.operand()
	switch {
	case err != nil || signs == 0:
		return x, err
	case negative:
		return &unaryExpr{x, value.Negative, line}, p.row(signs)
	}
	return &unaryExpr{x, value.Positive, line}, p.row(signs)
}

// operand reads a name, a constant or what is in brackets, with the indexes and calls after it.
func (p *parser) operand() (expr, error) {
	x, err := p.primary()
	for n := 1; err == nil; n++ {
		switch {
		case p.present().is("."):
			x, err = p.attribute(x)
		case p.present().is("["):
			x, err = p.index(x)
		default:
			return x, nil
		}
		if err == nil {
			err = p.row(n)
		}
	}
	return nil, err
}

func (p *parser) primary() (expr, error) {
	t := p.present()
	switch {
	case t.kind == nameToken:
		if slices.Contains(operatorWords, t.text) {
			return nil, p.unexpected("an expression")
		}
		p.advance()
		if v, ok := constants[t.text]; ok {
			return &constExpr{v}, nil
		}
		if p.present().is("(") {
			return p.invokeNext("function", t, value.Functions, nil)
		}
		return p.name(t.text, t.line), nil
	case t.kind == numberToken:
		p.advance()
		return &constExpr{t.value}, nil
	case t.kind == stringToken: // adjacent ones are one
		var text strings.Builder
		for p.present().kind == stringToken {
			s, _ := p.advance().value.(string)
			text.WriteString(s)
		}
		return &constExpr{text.String()}, nil
	case p.skip("("):
		if p.skip(")") {
			return &listExpr{value.Tuple, nil, t.line}, nil
		}
		x, err := p.tuple(true)
		if err == nil {
			err = p.expect(")")
		}
		return x, err
	case p.skip("["):
		items, err := p.list("]", func() ([]expr, error) {
			x, err := p.expression(true)
			return []expr{x}, err
		})
		return &listExpr{value.List, items, t.line}, err
	case p.skip("{"):
		items, err := p.list("}", p.pair)
		return &listExpr{value.Dict, items, t.line}, err
	}
	return nil, p.unexpected("an expression")
}

// list reads what one reads, with commas between, up to the closing bracket.
func (p *parser) list(closing string, one func() ([]expr, error)) ([]expr, error) {
	var items []expr
	for !p.skip(closing) {
		if len(items) > 0 {
			if !p.skip(",") {
				return nil, p.unexpected(fmt.Sprintf(`"," or %q`, closing))
			}
			if p.skip(closing) {
				break
			}
		}
		item, err := one()
		if err != nil {
			return nil, err
		}
		items = append(items, item...)
	}
	return items, nil
}

// pair reads a key and a value.
func (p *parser) pair() ([]expr, error) {
	key, err := p.expression(true)
	if err == nil {
		err = p.expect(":")
	}
	if err != nil {
		return nil, err
	}
	v, err := p.expression(true)
	return []expr{key, v}, err
}

// name returns the expression of a name.
func (p *parser) name(name string, line int) expr {
	x := &nameExpr{name, p.number(name), line}
	if !slices.Contains(p.globals, name) && (name != "loop" || p.loops == 0) {
		p.read = append(p.read, x)
	}
	return x
}

// number returns the number of a name.
func (p *parser) number(name string) int {
	n, ok := p.numbers[name]
	if !ok {
		n = len(p.numbers)
		p.numbers[name] = n
	}
	return n
}

// ask notes that the template asks whether x, if it is a name, is defined.
func (p *parser) ask(x expr) {
	if n, ok := x.(*nameExpr); ok {
		p.known[n.name] = true
	}
}

// attribute reads .name or .0.
func (p *parser) attribute(of expr) (expr, error) {
	p.advance()
	t := p.advance()
	switch {
	case t.kind == nameToken && p.present().is("("):
		return p.invokeNext("method", t, value.Methods, of)
	case t.kind == nameToken:
		return newItem(of, &constExpr{t.text}, "."+t.text, t.line), nil
	case t.kind == numberToken:
		return newItem(of, &constExpr{t.value}, "."+t.text, t.line), nil
	}
	return nil, p.failf(t.line, "expected a name or a number after \".\", found %q", t.text)
}

// index reads [key] or [start:end:step].
func (p *parser) index(of expr) (expr, error) {
	line := p.advance().line
	var bounds [3]expr
	colons := 0
	for {
		if !p.present().is("]") && !p.present().is(":") {
			var err error
			if bounds[colons], err = p.expression(true); err != nil {
				return nil, err
			}
		}
		if colons == 2 || !p.skip(":") {
			break
		}
		colons++
	}
	if err := p.expect("]"); err != nil {
		return nil, err
	}
	switch {
	case colons > 0:
		for i, b := range bounds {
			if b == nil {
				bounds[i] = &constExpr{}
			}
		}
		return &callExpr{op: value.Slice, of: of, args: bounds[:], line: line}, nil
	case bounds[0] == nil:
		return nil, p.failf(line, "an index is missing in %s[]", written(of))
	}
	return newItem(of, bounds[0], "["+written(bounds[0])+"]", line), nil
}
