package template

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/template/internal/value"
)

// expr is an expression: a tree of the types below. "row.a ~ 'x'" is a callExpr of the
// operator ~ on an itemExpr, and that is on a nameExpr. Its errors are a [*fault]. A tree
// is not modified once it is built, since several rows are rendered from it at a time.
type expr interface {
	eval(r *rendering) (any, error)
}

// evalAll returns the values of expressions.
func evalAll(r *rendering, list []expr) ([]any, error) {
	values := make([]any, len(list))
	for i, x := range list {
		var err error
		if values[i], err = x.eval(r); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// constExpr is a literal.
type constExpr struct{ value any }

func (x *constExpr) eval(*rendering) (any, error) { return x.value, nil }

// heldExpr is the text of a block, to which its filters apply.
type heldExpr struct{}

func (heldExpr) eval(r *rendering) (any, error) { return r.held, nil }

// nameExpr is a variable. The parser gives each name a number, so looking it up while a row
// is rendered is an index into a slice in place of a search by name.
type nameExpr struct {
	name   string
	number int
	line   int
}

func (x *nameExpr) eval(r *rendering) (any, error) {
	v, err := x.lazy(r)
	if members, ok := v.(*row.Variables); ok {
		return members.All(), nil
	}
	return v, err
}

// lazy is eval, except that it decodes nothing of the row. Of a row with a hundred members
// and a template that reads row.text, only that one is decoded.
func (x *nameExpr) lazy(r *rendering) (any, error) {
	v, ok := r.get(x.number)
	if !ok {
		return nil, at(x.line, &value.Undefined{What: x.name})
	}
	return v, nil
}

// itemExpr is of.name or of[key].
type itemExpr struct {
	of, key expr
	written string // approximate source
	parts   int    // in written
	line    int
}

// newItem returns the item of a key; suffix is its source. Of a long chain only the end
// is kept for errors.
func newItem(of, key expr, suffix string, line int) *itemExpr {
	const maxParts = 10
	x := &itemExpr{of: of, key: key, line: line, written: written(of) + suffix}
	if before, ok := of.(*itemExpr); ok {
		if x.parts = before.parts + 1; x.parts == maxParts {
			x.written, x.parts = "…"+suffix, 0
		}
	}
	return x
}

// written returns the approximate source of an expression, for errors: "row.items[0]", and
// "…" for what is too long to repeat.
func written(x expr) string {
	switch x := x.(type) {
	case *nameExpr:
		return x.name
	case *itemExpr:
		return x.written
	case *constExpr:
		switch v := x.value.(type) {
		case string:
			return strconv.Quote(v)
		case int64:
			return strconv.FormatInt(v, 10)
		}
	}
	return "…"
}

func (x *itemExpr) eval(r *rendering) (v any, err error) {
	if name, ok := x.of.(*nameExpr); ok { // of row.name only that member is decoded
		v, err = name.lazy(r)
	} else {
		v, err = x.of.eval(r)
	}
	if err != nil {
		return nil, err
	}
	key, err := x.key.eval(r)
	if err != nil {
		return nil, err
	}
	v, err = r.Item(v, key, x.written)
	return r.step(x.line, v, err)
}

// compareExpr is first < other <= another, which is first < other and other <= another.
type compareExpr struct {
	first  expr
	others []comparand
}

type comparand struct {
	op   value.Operation
	with expr
	line int
}

func (x *compareExpr) eval(r *rendering) (any, error) {
	left, err := x.first.eval(r)
	if err != nil {
		return nil, err
	}
	var holds any
	before := x.first
	for _, c := range x.others {
		right, err := c.with.eval(r)
		if err != nil {
			return nil, err
		}
		holds, err = c.op(&r.Run, left, []any{right})
		if errors.Is(err, value.ErrOrder) {
			hint := cmp.Or(conversion(before, left, right), conversion(c.with, right, left))
			err = &fault{line: c.line, err: err, hint: hint}
		}
		if holds, err = r.step(c.line, holds, err); err != nil || !value.Truthy(holds) {
			return holds, err
		}
		before, left = c.with, right
	}
	return holds, nil
}

// conversion says how to compare v, the value of x, with a number if v is a string, as all
// values of CSV are: for "row.age > 30" it returns "write row.age | int". It returns "" if
// v is no string, or if x is no name that could be repeated.
func conversion(x expr, v, with any) string {
	name := written(x)
	if _, ok := v.(string); !ok || strings.HasPrefix(name, "…") || strings.HasPrefix(name, `"`) {
		return ""
	}
	switch with.(type) {
	case int64, json.Number:
		return "write " + name + " | int"
	case float64:
		return "write " + name + " | float"
	}
	return ""
}

// condExpr is "yes if condition else no" and evaluates only one of the two. A nil yes or no
// stands for the value of condition itself, which makes "and" and "or" of it: "a and b" is
// "b if a else a", and a is evaluated once.
type condExpr struct {
	condition, yes, no expr
	line               int
}

func (x *condExpr) eval(r *rendering) (any, error) {
	v, err := x.condition.eval(r)
	if v, err = r.step(x.line, v, err); err != nil {
		return nil, err
	}
	then := x.no
	if value.Truthy(v) {
		then = x.yes
	}
	if then == nil {
		return v, nil
	}
	return then.eval(r)
}

// callExpr is an operation on the value of and on arguments: the call of a filter, test,
// function or method, an operator, a slice, or a list, tuple or mapping of its arguments.
type callExpr struct {
	name      string // empty for an operator, a slice or a literal
	op        value.Operation
	of        expr // or nil, and then op gets a nil value
	args      []expr
	undefined bool // op takes [value.Missing] for a value that is undefined
	line      int
}

func (x *callExpr) eval(r *rendering) (v any, err error) {
	if x.of != nil {
		v, err = x.of.eval(r)
		if x.undefined && (v == any(value.Blank{}) || value.IsUndefined(err)) {
			v, err = value.Missing{}, nil
		}
		if err != nil {
			return nil, err
		}
	}
	if x.name != "" { // other operations pay for their items themselves
		if err := r.SpendTimes(len(x.args), value.ItemCost); err != nil {
			return nil, at(x.line, err)
		}
	}
	args, err := evalAll(r, x.args)
	if err != nil {
		return nil, err
	}
	v, err = x.op(&r.Run, v, args)
	if err != nil && x.name != "" && !value.IsUndefined(err) {
		err = fmt.Errorf("%s: %w", x.name, err)
	}
	return r.step(x.line, v, err)
}

// defaultExpr is of|default(value, boolean). It is no callExpr, because value is evaluated
// only if needed: in row.a|default(row.b), the row may have only one of the two.
type defaultExpr struct {
	of, value, boolean expr
	line               int
}

func (x *defaultExpr) eval(r *rendering) (any, error) {
	if _, err := r.step(x.line, nil, nil); err != nil {
		return nil, err
	}
	v, err := x.of.eval(r)
	if v == any(value.Blank{}) || value.IsUndefined(err) {
		return x.value.eval(r)
	}
	if err != nil || value.Truthy(v) {
		return v, err
	}
	all, err := x.boolean.eval(r)
	if err != nil {
		return nil, err
	}
	if value.Truthy(all) {
		return x.value.eval(r)
	}
	return v, nil
}
