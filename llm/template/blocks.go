package template

import (
	"github.com/llm-stage/stage/llm/template/internal/value"
)

// node is a part of a template: text, an output or a block.
type node interface {
	// render writes the node's text, or sets its names.
	render(r *rendering) error
}

// renderAll renders nodes in order.
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

// outputNode writes a value: of {{ … }}, or of a filter block.
type outputNode struct {
	line  int
	value expr
	nodes []node // as in [rendering.captured]
}

func (n *outputNode) render(r *rendering) error {
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

// block reads the block whose tag begins here; around is the enclosing one.
func (p *parser) block(around *opened) node {
	name := p.expectName("the name of a block")
	if p.blocks++; p.blocks > maxBlocks {
		p.failf(name.line, "more than %d nested blocks", maxBlocks)
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
		n := &outputNode{line: name.line}
		n.value, n.nodes = p.captured("filter", name.line, p.oneFilter(heldExpr{}))
		return n
	case "elif", "else", "endif", "endfor", "endset", "endwith", "endfilter", "endraw":
		if around == nil {
			p.failf(name.line, "%q does not belong to an open block", name.text)
		} else {
			p.failf(name.line, "%q does not belong to the open block %q of line %d", name.text, around.name, around.line)
		}
	case "raw":
		p.unexpected("the end of the tag")
	default:
		p.failf(name.line, "the block %q is not available; there are if, for, set, with, filter and raw", name.text)
	}
	return nil
}

// rest reads the body of a block and the tag that ends it, whose name it returns.
func (p *parser) rest(name string, line int, ends ...string) ([]node, string) {
	p.tagEnd()
	nodes, end := p.body(&opened{name, line, ends})
	if end != "elif" {
		p.tagEnd()
	}
	return nodes, end
}

// ifNode renders the nodes of the first branch whose condition is true.
type ifNode struct{ branches []branch }

type branch struct {
	condition expr
	nodes     []node
	line      int
}

func (p *parser) ifBlock(line int) node {
	n := &ifNode{}
	for end := "elif"; end == "elif"; {
		b := branch{line: p.present().line, condition: p.tuple(false)}
		b.nodes, end = p.rest("if", line, "elif", "else", "endif")
		n.branches = append(n.branches, b)
		if end == "else" {
			b := branch{condition: &constExpr{true}, line: line}
			b.nodes, _ = p.rest("if", line, "endif")
			n.branches = append(n.branches, b)
		}
	}
	return n
}

func (n *ifNode) render(r *rendering) error {
	for i := range n.branches {
		b := &n.branches[i]
		v, err := b.condition.eval(r)
		if v, err = r.step(b.line, v, err); err != nil {
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
	test      expr // or nil if there is none
	nodes     []node
	otherwise []node
}

func (p *parser) forBlock(line int) node {
	n := &forNode{line: line}
	p.forHead(n)
	p.loops++
	var end string
	n.nodes, end = p.rest("for", line, "else", "endfor")
	p.loops--
	if end == "else" {
		n.otherwise, _ = p.rest("for", line, "endfor")
	}
	return n
}

// forHead reads what follows the word for.
func (p *parser) forHead(n *forNode) {
	n.target = p.target(false)
	p.expect("in")
	n.items = p.tuple(false, "recursive")
	p.sets(n.target)
	if p.skip("if") { // here, loop refers to the enclosing loop
		n.test = p.expression(true)
	}
	if p.present().is("recursive") {
		p.failf(n.line, "recursive loops are not available")
	}
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
	l := &value.Loop{Items: items, Length: len(items)}
	for i, item := range items {
		l.Index = i
		err := n.turn(r, item, l)
		if err == nil {
			err = renderAll(r, n.nodes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// turn sets the names of one turn of the loop: those for the item and, unless l is nil,
// loop.
func (n *forNode) turn(r *rendering, item any, l *value.Loop) error {
	if err := r.Spend(value.TurnCost); err != nil {
		return at(n.line, err)
	}
	r.clear()
	if l != nil {
		r.set(loopNumber, l)
	}
	return at(n.line, n.target.set(r, item))
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
		if err := n.turn(r, item, nil); err != nil {
			return nil, err
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

// setNode sets names or members of namespaces to a value.
type setNode struct {
	line   int
	target *target
	value  expr
	nodes  []node // as in [rendering.captured]
}

func (p *parser) setBlock(line int) node {
	n := &setNode{line: line, target: p.target(true)}
	p.sets(n.target)
	p.readMembers(n.target)
	if p.skip("=") {
		n.value = p.tuple(true)
		p.tagEnd()
	} else {
		n.value, n.nodes = p.captured("set", line, heldExpr{})
	}
	return n
}

func (n *setNode) render(r *rendering) error {
	v, err := r.captured(n.value, n.nodes)
	if v, err = r.step(n.line, v, err); err != nil {
		return err
	}
	return at(n.line, n.target.set(r, v))
}

// captured reads the filters of a block, its body and its end. The expression returned
// filters the text of the body.
func (p *parser) captured(name string, line int, text expr) (expr, []node) {
	x := p.filters(text)
	nodes, _ := p.rest(name, line, "end"+name)
	return x, append([]node{}, nodes...)
}

// withNode sets names for the nodes in it.
type withNode struct {
	line    int
	targets []*target
	values  []expr
	nodes   []node
}

func (p *parser) withBlock(line int) node {
	n := &withNode{line: line}
	for more := p.present().kind != endToken; more; more = p.skip(",") {
		n.targets = append(n.targets, p.target(false))
		p.expect("=")
		n.values = append(n.values, p.expression(true))
	}
	for _, t := range n.targets {
		p.sets(t)
	}
	n.nodes, _ = p.rest("with", line, "endwith")
	return n
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
