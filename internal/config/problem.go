package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// problem is one thing to fix in the configuration.
type problem struct {
	variable string // STAGE_POOL_SIZE
	flag     string // pool-size if the value came by flag, else ""
	text     string // what is wrong and how to fix it
}

// Error names the variable, then the problem.
func (p *problem) Error() string {
	if p.flag != "" {
		return p.variable + " (--" + p.flag + "): " + p.text
	}
	return p.variable + ": " + p.text
}

// problems collects what is wrong: at most one decoding problem of each variable, and none that follows from another.
type problems struct {
	source     Source
	byVariable map[string][]*problem
}

func newProblems(s Source) *problems {
	return &problems{source: s, byVariable: make(map[string][]*problem)}
}

// add reports a problem of one variable.
func (p *problems) add(variable, format string, args ...any) {
	one := &problem{variable: variable, text: fmt.Sprintf(format, args...)}
	if _, ok := p.source.Flags[variable]; ok {
		one.flag = FlagName(variable)
	}
	p.byVariable[variable] = append(p.byVariable[variable], one)
}

// redact removes secrets from the texts: a secret may have been set as the value of another variable.
func (p *problems) redact(s *Secrets) {
	for _, list := range p.byVariable {
		for _, one := range list {
			one.text = string(s.Redact([]byte(one.text)))
		}
	}
}

// none reports whether the variables have no problem so far, and can be compared.
func (p *problems) none(variables ...string) bool {
	return !slices.ContainsFunc(variables, func(v string) bool { return len(p.byVariable[v]) > 0 })
}

// join returns all problems: those of fields in their order, then the others by name.
func (p *problems) join() error {
	var all []error
	take := func(variable string) {
		for _, one := range p.byVariable[variable] {
			all = append(all, one)
		}
		delete(p.byVariable, variable)
	}
	for _, known := range Fields() {
		take(known.Variable)
		if known.Secret {
			take(known.Variable + FileSuffix)
		}
	}
	for _, variable := range slices.Sorted(maps.Keys(p.byVariable)) {
		take(variable)
	}
	return errors.Join(all...)
}
