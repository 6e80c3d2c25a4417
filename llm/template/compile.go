package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/llm/row"
	controls "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// maxExpressionDepth bounds how deep gonja evaluates. It wraps an error at each level.
const maxExpressionDepth = 200

// templateCompiler goes over the tree that gonja has parsed and puts a filter of ours in
// the place of every part that does something: operators, attributes, indexes, calls,
// filters and tests. So gonja's own versions, which can take any time and memory, reach
// into Go values by reflection, or panic, are never run; what is left of gonja at run
// time is the walk over the tree, names, constants, "and" and "or". Each filter belongs
// to one place in the template and knows its line.
type templateCompiler struct {
	source  *templateSource
	filters map[string]exec.FilterFunction // by number
	applied map[nodes.Expression]applied   // what apply returned
	line    int                            // of the part that is being compiled
	depth   int                            // of the expression
	parts   int                            // compiled so far

	globals  []string        // names that are always set
	set      []string        // names that some block sets
	asked    []string        // names of which some part asks whether they are defined
	read     []*tokens.Token // names that are read
	loopOpen int             // for blocks around
}

func newTemplateCompiler(source *templateSource, lookup bool) *templateCompiler {
	c := &templateCompiler{
		source:  source,
		filters: map[string]exec.FilterFunction{},
		applied: map[nodes.Expression]applied{},
		globals: []string{"row"},
	}
	if lookup {
		c.globals = append(c.globals, "lookup")
	}
	return c
}

// template compiles the whole tree.
func (c *templateCompiler) template(root *nodes.Template) error {
	if err := c.nodes(root.Nodes); err != nil {
		return err
	}
	for _, name := range c.read {
		if slices.Contains(c.set, name.Val) || slices.Contains(c.asked, name.Val) {
			continue
		}
		f := &templateFault{line: c.source.line(name.Pos), msg: "undefined: " + name.Val}
		if name.Val == "lookup" {
			f.hint = "no lookup file is configured"
		} else {
			f.hint = fmt.Sprintf("there are %s and what the template sets; did you mean row.%s?", strings.Join(c.globals, ", "), name.Val)
		}
		return f
	}
	return nil
}

// body compiles what stands in a block.
func (c *templateCompiler) body(w *nodes.Wrapper) error {
	if w == nil {
		return nil
	}
	return c.nodes(w.Nodes)
}

func (c *templateCompiler) nodes(list []nodes.Node) (err error) {
	for _, n := range list {
		c.parts++
		switch n := n.(type) {
		case nil, *nodes.Comment:
		case *nodes.Data:
			trim(n)
			c.parts += len(n.Data.Val) / stepCost
		case *nodes.Output:
			err = c.output(n)
		case *nodes.ControlStructureBlock:
			c.at(n.Location)
			err = c.block(n.ControlStructure)
		default:
			err = c.errorf("unexpected part %T", n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// trim cuts the space that is beside tags now, so that it need not be cut at each rendering, and all that Jinja cuts.
func trim(n *nodes.Data) {
	if n.Trim.Left {
		n.Data.Val = strings.TrimLeftFunc(n.Data.Val, isTemplateSpace)
	}
	if n.Trim.Right {
		n.Data.Val = strings.TrimRightFunc(n.Data.Val, isTemplateSpace)
	}
	n.Trim = nodes.Trim{}
}

func (c *templateCompiler) output(n *nodes.Output) (err error) {
	c.at(n.Start)
	var x nodes.Expression
	if b, ok := n.Expression.(*nodes.BinaryExpression); ok {
		x, err = c.binary(b, &nodes.String{Location: b.Operator.Token})
	} else {
		x, err = c.expression(n.Expression)
	}
	n.Expression = c.apply(opText, x)
	return err
}

func (c *templateCompiler) block(b nodes.ControlStructure) (err error) {
	if b, ok := b.(*controls.IfControlStructure); ok {
		for i := range b.Conditions {
			if b.Conditions[i], err = c.expression(b.Conditions[i]); err != nil {
				return err
			}
			b.Conditions[i] = c.apply(opTruth, b.Conditions[i])
		}
		for _, w := range b.Wrappers {
			if err := c.body(w); err != nil {
				return err
			}
		}
		return nil
	}
	if b, ok := b.(templateBlock); ok {
		return b.compile(c)
	}
	return c.errorf("unexpected block %T", b)
}

// at notes where the part begins that is being compiled.
func (c *templateCompiler) at(t *tokens.Token) {
	if t != nil {
		c.line = c.source.line(t.Pos)
	}
}

func (c *templateCompiler) errorf(format string, args ...any) error {
	return &templateFault{line: c.line, msg: fmt.Sprintf(format, args...)}
}

// none is a constant expression, the input of operations that have none.
var none = &nodes.None{Location: &tokens.Token{Val: "none"}}

// expressions compiles a list of expressions, such as arguments.
func (c *templateCompiler) expressions(list []nodes.Expression) ([]nodes.Expression, error) {
	out := make([]nodes.Expression, len(list))
	for i, x := range list {
		var err error
		if out[i], err = c.expression(x); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// expression compiles one expression.
func (c *templateCompiler) expression(x nodes.Expression) (nodes.Expression, error) {
	if c.depth++; c.depth > maxExpressionDepth {
		return nil, c.errorf("the expression is nested deeper than %d", maxExpressionDepth)
	}
	c.parts++
	defer func(line int) { c.depth, c.line = c.depth-1, line }(c.line)
	switch x := x.(type) {
	case *nodes.None, *nodes.String, *nodes.Float, *nodes.Bool:
		return x, nil
	case *nodes.Integer:
		if digits, ok := c.source.words[x.Location.Pos]; ok {
			return c.apply(func(*rendering, any, []any) (any, error) { return json.Number(digits), nil }, none), nil
		}
		return x, nil
	case *nodes.Name:
		return c.name(x)
	case *nodes.List:
		items, err := c.expressions(x.Val)
		return c.apply(opList, none, items...), err
	case *nodes.Tuple:
		items, err := c.expressions(x.Val)
		return c.apply(opTuple, none, items...), err
	case *nodes.Dict:
		return c.dict(x)
	case *nodes.GetAttribute, *nodes.GetItem, *nodes.GetSlice:
		return c.subscript(x)
	case *nodes.Call:
		return c.call(x)
	case *nodes.FilteredExpression:
		return c.filtered(x)
	case *nodes.TestExpression:
		return c.test(x)
	case *nodes.Negation:
		return c.negation(x)
	case *nodes.UnaryExpression:
		return c.unary(x)
	case *nodes.BinaryExpression:
		return c.binary(x, nil)
	}
	return nil, c.errorf("an expression is missing")
}

func (c *templateCompiler) name(x *nodes.Name) (nodes.Expression, error) {
	name := x.Name.Val
	c.at(x.Name)
	switch {
	case name == "none":
		return none, nil
	case name == "row": // or what the template has set it to
		return c.filter(func(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
			if v, ok := in.Interface().(*row.Variables); ok {
				return exec.AsValue(v.All())
			}
			return in
		}, x), nil
	case slices.Contains(c.globals, name), name == "loop" && c.loopOpen > 0:
		return x, nil
	}
	c.read = append(c.read, x.Name)
	line := c.line
	return c.filter(func(e *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
		if in.IsError() {
			return exec.AsValue(renderingOf(e).fail(line, &templateFault{msg: "undefined: " + name, undefined: true}))
		}
		return in
	}, x), nil
}

func (c *templateCompiler) dict(x *nodes.Dict) (nodes.Expression, error) {
	var items []nodes.Expression
	for _, p := range x.Pairs {
		pair, err := c.expressions([]nodes.Expression{p.Key, p.Value})
		if err != nil {
			return nil, err
		}
		items = append(items, pair...)
	}
	return c.apply(opDict, none, items...), nil
}

// operand compiles what a subscript is for: a row keeps its [Variables], so that of
// row.name nothing but the name's value is decoded.
func (c *templateCompiler) operand(x nodes.Expression) (nodes.Expression, error) {
	if n, ok := x.(*nodes.Name); ok && n.Name.Val == "row" {
		return n, nil
	}
	return c.expression(x)
}

// subscript compiles x.name, x.0, x[key] and x[start:end:step].
func (c *templateCompiler) subscript(x nodes.Expression) (nodes.Expression, error) {
	c.at(x.Position())
	written := asWritten(x, 10)
	switch x := x.(type) {
	case *nodes.GetAttribute:
		of, err := c.operand(x.Node)
		var key any = x.Attribute
		if x.Attribute == "" {
			key = int64(x.Index)
		}
		return c.apply(func(r *rendering, v any, _ []any) (any, error) { return r.item(v, key, written) }, of), err
	case *nodes.GetItem:
		if x.Arg == nil {
			break
		}
		of, err := c.operand(x.Node)
		if err != nil {
			return nil, err
		}
		key, err := c.expression(x.Arg)
		return c.apply(func(r *rendering, v any, args []any) (any, error) { return r.item(v, args[0], written) }, of, key), err
	case *nodes.GetSlice:
		bounds := []nodes.Expression{x.Node, x.Start, x.End, x.Step}
		for i, b := range bounds {
			if b == nil {
				bounds[i] = none
			}
		}
		bounds, err := c.expressions(bounds)
		if err != nil {
			return nil, err
		}
		return c.apply(opSlice, bounds[0], bounds[1:]...), nil
	}
	return nil, c.errorf("an index is missing in %s", written)
}

// asWritten writes an expression as the template has it, roughly: of a chain of more than
// depth parts only the end.
func asWritten(x nodes.Node, depth int) string {
	if depth == 0 {
		return "…"
	}
	switch x := x.(type) {
	case *nodes.Name:
		return x.Name.Val
	case *nodes.GetAttribute:
		if x.Attribute == "" {
			return asWritten(x.Node, depth-1) + "." + strconv.Itoa(x.Index)
		}
		return asWritten(x.Node, depth-1) + "." + x.Attribute
	case *nodes.GetItem:
		return asWritten(x.Node, depth-1) + "[" + asWritten(x.Arg, depth-1) + "]"
	case *nodes.String:
		return strconv.Quote(x.Val)
	case *nodes.Integer:
		return strconv.Itoa(x.Val)
	}
	return "…"
}

// call compiles the call of a function or a method.
func (c *templateCompiler) call(x *nodes.Call) (nodes.Expression, error) {
	c.at(x.Location)
	switch f := x.Func.(type) {
	case *nodes.Name:
		return c.invoke("function", f.Name.Val, functions, none, x.Args, x.Kwargs)
	case *nodes.GetAttribute:
		of, err := c.expression(f.Node)
		if err != nil {
			return nil, err
		}
		if f.Attribute == "" {
			break
		}
		return c.invoke("method", f.Attribute, methods, of, x.Args, x.Kwargs)
	}
	return nil, c.errorf("only functions and methods can be called")
}

// ask notes that the template asks whether x, if it is a name, is defined.
func (c *templateCompiler) ask(x nodes.Expression) {
	if n, ok := x.(*nodes.Name); ok {
		c.asked = append(c.asked, n.Name.Val)
	}
}

var missingName = regexp.MustCompile(`ControlStructure '(\w+)' not found`)

// syntaxError gives an error of gonja's parser its line.
func (c *templateCompiler) syntaxError(err error) error {
	if f, ok := errors.AsType[*templateFault](err); ok {
		return f
	}
	e, ok := errors.AsType[*parser.SyntaxError](err)
	if !ok {
		return &templateFault{msg: "syntax error"}
	}
	msg := e.Message
	if m := missingName.FindStringSubmatch(msg); m != nil {
		msg = fmt.Sprintf("%q does not belong to an open block", m[1])
	}
	pos := 0
	for range e.Line - 1 {
		pos += bytes.IndexByte(c.source.tidy[pos:], '\n') + 1
	}
	pos += e.Column - 1
	near := e.Raw
	if word, ok := c.source.words[pos]; ok {
		near = word
	}
	if near != "" {
		msg += fmt.Sprintf(" near %q", near)
	}
	if e.Line == 0 {
		return &templateFault{msg: msg}
	}
	return &templateFault{line: c.source.line(pos), msg: msg}
}
