package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// maxExpressionDepth bounds the nesting of expressions, and the number of operators that
// follow each other on one level, as in a + b + c.
const maxExpressionDepth = 200

// operatorWords are the words that cannot be names.
var operatorWords = []string{"and", "or", "not", "in", "is", "if", "else"}

// constants are the names of values.
var constants = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

// exprParser reads the expressions in a tag, with the filters, tests and calls in them (see
// calls.go), and builds the trees that compute them. Each level of Jinja's grammar is a
// method that reads what binds closer by the next one:
//
//	expression   a if b else c
//	or, and, not
//	comparison   a < b <= c, a in b
//	sum, concat, product, power
//	filtered     a|filter, a is test
//	unary        -a
//	operand      a.b, a[b]
//	primary      names, literals, brackets
type exprParser struct {
	cursor
	*names
	depth int // of the expression
}

// chained fails at more than maxExpressionDepth operators that follow each other.
func (p *exprParser) chained(n int) {
	if n > maxExpressionDepth {
		p.failf(p.present().line, "more than %d operators one after the other", maxExpressionDepth)
	}
}

// tuple reads an expression, or several separated by commas, which are a tuple, up to the
// end of the tag, a closing bracket or one of the words ends.
func (p *exprParser) tuple(conditional bool, ends ...string) expr {
	line := p.present().line
	x := p.expression(conditional)
	if !p.present().is(",") {
		return x
	}
	items := []expr{x}
	for p.skip(",") && !p.tupleEnds(ends) {
		items = append(items, p.expression(conditional))
	}
	return &callExpr{op: value.Tuple, args: items, line: line}
}

func (p *exprParser) tupleEnds(ends []string) bool {
	t := p.present()
	return t.kind == endToken || t.is(")") || t.kind == nameToken && slices.Contains(ends, t.text)
}

// expression reads a if b else c, unless it must not be conditional, and everything that
// binds closer.
func (p *exprParser) expression(conditional bool) expr {
	if p.depth++; p.depth > maxExpressionDepth {
		p.failf(p.present().line, "the expression is nested deeper than %d", maxExpressionDepth)
	}
	defer func() { p.depth-- }()
	x := p.or()
	for n := 1; conditional && p.present().is("if"); n++ {
		line := p.advance().line
		c := &condExpr{condition: p.or(), yes: x, no: &constExpr{value.Blank{}}, line: line}
		if p.skip("else") {
			c.no = p.expression(true)
		}
		p.chained(n)
		x = c
	}
	return x
}

// level reads operands of the next level with operators of this one between them: a op b
// op c is (a op b) op c.
func (p *exprParser) level(next func() expr, operators ...string) expr {
	x := next()
	for n := 1; ; n++ {
		t := p.operator(operators)
		if t == nil {
			return x
		}
		p.chained(n)
		right := next()
		switch t.text {
		case "and":
			x = &condExpr{condition: x, yes: right, line: t.line}
		case "or":
			x = &condExpr{condition: x, no: right, line: t.line}
		default:
			x = &callExpr{op: value.Operators[t.text], of: x, args: []expr{right}, line: t.line}
		}
	}
}

// operator consumes one of operators and returns it, or nil.
func (p *exprParser) operator(operators []string) *token {
	for _, text := range operators {
		if p.present().is(text) {
			return p.advance()
		}
	}
	return nil
}

func (p *exprParser) or() expr  { return p.level(p.and, "or") }
func (p *exprParser) and() expr { return p.level(p.not, "and") }

func (p *exprParser) not() expr {
	line, negations := p.present().line, 0
	for p.skip("not") {
		negations++
	}
	return p.unaries(p.comparison(), negations, line, negations%2 == 1, value.Not, value.Truth)
}

// unaries returns x after n unary operators. An odd number of them is the operation odd, and
// an even number is the operation even: "- - x" is "+ x".
func (p *exprParser) unaries(x expr, n, line int, isOdd bool, odd, even value.Operation) expr {
	if n == 0 {
		return x
	}
	p.chained(n)
	if isOdd {
		even = odd
	}
	return &callExpr{op: even, of: x, line: line}
}

// comparison reads a < b <= c.
func (p *exprParser) comparison() expr {
	x := &compareExpr{first: p.sum()}
	for {
		t := p.present()
		op := value.Comparisons[t.text]
		if t.is("not") {
			op = value.Comparisons["not in"]
			p.advance()
			if !p.present().is("in") {
				p.unexpected(`"in" after "not"`)
			}
		}
		if op == nil {
			break
		}
		p.advance()
		x.others = append(x.others, comparand{op, p.sum(), t.line})
	}
	if len(x.others) == 0 {
		return x.first
	}
	return x
}

func (p *exprParser) sum() expr     { return p.level(p.concat, "+", "-") }
func (p *exprParser) concat() expr  { return p.level(p.product, "~") }
func (p *exprParser) product() expr { return p.level(p.power, "*", "/", "//", "%") }
func (p *exprParser) power() expr   { return p.level(p.filtered, "**") }

// filtered reads an operand with its filters and tests.
func (p *exprParser) filtered() expr {
	x := p.unary()
	for n := 1; ; n++ {
		switch t := p.present(); {
		case t.is("|"):
			x = p.filters(x)
		case t.is("is"):
			x = p.test(x)
		case t.is("("):
			p.failf(t.line, "only functions and methods can be called")
		default:
			return x
		}
		p.chained(n)
	}
}

// unary reads an operand with its signs.
func (p *exprParser) unary() expr {
	line, signs, negative := p.present().line, 0, false
	for t := p.operator([]string{"-", "+"}); t != nil; t = p.operator([]string{"-", "+"}) {
		negative = negative != (t.text == "-")
		signs++
	}
	return p.unaries(p.operand(), signs, line, negative, value.Negative, value.Positive)
}

// operand reads a name, a constant or a bracketed expression, with the indexes and calls
// after it.
func (p *exprParser) operand() expr {
	x := p.primary()
	for n := 1; ; n++ {
		switch {
		case p.present().is("."):
			x = p.attribute(x)
		case p.present().is("["):
			x = p.index(x)
		default:
			return x
		}
		p.chained(n)
	}
}

func (p *exprParser) primary() expr {
	t := p.present()
	switch {
	case t.kind == nameToken && !slices.Contains(operatorWords, t.text):
		p.advance()
		if v, ok := constants[t.text]; ok {
			return &constExpr{v}
		}
		if p.present().is("(") {
			return p.invoke("function", t, value.Functions, nil)
		}
		return p.name(t.text, t.line)
	case t.kind == numberToken:
		return &constExpr{p.advance().value}
	case t.kind == stringToken: // adjacent ones are one
		var text strings.Builder
		for p.present().kind == stringToken {
			s, _ := p.advance().value.(string)
			text.WriteString(s)
		}
		return &constExpr{text.String()}
	case p.skip("("):
		if p.skip(")") {
			return &callExpr{op: value.Tuple, line: t.line}
		}
		x := p.tuple(true)
		p.expect(")")
		return x
	case p.skip("["):
		items := p.list("]", func() []expr { return []expr{p.expression(true)} })
		return &callExpr{op: value.List, args: items, line: t.line}
	case p.skip("{"):
		return &callExpr{op: value.Dict, args: p.list("}", p.pair), line: t.line}
	}
	p.unexpected("an expression")
	return nil
}

// list reads what one reads, separated by commas, up to the closing bracket.
func (p *exprParser) list(closing string, one func() []expr) (items []expr) {
	for p.err == nil && !p.skip(closing) {
		if len(items) > 0 {
			if !p.skip(",") {
				p.unexpected(fmt.Sprintf(`"," or %q`, closing))
			}
			if p.skip(closing) {
				break
			}
		}
		items = append(items, one()...)
	}
	return items
}

// pair reads a key and a value.
func (p *exprParser) pair() []expr {
	key := p.expression(true)
	p.expect(":")
	return []expr{key, p.expression(true)}
}

// attribute reads .name or .0.
func (p *exprParser) attribute(of expr) expr {
	p.advance()
	t := p.advance()
	switch {
	case t.kind == nameToken && p.present().is("("):
		if t.text == "changed" && p.isElement(of) {
			p.failf(t.line, "%w", value.ErrElementChanged)
		}
		return p.invoke("method", t, value.Methods, of)
	case t.kind == nameToken:
		return newItem(of, &constExpr{t.text}, "."+t.text, t.line)
	case t.kind == numberToken:
		return newItem(of, &constExpr{t.value}, "."+t.text, t.line)
	}
	p.failf(t.line, "expected a name or a number after \".\", found %q", t.text)
	return nil
}

// index reads [key] or [start:end:step].
func (p *exprParser) index(of expr) expr {
	line := p.advance().line
	bounds := []expr{nil, nil, nil}
	colons := 0
	for {
		if !p.present().is("]") && !p.present().is(":") {
			bounds[colons] = p.expression(true)
		}
		if colons == 2 || !p.skip(":") {
			break
		}
		colons++
	}
	p.expect("]")
	switch {
	case colons > 0:
		for i, b := range bounds {
			if b == nil {
				bounds[i] = &constExpr{}
			}
		}
		return &callExpr{op: value.Slice, of: of, args: bounds, line: line}
	case bounds[0] == nil:
		p.failf(line, "an index is missing in %s[]", written(of))
	}
	return newItem(of, bounds[0], "["+written(bounds[0])+"]", line)
}
