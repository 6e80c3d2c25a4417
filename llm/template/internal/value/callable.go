package value

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Operation computes a value from v and args. It pays for its work and modifies neither.
type Operation func(r *Run, v any, args []any) (any, error)

// Callable is a filter, test, function or method.
type Callable struct {
	Op Operation
	// Params are the names of the arguments, separated by spaces. Those that may be left
	// out end in "?", as in "length end?". Op gets [Missing] for one that is left out.
	Params string
	// Named says that Op takes a mapping or a list of pairs, or [Missing], followed by any
	// named arguments, as names and values in turn.
	Named bool
	// Free says that Op takes any arguments, which freeArgs splits.
	Free bool
	// Undefined says that Op gets [Missing] for a name or an attribute that does not exist.
	// Without it the rendering fails there.
	Undefined bool
}

// Missing stands in for an argument that is left out, and for a value that is undefined
// where [Callable.Undefined] allows that.
type Missing struct{}

// freeArgs splits the arguments of a [Callable] that is Free: the positional ones, and at
// the end a mapping of the named ones.
func freeArgs(args []any) (positional []any, named map[string]any) {
	last := len(args) - 1
	named, _ = args[last].(map[string]any)
	return args[:last], named
}

// typed returns the callable of op, whose arguments are checked. A name in params may end
// in "?", as in [Callable.Params], and be followed by ":int" or ":str", the type of the
// argument. Optional strings, and integers, may be none, which means left out.
func typed(params string, op Operation) Callable {
	names := strings.Fields(params)
	types := make([]string, len(names))
	for i, param := range names {
		names[i], types[i], _ = strings.Cut(param, ":")
	}
	return Callable{Params: strings.Join(names, " "), Op: func(r *Run, v any, args []any) (any, error) {
		for i, want := range types {
			if absent(args[i]) && (want == "int" || strings.HasSuffix(names[i], "?")) {
				continue
			}
			if err := checkType(want, i, args[i]); err != nil {
				return nil, err
			}
		}
		return op(r, v, args)
	}}
}

// checkType fails if the argument at index i is not of the type "int" or "str". true and
// false count as integers, as in Python.
func checkType(want string, i int, arg any) error {
	_, isText := arg.(string)
	switch name := typeName(arg); {
	case want == "str" && !isText:
		return fmt.Errorf("argument %d must be a string, not %s", i+1, article(arg))
	case want == "int" && name != "integer" && name != "boolean":
		return fmt.Errorf("argument %d must be an integer, not %s", i+1, article(arg))
	}
	if _, large := arg.(json.Number); large && want == "int" {
		return fmt.Errorf("argument %d must be an integer of at most 64 bits", i+1)
	}
	return nil
}

// absent reports whether an argument is left out or is none, where that means the same.
func absent(arg any) bool { return arg == nil || arg == any(Missing{}) }

func intOr(arg any, otherwise int64) int64 {
	if n, ok := number(arg); ok {
		return n.i
	}
	return otherwise
}

func textOr(arg any, otherwise string) string {
	if s, ok := arg.(string); ok {
		return s
	}
	return otherwise
}

func truthOr(arg any, otherwise bool) bool {
	if arg == any(Missing{}) {
		return otherwise
	}
	return Truthy(arg)
}

// textOperation is an operation on text.
type textOperation func(r *Run, s string, args []any) (any, error)

// onText passes op a value as text, after paying each units per byte of it.
func onText(each int, op textOperation) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		s, err := r.Text(v)
		if err == nil {
			err = r.SpendTimes(len(s), each)
		}
		if err != nil {
			return nil, err
		}
		return op(r, s, args)
	}
}

// mapped is an operation that turns text into a result of about the same length. It pays 4
// units per byte, for reading the text and for writing the result.
func mapped[T any](f func(string) T) Operation {
	return onText(4, func(_ *Run, s string, _ []any) (any, error) { return f(s), nil })
}

// onStrings is onText for strings. Other values are an error.
func onStrings(each int, op textOperation) Operation {
	paid := onText(each, op)
	return func(r *Run, v any, args []any) (any, error) {
		if _, ok := v.(string); !ok {
			return nil, fmt.Errorf("%s is not a string; convert it with |string", article(v))
		}
		return paid(r, v, args)
	}
}

// onItems passes op the items of a value.
func onItems(op func(r *Run, items, args []any) (any, error)) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		items, err := r.Items(v)
		if err != nil {
			return nil, err
		}
		return op(r, items, args)
	}
}

// onMapping passes op a mapping and its keys.
func onMapping(op func(r *Run, m map[string]any, keys, args []any) (any, error)) Operation {
	return func(r *Run, v any, args []any) (any, error) {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s is not a mapping", article(v))
		}
		keys, err := r.Items(m)
		if err != nil {
			return nil, err
		}
		return op(r, m, keys, args)
	}
}

// method returns a callable for values of one type: of is its typeName.
func method(of, params string, op Operation) Callable {
	c := typed(params, op)
	op = c.Op
	c.Op = func(r *Run, v any, args []any) (any, error) {
		if typeName(v) != of {
			return nil, fmt.Errorf("%s has no such method", article(v))
		}
		return op(r, v, args)
	}
	return c
}
