package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// problems collects what is wrong, and how to fix it: at most one decoding problem of each variable, and none that
// follows from another.
type problems struct {
	layers     layers // name the source of a value
	byVariable map[string][]string
}

func newProblems() *problems {
	return &problems{byVariable: make(map[string][]string)}
}

// add reports a problem of one variable.
func (p *problems) add(variable, format string, args ...any) {
	p.byVariable[variable] = append(p.byVariable[variable], fmt.Sprintf(format, args...))
}

// addMore adds what a closer look has found, of variables that have no problem yet.
func (p *problems) addMore(more map[string]error) {
	for variable, err := range more {
		if err != nil && p.none(variable) {
			p.add(variable, "%s", err)
		}
	}
}

// none reports whether the variables have no problem so far, and can be compared.
func (p *problems) none(variables ...string) bool {
	return !slices.ContainsFunc(variables, func(v string) bool { return len(p.byVariable[v]) > 0 })
}

// join returns all problems: those of fields in their order, then the others by name. It removes secrets from the texts,
// since one may have been set as the value of another variable.
func (p *problems) join(secrets *Secrets) error {
	var all []error
	take := func(variable string) {
		name := p.layers.name(variable)
		for _, text := range p.byVariable[variable] {
			all = append(all, fmt.Errorf("%s: %s", name, secrets.Redact([]byte(text))))
		}
		delete(p.byVariable, variable)
	}
	for _, f := range Fields() {
		take(f.Variable)
		if f.Secret {
			take(f.Variable + FileSuffix)
		}
	}
	for _, variable := range slices.Sorted(maps.Keys(p.byVariable)) {
		take(variable)
	}
	return errors.Join(all...)
}

// Error is an error in how the program was called or configured: only the user can fix it, so a retry fails again. Its
// text explains what is wrong and how to fix it.
type Error struct{ Err error }

// Error returns the text of what is wrong.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *Error) Unwrap() error { return e.Err }

// Invalid returns err as a [*Error]; nil for nil.
func Invalid(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err}
}

// IsInvalid reports whether err has an [*Error] in its chain.
func IsInvalid(err error) bool {
	_, is := errors.AsType[*Error](err)
	return is
}
