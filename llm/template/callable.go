package template

// operation computes a value from v and args, or says why it cannot. It pays for what it
// does and changes neither.
type operation func(r *run, v any, args []any) (any, error)

// callable is a filter, test, function or method.
type callable struct {
	op operation
	// params are the names of the arguments. Those that may be left out end in "?".
	params string
	// named: takes any named arguments, as pairs of name and value, and before them a mapping or list of pairs.
	named bool
	// free: takes any arguments, which freeArgs takes apart.
	free bool
	// undefined: op gets missing for an attribute that does not exist.
	undefined bool
}

// missing stands in the place of an argument that is left out.
type missing struct{}

// freeArgs takes apart the arguments of what is free.
func freeArgs(args []any) (positional []any, named map[string]any) {
	last := len(args) - 1
	named, _ = args[last].(map[string]any)
	return args[:last], named
}
