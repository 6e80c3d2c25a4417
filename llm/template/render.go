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
	variables []variable // the variables of inner blocks come after those outside
	// innermost has, by the number of a name, the position in variables of the visible one,
	// counted from 1, or 0 if the name is not set.
	innermost []int
	block     int // the index of the innermost block's first variable
	out       *strings.Builder
	maxOut    int
	held      string // the text of a block, to which its filters apply
	messages  []messageSpans
}

// variable is a name that is set. Names are numbered when the template is parsed, so a
// rendering never searches for one.
type variable struct {
	name  int
	value any
	outer int // the variable of the same name that it hides, as in innermost
}

// get returns the value of a name.
func (r *rendering) get(name int) (any, bool) {
	at := r.innermost[name]
	if at == 0 {
		return nil, false
	}
	return r.variables[at-1].value, true
}

// set sets a name for the rest of the innermost block.
func (r *rendering) set(name int, v any) {
	if at := r.innermost[name]; at > r.block {
		r.variables[at-1].value = v
		return
	}
	r.variables = append(r.variables, variable{name, v, r.innermost[name]})
	r.innermost[name] = len(r.variables)
}

// open begins a block with its own names. close ends it, given the result of open.
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
	for _, v := range slices.Backward(r.variables[r.block:]) {
		r.innermost[v.name] = v.outer
	}
	clear(r.variables[r.block:])
	r.variables = r.variables[:r.block]
}

// write appends s to the text and fails if that gets too large.
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

// captured renders nodes, in their own block, and returns the value of x, which filters
// their text. Without nodes it returns the value of x.
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

// step pays for one step and returns its result.
func (r *rendering) step(line int, v any, err error) (any, error) {
	if err == nil {
		err = r.Spend(value.StepCost)
	}
	if err != nil {
		return nil, at(line, err)
	}
	return v, nil
}
