package template

import (
	"io"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// setBlock sets names or members of namespaces, to values or to what stands in the block.
type setBlock struct {
	blockAt
	target *target
	value  nodes.Expression    // nil: what stands in the block
	passed []*nodes.FilterCall // that the block's text passes
	text   nodes.Expression    // the captured text, filtered
}

func parseSet(p, args *parser.Parser) (nodes.ControlStructure, error) {
	b := &setBlock{}
	first := args.Current()
	var err error
	if b.target, err = parseTarget(args, true); err != nil {
		return nil, err
	}
	if args.Match(tokens.Assign) == nil {
		if args.Match(tokens.Pipe) != nil {
			if b.passed, err = parseFilters(args); err != nil {
				return nil, err
			}
		}
		return b, b.parseBody(p, args, "endset")
	}
	if b.value, err = parseTuple(args); err != nil {
		return nil, err
	}
	if !args.End() {
		return nil, args.Error("unexpected", args.Current())
	}
	b.location = first
	return b, nil
}

// parseTuple reads an expression, or several with commas between.
func parseTuple(args *parser.Parser) (nodes.Expression, error) {
	first := args.Current()
	x, err := args.ParseExpression()
	if err != nil || args.Current(tokens.Comma) == nil {
		return x, err
	}
	values := []nodes.Expression{x}
	for args.Match(tokens.Comma) != nil {
		if x, err = args.ParseExpression(); err != nil {
			return nil, err
		}
		values = append(values, x)
	}
	return &nodes.Tuple{Location: first, Val: values}, nil
}

func (b *setBlock) compile(c *templateCompiler) (err error) {
	b.line = c.line
	c.set = b.target.names(c.set)
	if err := b.target.compile(c); err != nil {
		return err
	}
	if b.value != nil {
		b.value, err = c.expression(b.value)
		return err
	}
	if b.text, err = c.passed(b.passed); err != nil {
		return err
	}
	return c.body(b.body)
}

func (b *setBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	run := renderingOf(r.Evaluator())
	v, err := b.evaluate(r)
	if err != nil {
		return err
	}
	if err := b.target.set(run, r.Environment.Context, v); err != nil {
		return run.fail(b.line, err)
	}
	return nil
}

// evaluate returns what the block sets.
func (b *setBlock) evaluate(r *exec.Renderer) (any, error) {
	if b.value == nil {
		return b.captured(r, b.text)
	}
	v := r.Eval(b.value)
	if v.IsError() {
		return nil, v
	}
	return valueOf(v), nil
}

// withBlock sets names for what stands in it.
type withBlock struct {
	blockAt
	targets []*target
	values  []nodes.Expression
}

func parseWith(p, args *parser.Parser) (nodes.ControlStructure, error) {
	b := &withBlock{}
	for more := !args.End(); more; more = args.Match(tokens.Comma) != nil {
		target, err := parseTarget(args, false)
		if err != nil {
			return nil, err
		}
		if args.Match(tokens.Assign) == nil {
			return nil, args.Error("want name = value", args.Current())
		}
		x, err := args.ParseExpression()
		if err != nil {
			return nil, err
		}
		b.targets, b.values = append(b.targets, target), append(b.values, x)
	}
	return b, b.parseBody(p, args, "endwith")
}

func (b *withBlock) compile(c *templateCompiler) (err error) {
	if b.values, err = c.expressions(b.values); err != nil {
		return err
	}
	b.line = c.line
	for _, t := range b.targets {
		c.set = t.names(c.set)
	}
	return c.body(b.body)
}

func (b *withBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	run := renderingOf(r.Evaluator())
	values := make([]any, len(b.values))
	for i, x := range b.values {
		v := r.Eval(x)
		if v.IsError() {
			return v
		}
		values[i] = valueOf(v)
	}
	return b.run(r, func(ctx *exec.Context) error {
		for i, t := range b.targets {
			if err := t.set(run, ctx, values[i]); err != nil {
				return run.fail(b.line, err)
			}
		}
		return nil
	})
}

// filterBlock gives what stands in it to filters.
type filterBlock struct {
	blockAt
	filters []*nodes.FilterCall
	value   nodes.Expression // captured, filtered, as text
}

// capturedName is where a filter block has its text in gonja's context.
const capturedName = " captured"

func parseFilter(p, args *parser.Parser) (nodes.ControlStructure, error) {
	b := &filterBlock{}
	var err error
	if b.filters, err = parseFilters(args); err != nil {
		return nil, err
	}
	return b, b.parseBody(p, args, "endfilter")
}

// parseFilters reads filters with | between.
func parseFilters(args *parser.Parser) (filters []*nodes.FilterCall, err error) {
	for {
		f, err := args.ParseFilter()
		if err != nil {
			return nil, err
		}
		filters = append(filters, f)
		if args.Match(tokens.Pipe) == nil {
			return filters, nil
		}
	}
}

// passed compiles filters for a text that is captured.
func (c *templateCompiler) passed(filters []*nodes.FilterCall) (x nodes.Expression, err error) {
	x = &nodes.Name{Name: &tokens.Token{Val: capturedName}}
	for _, f := range filters {
		c.at(f.Token)
		if x, err = c.oneFilter(f, x); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// captured renders what stands in the block and returns the value of x for it.
func (b *blockAt) captured(r *exec.Renderer, x nodes.Expression) (any, error) {
	text, err := b.capture(r)
	if err != nil {
		return nil, err
	}
	sub := r.Inherit()
	sub.Environment.Context.Set(capturedName, text)
	v := sub.Eval(x)
	if v.IsError() {
		return nil, v
	}
	return valueOf(v), nil
}

func (b *filterBlock) compile(c *templateCompiler) (err error) {
	if b.value, err = c.passed(b.filters); err != nil {
		return err
	}
	b.value = c.apply(opText, b.value)
	return c.body(b.body)
}

func (b *filterBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	v, err := b.captured(r, b.value)
	if err != nil {
		return err
	}
	text, _ := v.(string)
	_, err = io.WriteString(r.Output, text)
	return err
}
