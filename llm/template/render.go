package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/template/internal/value"
)

// rendering is one rendering of a template.
type rendering struct {
	value.Run
	row       row.Variables
	variables []variable // those of inner blocks after those of outer ones
	block     int        // where those of the innermost block begin
	out       *strings.Builder
	maxOut    int
	held      string // the text that a block's filters are for
}

// variable is a name that is set.
type variable struct {
	name  string
	value any
}

// get returns the value of a name.
func (r *rendering) get(name string) (any, bool) {
	for _, v := range slices.Backward(r.variables) {
		if v.name == name {
			return v.value, true
		}
	}
	return nil, false
}

// set sets a name for the rest of the innermost block.
func (r *rendering) set(name string, v any) {
	for i := r.block; i < len(r.variables); i++ {
		if r.variables[i].name == name {
			r.variables[i].value = v
			return
		}
	}
	r.variables = append(r.variables, variable{name, v})
}

// open begins a block that has names of its own. close ends it, given what open returned.
func (r *rendering) open() (outer int) {
	outer, r.block = r.block, len(r.variables)
	return outer
}

func (r *rendering) close(outer int) {
	r.clear()
	r.block = outer
}

// clear forgets the names of the innermost block.
func (r *rendering) clear() {
	clear(r.variables[r.block:])
	r.variables = r.variables[:r.block]
}

// write adds to the text, up to its bound.
func (r *rendering) write(s string) error {
	if len(s) > r.maxOut-r.out.Len() {
		return fmt.Errorf("the text is larger than %d bytes", r.maxOut)
	}
	if err := r.Spend(value.StepCost + len(s)); err != nil {
		return err
	}
	r.out.WriteString(s)
	return nil
}

// captured renders nodes, in a block of their own, and returns the value of x while their text is held. No nodes: the
// value of x.
func (r *rendering) captured(x expr, nodes []node) (any, error) {
	if nodes == nil {
		return x.eval(r)
	}
	outer, out := r.open(), r.out
	r.out = &strings.Builder{}
	err := renderAll(r, nodes)
	r.held = r.out.String()
	r.out = out
	r.close(outer)
	if err != nil {
		return nil, err
	}
	return x.eval(r)
}

// step pays for one step and returns its outcome.
func (r *rendering) step(line int, v any, err error) (any, error) {
	if err == nil {
		err = r.Spend(value.StepCost)
	}
	if err != nil {
		return nil, at(line, err)
	}
	return v, nil
}
