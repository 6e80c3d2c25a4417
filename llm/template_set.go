package llm

import (
	"fmt"
	"io"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// setBlock sets names, or a member of a namespace, or a name to what stands in the block.
type setBlock struct {
	blockAt
	names  []string
	member string // of the namespace names[0]; empty: none
	target nodes.Expression
	value  nodes.Expression
	// value if condition else alternative; nil: just value.
	condition, alternative nodes.Expression
}

func parseSet(p, args *parser.Parser) (nodes.ControlStructure, error) {
	b := &setBlock{}
	first := args.Current()
	var err error
	if b.names, err = parseNames(args); err != nil {
		return nil, err
	}
	if args.Match(tokens.Dot) != nil {
		member := args.Match(tokens.Name)
		if member == nil || len(b.names) > 1 {
			return nil, args.Error("a name is missing behind the point", args.Current())
		}
		b.member, b.target = member.Val, &nodes.Name{Name: first}
	}
	if args.Match(tokens.Assign) == nil {
		if b.member != "" || len(b.names) > 1 {
			return nil, args.Error(`"=" is missing`, args.Current())
		}
		return b, b.parseBody(p, args, "endset")
	}
	if b.value, err = args.ParseExpression(); err != nil {
		return nil, err
	}
	if values := []nodes.Expression{b.value}; args.Current(tokens.Comma) != nil {
		for args.Match(tokens.Comma) != nil {
			x, err := args.ParseExpression()
			if err != nil {
				return nil, err
			}
			values = append(values, x)
		}
		b.value = &nodes.Tuple{Location: first, Val: values}
	}
	b.condition, b.alternative, err = args.ParseCondition()
	switch {
	case err != nil:
		return nil, err
	case b.condition != nil && b.alternative == nil:
		return nil, args.Error(`"else" is missing`, args.Current())
	case !args.End():
		return nil, args.Error("unexpected", args.Current())
	}
	b.location = first
	return b, nil
}

func (b *setBlock) compile(c *templateCompiler) (err error) {
	b.line = c.line
	if b.member == "" {
		c.set = append(c.set, b.names...)
	}
	for _, x := range []*nodes.Expression{&b.target, &b.value, &b.condition, &b.alternative} {
		if *x == nil {
			continue
		}
		if *x, err = c.expression(*x); err != nil {
			return err
		}
	}
	return c.body(b.body)
}

func (b *setBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	run := renderingOf(r.Evaluator())
	v, err := b.evaluate(r)
	if err != nil {
		return err
	}
	if b.member == "" {
		if err := setNames(run, r.Environment.Context, b.names, v); err != nil {
			return run.fail(b.line, err)
		}
		return nil
	}
	target := r.Eval(b.target)
	if target.IsError() {
		return target
	}
	ns, ok := valueOf(target).(*namespace)
	if !ok {
		return run.fail(b.line, fmt.Errorf("%s is no namespace: only those can be changed", b.names[0]))
	}
	ns.members[b.member] = v
	return nil
}

// evaluate returns what the block sets.
func (b *setBlock) evaluate(r *exec.Renderer) (any, error) {
	if b.value == nil {
		return b.capture(r)
	}
	x := b.value
	if b.condition != nil {
		ok := r.Eval(b.condition)
		if ok.IsError() {
			return nil, ok
		}
		if !ok.IsTrue() {
			x = b.alternative
		}
	}
	v := r.Eval(x)
	if v.IsError() {
		return nil, v
	}
	return valueOf(v), nil
}

// withBlock sets names for what stands in it.
type withBlock struct {
	blockAt
	names  []string
	values []nodes.Expression
}

func parseWith(p, args *parser.Parser) (nodes.ControlStructure, error) {
	b := &withBlock{}
	for !args.End() {
		name := args.Match(tokens.Name)
		if name == nil || args.Match(tokens.Assign) == nil {
			return nil, args.Error("want name = value", args.Current())
		}
		x, err := args.ParseExpression()
		if err != nil {
			return nil, err
		}
		b.names, b.values = append(b.names, name.Val), append(b.values, x)
		if args.Match(tokens.Comma) == nil {
			break
		}
	}
	return b, b.parseBody(p, args, "endwith")
}

func (b *withBlock) compile(c *templateCompiler) (err error) {
	if b.values, err = c.expressions(b.values); err != nil {
		return err
	}
	c.set = append(c.set, b.names...)
	return c.body(b.body)
}

func (b *withBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	values := make([]any, len(b.values))
	for i, x := range b.values {
		v := r.Eval(x)
		if v.IsError() {
			return v
		}
		values[i] = valueOf(v)
	}
	return b.run(r, func(ctx *exec.Context) error {
		for i, name := range b.names {
			ctx.Set(name, values[i])
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
	for {
		f, err := args.ParseFilter()
		if err != nil {
			return nil, err
		}
		b.filters = append(b.filters, f)
		if args.Match(tokens.Pipe) == nil {
			break
		}
	}
	return b, b.parseBody(p, args, "endfilter")
}

func (b *filterBlock) compile(c *templateCompiler) (err error) {
	b.value = &nodes.Name{Name: &tokens.Token{Val: capturedName}}
	for _, f := range b.filters {
		c.at(f.Token)
		if b.value, err = c.oneFilter(f, b.value); err != nil {
			return err
		}
	}
	b.value = c.apply(opText, b.value)
	return c.body(b.body)
}

func (b *filterBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	text, err := b.capture(r)
	if err != nil {
		return err
	}
	sub := r.Inherit()
	sub.Environment.Context.Set(capturedName, text)
	v := sub.Eval(b.value)
	if v.IsError() {
		return v
	}
	_, err = io.WriteString(r.Output, v.String())
	return err
}
