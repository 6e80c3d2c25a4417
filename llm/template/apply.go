package template

import (
	"slices"
	"strconv"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
)

// applied is an expression that gives steps, one after the other, the value of in; the first one gets those of args too.
type applied struct {
	steps []step
	in    nodes.Expression
	args  []nodes.Expression
}

type step struct {
	op   operation
	line int
}

// apply returns the expression that gives op the values of in and args. An operation on nothing but the outcome of
// another becomes a further step of that one: the way through gonja costs more than most operations.
func (c *templateCompiler) apply(op operation, in nodes.Expression, args ...nodes.Expression) nodes.Expression {
	a := applied{in: in, args: args}
	if before, ok := c.applied[in]; ok && len(args) == 0 {
		a = before
	}
	a.steps = append(slices.Clip(a.steps), step{op, c.line})
	x := c.filter(func(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
		if in.IsError() {
			return in
		}
		r := renderingOf(e)
		args := make([]any, len(params.Args))
		for i, a := range params.Args {
			args[i] = valueOf(a)
		}
		v := valueOf(in)
		for _, step := range a.steps {
			var err error
			v, err = step.op(r, v, args)
			if err == nil {
				err = r.spend(stepCost)
			}
			if err != nil {
				return exec.AsValue(r.fail(step.line, err))
			}
			args = nil
		}
		return exec.AsValue(v)
	}, a.in, a.args...)
	c.applied[x] = a
	return x
}

// filter returns the expression that gives f the values of in and args.
func (c *templateCompiler) filter(f exec.FilterFunction, in nodes.Expression, args ...nodes.Expression) nodes.Expression {
	name := strconv.Itoa(len(c.filters))
	c.filters[name] = f
	call := &nodes.FilterCall{Name: name, Args: args}
	return &nodes.FilteredExpression{Expression: in, Filters: []*nodes.FilterCall{call}}
}

func renderingOf(e *exec.Evaluator) *rendering {
	v, _ := e.Environment.Context.Get(renderingName)
	r, _ := v.(*rendering)
	return r
}

// valueOf takes a value out of gonja's.
func valueOf(v *exec.Value) any {
	switch x := v.Interface().(type) {
	case int: // a literal
		return int64(x)
	default:
		return x
	}
}
