package template

import (
	"slices"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// word returns the operator that really stands where gonja has read t.
func (s *templateSource) word(t *tokens.Token) string {
	if word, ok := s.words[t.Pos]; ok {
		return word
	}
	return t.Val
}

// together reports whether no bracket separates two operators of one expression. gonja drops brackets: a + b and (a + b)
// are the same in its tree.
func (s *templateSource) together(a, b *tokens.Token) bool { return s.within[a.Pos] == s.within[b.Pos] }

// unary compiles the signs before a number: of -+-x gonja has read one.
func (c *templateCompiler) unary(x *nodes.UnaryExpression) (nodes.Expression, error) {
	c.at(x.Operator)
	term, err := c.expression(x.Term)
	if strings.Count(c.source.word(x.Operator), "-")%2 == 1 {
		return c.apply(opNegative, term), err
	}
	return c.apply(opPositive, term), err
}

// negation compiles "not x", of which there can be many "not", and "x is not name".
func (c *templateCompiler) negation(x *nodes.Negation) (nodes.Expression, error) {
	if t, ok := x.Term.(*nodes.TestExpression); ok && c.source.word(x.Operator) == "is not" {
		if left := c.leftOfTest(t); left != nil {
			right := &nodes.Negation{Operator: x.Operator, Term: &nodes.TestExpression{Expression: left.Right, Test: t.Test}}
			return c.expression(&nodes.BinaryExpression{Left: left.Left, Right: right, Operator: left.Operator})
		}
	}
	term, err := c.expression(x.Term)
	if strings.Count(c.source.word(x.Operator), "not")%2 == 0 {
		return c.apply(opTruth, term), err
	}
	return c.apply(opNot, term), err
}

// leftOfTest returns the operation that gonja gives to a test and Jinja does not: gonja reads a + b is odd as
// (a + b) is odd, Jinja as a + (b is odd).
func (c *templateCompiler) leftOfTest(x *nodes.TestExpression) *nodes.BinaryExpression {
	left, ok := x.Expression.(*nodes.BinaryExpression)
	if !ok || !c.source.together(left.Operator.Token, x.Test.Token) {
		return nil
	}
	return left
}

// test compiles "x is name".
func (c *templateCompiler) test(x *nodes.TestExpression) (nodes.Expression, error) {
	c.at(x.Test.Token)
	if left := c.leftOfTest(x); left != nil {
		right := &nodes.TestExpression{Expression: left.Right, Test: x.Test}
		return c.expression(&nodes.BinaryExpression{Left: left.Left, Right: right, Operator: left.Operator})
	}
	name := x.Test.Name
	of, err := c.expression(x.Expression)
	if err != nil {
		return nil, err
	}
	switch name { // those that are more than their operation
	case "defined", "undefined":
		c.ask(x.Expression)
	case "filter", "test":
		return c.apply(func(_ *rendering, v any, _ []any) (any, error) {
			of, _ := v.(string)
			_, isTest := tests[of]
			return isTest && name == "test" || name == "filter" && isFilter(of), nil
		}, of), nil
	}
	if tests[name].undefined {
		of = c.forgiving(of)
	}
	return c.invoke("test", name, tests, of, x.Test.Args, x.Test.Kwargs)
}

// forgiving returns missing where x is undefined.
func (c *templateCompiler) forgiving(x nodes.Expression) nodes.Expression {
	return c.filter(func(e *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
		if in.IsError() && renderingOf(e).forgive() {
			return exec.AsValue(missing{})
		}
		return in
	}, x)
}

// binary compiles an operation on two or more operands. otherwise is what a conditional without "else" gives, if it may be
// without.
func (c *templateCompiler) binary(x *nodes.BinaryExpression, otherwise nodes.Expression) (nodes.Expression, error) {
	t := x.Operator.Token
	c.at(t)
	switch {
	case t.Type == tokens.Or:
		o := c.chain(x, func(left *tokens.Token) bool { return left.Type == tokens.Or })
		return c.conditional(o, otherwise)
	case isComparison(t.Type):
		o := c.chain(x, func(left *tokens.Token) bool { return isComparison(left.Type) })
		return c.comparisons(o)
	}
	both, err := c.expressions([]nodes.Expression{x.Left, x.Right})
	if err != nil {
		return nil, err
	}
	if t.Type == tokens.And {
		return c.logical(false, both[0], both[1]), nil
	}
	op, ok := binaryOperations[t.Type]
	if !ok {
		return nil, c.errorf("the operator %s is not available", t.Val)
	}
	return c.apply(op, both[0], both[1]), nil
}

// logical is "and" or "or" of compiled expressions: the left one where its truth is that of until, else the right one,
// which is evaluated only then. gonja takes every tuple, range and view of a mapping for true, Jinja no empty one.
func (c *templateCompiler) logical(until bool, left, right nodes.Expression) nodes.Expression {
	return c.filter(func(e *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
		if in.IsError() || truthy(valueOf(in)) == until {
			return in
		}
		return e.Eval(right)
	}, left)
}

// operands are those of operators that stand in a row, one more than operators.
type operands struct {
	of        []nodes.Expression
	operators []*tokens.Token
}

// chain returns x, which gonja has read as ((a ? b) ? c) ? d, as a ? b ? c ? d, for operators of one kind.
func (c *templateCompiler) chain(x *nodes.BinaryExpression, alike func(*tokens.Token) bool) operands {
	o := operands{of: []nodes.Expression{x.Right}, operators: []*tokens.Token{x.Operator.Token}}
	for {
		left, ok := x.Left.(*nodes.BinaryExpression)
		if !ok || !alike(left.Operator.Token) || !c.source.together(left.Operator.Token, x.Operator.Token) {
			o.of = append(o.of, x.Left)
			slices.Reverse(o.of)
			slices.Reverse(o.operators)
			return o
		}
		x = left
		o.of, o.operators = append(o.of, x.Right), append(o.operators, x.Operator.Token)
	}
}

// room fails where operands are more than an expression may have parts.
func (c *templateCompiler) room(o operands) error {
	if len(o.of) > maxExpressionDepth-c.depth {
		return c.errorf("the expression is nested deeper than %d", maxExpressionDepth)
	}
	return nil
}

// comparisons compiles a < b <= c, which is a < b and b <= c.
func (c *templateCompiler) comparisons(o operands) (nodes.Expression, error) {
	if err := c.room(o); err != nil {
		return nil, err
	}
	ops := make([]operation, len(o.operators))
	for i, t := range o.operators {
		switch c.source.word(t) {
		case "in":
			ops[i] = opIn
		case "not in":
			ops[i] = opNotIn
		default:
			ops[i] = binaryOperations[t.Type]
		}
	}
	of, err := c.expressions(o.of)
	if err != nil {
		return nil, err
	}
	if len(ops) == 1 {
		return c.apply(ops[0], of[0], of[1]), nil
	}
	line := c.line
	return c.filter(func(e *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
		r := renderingOf(e)
		for i, op := range ops {
			if in.IsError() {
				return in
			}
			right := e.Eval(of[i+1])
			if right.IsError() {
				return right
			}
			got, err := op(r, valueOf(in), []any{valueOf(right)})
			if err == nil {
				err = r.spend(stepCost)
			}
			if err != nil {
				return exec.AsValue(r.fail(line, err))
			}
			if !truthy(got) {
				return exec.AsValue(false)
			}
			in = right
		}
		return exec.AsValue(true)
	}, of[0]), nil
}

func opNotIn(r *rendering, v any, args []any) (any, error) {
	in, err := opIn(r, v, args)
	return !truthy(in), err
}

// conditional compiles a or b if c else d: all three operators have come as "or".
func (c *templateCompiler) conditional(o operands, otherwise nodes.Expression) (nodes.Expression, error) {
	if err := c.room(o); err != nil {
		return nil, err
	}
	yes, o, err := c.alternatives(o)
	if err != nil || len(o.operators) == 0 {
		return yes, err
	}
	if c.source.word(o.operators[0]) == "else" {
		return nil, c.errorf(`"else" has no "if"`)
	}
	condition, o, err := c.alternatives(o.after())
	if err != nil {
		return nil, err
	}
	switch {
	case len(o.operators) > 0 && c.source.word(o.operators[0]) == "else":
		otherwise, err = c.conditional(o.after(), otherwise)
	case len(o.operators) > 0 || otherwise == nil:
		err = c.errorf(`"else" is missing`)
	}
	return c.choose(condition, yes, otherwise), err
}

// after returns what is behind the first operator.
func (o operands) after() operands { return operands{of: o.of[1:], operators: o.operators[1:]} }

// alternatives compiles a or b or c at the start of o and returns what follows, from c on.
func (c *templateCompiler) alternatives(o operands) (nodes.Expression, operands, error) {
	value, err := c.expression(o.of[0])
	for err == nil && len(o.operators) > 0 && c.source.word(o.operators[0]) == "or" {
		o = o.after()
		var right nodes.Expression
		if right, err = c.expression(o.of[0]); err == nil {
			value = c.logical(true, value, right)
		}
	}
	return value, o, err
}

// choose is "yes if condition else no" of compiled expressions, of which it evaluates one.
func (c *templateCompiler) choose(condition, yes, no nodes.Expression) nodes.Expression {
	line := c.line
	return c.filter(func(e *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
		if in.IsError() {
			return in
		}
		r := renderingOf(e)
		if err := r.spend(stepCost); err != nil {
			return exec.AsValue(r.fail(line, err))
		}
		if truthy(valueOf(in)) {
			return e.Eval(yes)
		}
		return e.Eval(no)
	}, condition)
}
