package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// target is what a value is given to: a name, a member of a namespace, or targets for its items.
type target struct {
	name   string
	number int    // of the name
	member string // of the namespace name; empty: none
	line   int
	parts  []*target // nil: it is a name
}

// target reads a target, or several with commas between. Only some can be members of namespaces.
func (p *parser) target(members bool) (*target, error) {
	t, err := p.oneTarget(members)
	if err != nil || !p.present().is(",") {
		return t, err
	}
	parts := []*target{t}
	for p.skip(",") && !p.present().is(")") {
		if t, err = p.oneTarget(members); err != nil {
			return nil, err
		}
		parts = append(parts, t)
	}
	return &target{parts: parts}, nil
}

func (p *parser) oneTarget(members bool) (*target, error) {
	if p.skip("(") {
		t, err := p.target(members)
		if err == nil {
			err = p.expect(")")
		}
		return t, err
	}
	name, err := p.expectName("a name")
	if err != nil {
		return nil, err
	}
	if slices.Contains(operatorWords, name.text) {
		return nil, p.failf(name.line, "expected a name, found %q", name.text)
	}
	if _, constant := constants[name.text]; constant || name.text == "loop" {
		return nil, p.failf(name.line, "the name %q cannot be set", name.text)
	}
	t := &target{name: name.text, number: p.number(name.text), line: name.line}
	if members && p.skip(".") {
		member, err := p.expectName("the name of a member")
		if err != nil {
			return nil, err
		}
		t.member = member.text
	}
	return t, nil
}

// names adds the names that t sets to names.
func (t *target) names(names []string) []string {
	if t.parts == nil && t.member == "" {
		return append(names, t.name)
	}
	for _, part := range t.parts {
		names = part.names(names)
	}
	return names
}

// sets notes that the names of t are set.
func (p *parser) sets(t *target) {
	for _, name := range t.names(nil) {
		p.known[name] = true
	}
}

// readMembers notes that the names of namespaces are read.
func (p *parser) readMembers(t *target) {
	if t.member != "" {
		p.name(t.name, t.line)
	}
	for _, part := range t.parts {
		p.readMembers(part)
	}
}

// set gives t the value v.
func (t *target) set(r *rendering, v any) error {
	if t.parts == nil {
		return t.setOne(r, v)
	}
	items, err := r.Items(v)
	if err == nil {
		err = r.SpendTimes(len(t.parts), value.StepCost)
	}
	if err != nil {
		return err
	}
	if len(items) != len(t.parts) {
		return fmt.Errorf("%d values for the names %s", len(items), strings.Join(t.names(nil), ", "))
	}
	for i, part := range t.parts {
		if err := part.set(r, items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) setOne(r *rendering, v any) error {
	if t.member == "" {
		r.set(t.number, v)
		return nil
	}
	of, ok := r.get(t.number)
	if !ok {
		return &value.Undefined{What: t.name}
	}
	ns, ok := of.(*value.Namespace)
	if !ok {
		return fmt.Errorf("%s is not a namespace: only namespaces can be changed", t.name)
	}
	ns.Members[t.member] = v
	return nil
}
