package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// target is what a value is assigned to: a name, a member of a namespace, or targets for
// its items.
type target struct {
	name   string
	number int    // of the name
	member string // of the namespace name, or empty
	line   int
	parts  []*target // or nil for a name or a member
}

// target reads a target, or several separated by commas. If members, they may be members
// of namespaces.
func (p *parser) target(members bool) *target {
	t := p.oneTarget(members)
	if !p.present().is(",") {
		return t
	}
	parts := []*target{t}
	for p.skip(",") && !p.present().is(")") {
		parts = append(parts, p.oneTarget(members))
	}
	return &target{parts: parts}
}

func (p *parser) oneTarget(members bool) *target {
	if p.skip("(") {
		t := p.target(members)
		p.expect(")")
		return t
	}
	name := p.expectName("a name")
	if slices.Contains(operatorWords, name.text) {
		p.failf(name.line, "expected a name, found %q", name.text)
	}
	if _, constant := constants[name.text]; constant || name.text == "loop" {
		p.failf(name.line, "the name %q cannot be set", name.text)
	}
	t := &target{name: name.text, number: p.number(name.text), line: name.line}
	if members && p.skip(".") {
		t.member = p.expectName("the name of a member").text
	}
	return t
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

// set assigns v to t.
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
