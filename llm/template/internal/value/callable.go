package value

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
