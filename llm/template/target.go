package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// target is what a value is given to: a name, a member of a namespace, or targets for its items.
type target struct {
	name   string
	at     *tokens.Token // of the name
	member string        // of the namespace name; empty: none
	parts  []*target
}

// parseTarget reads a target, in brackets or not. Only some can have members of namespaces.
func parseTarget(args *parser.Parser, members bool) (*target, error) {
	t, err := parseOneTarget(args, members)
	if err != nil || args.Current(tokens.Comma) == nil {
		return t, err
	}
	parts := []*target{t}
	for args.Match(tokens.Comma) != nil && args.Current(tokens.RightParenthesis) == nil {
		if t, err = parseOneTarget(args, members); err != nil {
			return nil, err
		}
		parts = append(parts, t)
	}
	return &target{parts: parts}, nil
}

func parseOneTarget(args *parser.Parser, members bool) (*target, error) {
	if args.Match(tokens.LeftParenthesis) != nil {
		t, err := parseTarget(args, members)
		if err == nil && args.Match(tokens.RightParenthesis) == nil {
			err = args.Error("a closing bracket is missing", args.Current())
		}
		return t, err
	}
	name := args.Match(tokens.Name)
	if name == nil {
		return nil, args.Error("a name is missing", args.Current())
	}
	if slices.Contains([]string{"loop", "none", "None", "true", "True", "false", "False"}, name.Val) {
		return nil, args.Error("this name cannot be set", name)
	}
	t := &target{name: name.Val, at: name}
	if members && args.Match(tokens.Dot) != nil {
		member := args.Match(tokens.Name)
		if member == nil {
			return nil, args.Error("a name is missing behind the point", args.Current())
		}
		t.member = member.Val
	}
	return t, nil
}

// names adds the names that t sets to names.
func (t *target) names(names []string) []string {
	if t.name != "" && t.member == "" {
		return append(names, t.name)
	}
	for _, part := range t.parts {
		names = part.names(names)
	}
	return names
}

// compile notes that the names of namespaces are read.
func (t *target) compile(c *templateCompiler) error {
	if t.member != "" {
		_, err := c.expression(&nodes.Name{Name: t.at})
		return err
	}
	for _, part := range t.parts {
		if err := part.compile(c); err != nil {
			return err
		}
	}
	return nil
}

// set gives t the value v.
func (t *target) set(run *rendering, ctx *exec.Context, v any) error {
	if t.parts == nil {
		return t.setOne(ctx, v)
	}
	items, err := run.items(v)
	if err != nil {
		return err
	}
	if len(items) != len(t.parts) {
		return fmt.Errorf("%d values for the names %s", len(items), strings.Join(t.names(nil), ", "))
	}
	for i, part := range t.parts {
		if err := part.set(run, ctx, items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) setOne(ctx *exec.Context, v any) error {
	if t.member == "" {
		ctx.Set(t.name, v)
		return nil
	}
	of, ok := ctx.Get(t.name)
	if !ok {
		return &templateFault{msg: "undefined: " + t.name, undefined: true}
	}
	ns, ok := of.(*namespace)
	if !ok {
		return fmt.Errorf("%s is no namespace: only those can be changed", t.name)
	}
	ns.members[t.member] = v
	return nil
}
