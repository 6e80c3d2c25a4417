package value

import (
	"encoding/json"
	"fmt"
)

// Operation computes a value from v and args, or says why it cannot. It pays for what it
// does and changes neither.
type Operation func(r *Run, v any, args []any) (any, error)

// Callable is a filter, test, function or method.
type Callable struct {
	Op Operation
	// Params are the names of the arguments. Those that may be left out end in "?".
	Params string
	// Named: takes any named arguments, as pairs of name and value, and before them a mapping or list of pairs.
	Named bool
	// Free: takes any arguments, which freeArgs takes apart.
	Free bool
	// Undefined: Op gets [Missing] for an attribute that does not exist.
	Undefined bool
}

// Missing stands in the place of an argument that is left out.
type Missing struct{}

// freeArgs takes apart the arguments of what is free.
func freeArgs(args []any) (positional []any, named map[string]any) {
	last := len(args) - 1
	named, _ = args[last].(map[string]any)
	return args[:last], named
}

// given are the arguments of one call. err is that of the first one that is of a wrong type.
type given struct {
	args []any
	err  error
}

// left reports whether an argument is left out, or none where that means the same.
func (g *given) left(i int) bool { return g.args[i] == any(Missing{}) || g.args[i] == nil }

func (g *given) wrong(format string, args ...any) {
	if g.err == nil {
		g.err = fmt.Errorf(format, args...)
	}
}

func (g *given) int(i int, otherwise int64) int64 {
	if g.left(i) {
		return otherwise
	}
	switch a := g.args[i].(type) {
	case int64:
		return a
	case bool:
		n, _ := number(a)
		return n.i
	case json.Number:
		g.wrong("argument %d must be an integer of at most 64 bits", i+1)
	default:
		g.wrong("argument %d must be an integer, not %s", i+1, article(a))
	}
	return otherwise
}

func (g *given) bool(i int, otherwise bool) bool {
	if g.args[i] == any(Missing{}) {
		return otherwise
	}
	return Truthy(g.args[i])
}

func (g *given) string(i int, otherwise string) string {
	if g.left(i) {
		return otherwise
	}
	return g.want(i)
}

// want returns a string that cannot be left out.
func (g *given) want(i int) string {
	s, ok := g.args[i].(string)
	if !ok {
		g.wrong("argument %d must be a string, not %s", i+1, article(g.args[i]))
	}
	return s
}
