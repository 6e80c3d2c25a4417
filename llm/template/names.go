package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// names are the names of a template: which it reads, and which something sets. A name that
// is read and that nothing sets is a mistake, such as a misspelt one, and fails when the
// template is compiled.
//
// Each name has a number, so that a rendering finds its value in a slice.
type names struct {
	numbers map[string]int
	globals []string        // names that are always set
	known   map[string]bool // names that some block sets, or that some part tests for being defined
	read    []*nameExpr     // those that are read, without the globals
	loops   int             // open ones: in a loop, loop is set

	item   bool   // [Options.Item]
	noItem string // [Options.NoItem]
}

// The numbers of the names that every rendering sets.
const (
	rowNumber = iota
	lookupNumber
	loopNumber
	itemNumber // with Options.Item
)

func newNames(o *Options) *names {
	n := &names{item: o.Item, noItem: o.NoItem, globals: []string{"row"}, known: map[string]bool{}, numbers: map[string]int{
		"row": rowNumber, "lookup": lookupNumber, "loop": loopNumber, "item": itemNumber,
	}}
	if o.Lookup != nil {
		n.globals = append(n.globals, "lookup")
	}
	if o.Item {
		n.globals = append(n.globals, "item", "loop")
	}
	return n
}

// name returns the expression of a name.
func (n *names) name(name string, line int) expr {
	x := &nameExpr{name, n.number(name), line}
	if !slices.Contains(n.globals, name) && (name != "loop" || n.loops == 0) {
		n.read = append(n.read, x)
	}
	return x
}

// number returns the number of a name.
func (n *names) number(name string) int {
	number, ok := n.numbers[name]
	if !ok {
		number = len(n.numbers)
		n.numbers[name] = number
	}
	return number
}

// ask records that the template tests whether x, if it is a name, is defined.
func (n *names) ask(x expr) {
	if name, ok := x.(*nameExpr); ok {
		n.known[name.name] = true
	}
}

// isElement reports whether an expression is the loop of an element of the row's array.
func (n *names) isElement(x expr) bool {
	name, ok := x.(*nameExpr)
	return ok && name.name == "loop" && n.item && n.loops == 0
}

// sets records that the names of t are set.
func (n *names) sets(t *target) {
	for _, name := range t.names(nil) {
		n.known[name] = true
	}
}

// readMembers records that the names of namespaces are read.
func (n *names) readMembers(t *target) {
	if t.member != "" {
		n.name(t.name, t.line)
	}
	for _, part := range t.parts {
		n.readMembers(part)
	}
}

// unknownNames returns an error for each name that is read and that nothing sets.
func (n *names) unknownNames() (faults []*fault) {
	for _, x := range n.read {
		if n.known[x.name] {
			continue
		}
		f := &fault{line: x.line, err: &value.Undefined{What: x.name}}
		switch x.name {
		case "lookup":
			f.hint = "no lookup file is configured"
		case "item", "loop":
			f.hint = n.noItemHint(x.name)
		case "nil", "null", "NULL":
			f.hint = "write none"
		default:
			f.hint = fmt.Sprintf("there are %s and what the template sets; did you mean row.%s?", strings.Join(n.globals, ", "), x.name)
		}
		faults = append(faults, f)
	}
	return faults
}

// noItemHint says what to write instead of item, or of loop outside of a loop, where the
// template sees neither.
func (n *names) noItemHint(name string) string {
	hint := "no array is configured of which each element is a call"
	if n.noItem != "" {
		hint += ": " + n.noItem
	}
	return fmt.Sprintf("%s; or did you mean row.%s?", hint, name)
}
