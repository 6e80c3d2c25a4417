package template

import (
	"github.com/llm-stage/stage/llm/template/internal/value"
)

// node is a part of a template: text, an output or a block.
type node interface {
	// render writes what the node renders to, or sets what it sets.
	render(r *rendering) error
}

// renderAll renders nodes one after the other.
func renderAll(r *rendering, nodes []node) error {
	for _, n := range nodes {
		if err := n.render(r); err != nil {
			return err
		}
	}
	return nil
}

type textNode struct {
	text string
	line int
}

func (n *textNode) render(r *rendering) error { return at(n.line, r.write(n.text)) }

type outputNode struct {
	value expr
	line  int
}

func (n *outputNode) render(r *rendering) error {
	v, err := n.value.eval(r)
	if err != nil {
		return err
	}
	text, err := r.Text(v)
	if err != nil {
		return at(n.line, err)
	}
	return at(n.line, r.write(text))
}

// block reads the block whose tag begins here; around is the enclosing one.
func (p *parser) block(around *opened) (n node, err error) {
	name, err := p.expectName("the name of a block")
	if err != nil {
		return nil, err
	}
	if p.blocks++; p.blocks > maxBlocks {
		return nil, p.failf(name.line, "more than %d nested blocks", maxBlocks)
	}
	defer func() { p.blocks-- }()
	switch name.text {
	case "if":
		return p.ifBlock(name.line)
	case "for":
		return p.forBlock(name.line)
	case "set":
		return p.setBlock(name.line)
	case "with":
		return p.withBlock(name.line)
	case "filter":
		return p.filterBlock(name.line)
	case "elif", "else", "endif", "endfor", "endset", "endwith", "endfilter", "endraw":
		if around == nil {
			return nil, p.failf(name.line, "%q does not belong to an open block", name.text)
		}
		return nil, p.failf(name.line, "%q does not belong to the open block %q of line %d", name.text, around.name, around.line)
	case "raw":
		return nil, p.unexpected("the end of the tag")
	}
	return nil, p.failf(name.line, "the block %q is not available; there are if, for, set, with, filter and raw", name.text)
}

// rest reads the body of a block and the tag that ends it, whose name it returns.
func (p *parser) rest(name string, line int, ends ...string) ([]node, string, error) {
	if err := p.tagEnd(); err != nil {
		return nil, "", err
	}
	nodes, end, err := p.body(&opened{name, line, ends})
	if err == nil && end != "elif" {
		err = p.tagEnd()
	}
	return nodes, end, err
}

// ifNode renders the nodes of the first branch whose condition is true.
type ifNode struct{ branches []branch }

type branch struct {
	condition expr
	nodes     []node
	line      int
}

func (p *parser) ifBlock(line int) (node, error) {
	n := &ifNode{}
	for end := "elif"; end == "elif"; {
		b := branch{line: p.present().line}
		var err error
		if b.condition, err = p.tuple(false); err != nil {
			return nil, err
		}
		if b.nodes, end, err = p.rest("if", line, "elif", "else", "endif"); err != nil {
			return nil, err
		}
		n.branches = append(n.branches, b)
		if end == "else" {
			b := branch{condition: &constExpr{true}, line: line}
			if b.nodes, _, err = p.rest("if", line, "endif"); err != nil {
				return nil, err
			}
			n.branches = append(n.branches, b)
		}
	}
	return n, nil
}

func (n *ifNode) render(r *rendering) error {
	for i := range n.branches {
		b := &n.branches[i]
		v, err := b.condition.eval(r)
		if err == nil {
			err = at(b.line, r.Spend(value.StepCost))
		}
		if err != nil {
			return err
		}
		if value.Truthy(v) {
			return renderAll(r, b.nodes)
		}
	}
	return nil
}

// forNode is a loop.
type forNode struct {
	line      int
	target    *target
	items     expr
	test      expr // nil: none
	nodes     []node
	otherwise []node
}

func (p *parser) forBlock(line int) (node, error) {
	n := &forNode{line: line}
	var err error
	if n.target, err = p.target(false); err != nil {
		return nil, err
	}
	if err := p.expect("in"); err != nil {
		return nil, err
	}
	if n.items, err = p.tuple(false, "recursive"); err != nil {
		return nil, err
	}
	p.sets(n.target)
	if p.skip("if") { // in which loop is the enclosing one
		if n.test, err = p.expression(true); err != nil {
			return nil, err
		}
	}
	if p.present().is("recursive") {
		return nil, p.failf(line, "recursive loops are not available")
	}
	p.loops++
	var end string
	n.nodes, end, err = p.rest("for", line, "else", "endfor")
	p.loops--
	if err == nil && end == "else" {
		n.otherwise, _, err = p.rest("for", line, "endfor")
	}
	return n, err
}

func (n *forNode) render(r *rendering) error {
	items, err := n.turns(r)
	if err != nil {
		return err
	}
	defer r.close(r.open())
	if len(items) == 0 {
		return renderAll(r, n.otherwise)
	}
	l := &value.Loop{Items: items}
	for i, item := range items {
		if err := r.Spend(value.TurnCost); err != nil {
			return at(n.line, err)
		}
		l.Index = i
		r.clear()
		r.set(loopNumber, l)
		if err := n.target.set(r, item); err != nil {
			return at(n.line, err)
		}
		if err := renderAll(r, n.nodes); err != nil {
			return err
		}
	}
	return nil
}

// turns returns the items to loop over: all that pass the test.
func (n *forNode) turns(r *rendering) ([]any, error) {
	v, err := n.items.eval(r)
	if err != nil {
		return nil, err
	}
	items, err := r.Items(v)
	if err == nil {
		err = r.Spend(value.StepCost)
	}
	if err != nil || n.test == nil {
		return items, at(n.line, err)
	}
	defer r.close(r.open())
	passed := []any{}
	for _, item := range items {
		if err := r.Spend(value.TurnCost); err != nil {
			return nil, at(n.line, err)
		}
		r.clear()
		if err := n.target.set(r, item); err != nil {
			return nil, at(n.line, err)
		}
		ok, err := n.test.eval(r)
		if err != nil {
			return nil, err
		}
		if value.Truthy(ok) {
			passed = append(passed, item)
		}
	}
	return passed, nil
}

// setNode sets names or members of namespaces.
type setNode struct {
	line   int
	target *target
	value  expr
	nodes  []node // whose text value filters; nil: it has none
}

func (p *parser) setBlock(line int) (node, error) {
	n := &setNode{line: line}
	var err error
	if n.target, err = p.target(true); err != nil {
		return nil, err
	}
	p.sets(n.target)
	p.readMembers(n.target)
	if p.skip("=") {
		if n.value, err = p.tuple(true); err != nil {
			return nil, err
		}
		return n, p.tagEnd()
	}
	n.value, n.nodes, err = p.captured("set", line, p.filters)
	return n, err
}

func (n *setNode) render(r *rendering) error {
	v, err := r.captured(n.value, n.nodes)
	if err == nil {
		err = at(n.line, r.Spend(value.StepCost))
	}
	if err != nil {
		return err
	}
	return at(n.line, n.target.set(r, v))
}

// captured reads the filters of a block, its body and its end. The expression returned filters the text of the body.
func (p *parser) captured(name string, line int, filters func(expr) (expr, error)) (expr, []node, error) {
	x, err := filters(heldExpr{})
	if err != nil {
		return nil, nil, err
	}
	nodes, _, err := p.rest(name, line, "end"+name)
	return x, append([]node{}, nodes...), err
}

// filterNode writes the filtered text of nodes.
type filterNode struct {
	line  int
	value expr
	nodes []node
}

func (p *parser) filterBlock(line int) (node, error) {
	x, nodes, err := p.captured("filter", line, func(of expr) (expr, error) {
		of, err := p.oneFilter(of)
		if err != nil {
			return nil, err
		}
		return p.filters(of)
	})
	return &filterNode{line, x, nodes}, err
}

func (n *filterNode) render(r *rendering) error {
	v, err := r.captured(n.value, n.nodes)
	if err != nil {
		return err
	}
	text, err := r.Text(v)
	if err != nil {
		return at(n.line, err)
	}
	return at(n.line, r.write(text))
}

// withNode sets names for the nodes in it.
type withNode struct {
	line    int
	targets []*target
	values  []expr
	nodes   []node
}

func (p *parser) withBlock(line int) (node, error) {
	n := &withNode{line: line}
	for more := p.present().kind != endToken; more; more = p.skip(",") {
		t, err := p.target(false)
		if err != nil {
			return nil, err
		}
		if err := p.expect("="); err != nil {
			return nil, err
		}
		x, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		n.targets, n.values = append(n.targets, t), append(n.values, x)
	}
	for _, t := range n.targets {
		p.sets(t)
	}
	var err error
	n.nodes, _, err = p.rest("with", line, "endwith")
	return n, err
}

func (n *withNode) render(r *rendering) error {
	values, err := evalAll(r, n.values)
	if err == nil {
		err = at(n.line, r.SpendTimes(1+len(values), value.StepCost))
	}
	if err != nil {
		return err
	}
	defer r.close(r.open())
	for i, t := range n.targets {
		if err := t.set(r, values[i]); err != nil {
			return at(n.line, err)
		}
	}
	return renderAll(r, n.nodes)
}
