package template

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/yamldoc"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/template/internal/value"
	"go.yaml.in/yaml/v4"
)

// maxMessages bounds the messages of one rendering, and maxConversationErrors the errors
// that are listed for a file.
const (
	maxMessages           = 10_000
	maxConversationErrors = 20
)

// ParseConversation compiles a list of messages in YAML or JSON, in which every string is
// a template:
//
//   - {role: system, content: "You label tickets: {{ lookup.labels | join(', ') }}"}
//   - for: ex in lookup.examples
//     messages:
//   - {role: user, content: "{{ ex.text }}"}
//   - {role: assistant, content: "{{ ex.label }}"}
//   - {role: user, content: "{{ row.text }}", if: row.text}
//
// The roles are system, for which developer is another name, user and assistant. Content
// is a text or a list of parts. The loop of for and the condition of if are those of
// Jinja's blocks.
//
// The error lists all that is wrong with the file, each with line and column; within a
// block of text, with the line. The template is rendered by [Template.Messages].
func ParseConversation(source []byte, o Options) (*Template, error) {
	if len(source) > maxSourceBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(source), maxSourceBytes)
	}
	root, err := yamldoc.Parse(source)
	if err != nil {
		return nil, err
	}
	o.Name = cmp.Or(o.Name, "the messages")
	t := newTemplate(source, &o)
	c := &conversationParser{parser: newParser(nil, &o)}
	if root == nil {
		return nil, errors.New("no messages: give a list of them, each with role and content")
	}
	t.nodes = c.list(root)
	t.names = len(c.numbers)
	return t, errors.Join(c.errs...)
}

// conversationParser builds the nodes that render messages. Each string of the file is
// scanned by itself, and all share the parser's names.
type conversationParser struct {
	*parser
	errs []error
}

// failAt adds an error. A column of 0 is unknown.
func (c *conversationParser) failAt(line, column int, f *fault) {
	if len(c.errs) == maxConversationErrors {
		return
	}
	text, hint := f.Error(), f.hint
	if u, ok := errors.AsType[*value.Undefined](f.err); ok {
		hint = cmp.Or(hint, u.Hint())
	}
	if hint != "" {
		text += "; " + hint
	}
	place := fmt.Sprintf("line %d", line)
	if column > 0 {
		place += fmt.Sprintf(", column %d", column)
	}
	c.errs = append(c.errs, errors.New(place+": "+text))
}

func (c *conversationParser) failfAt(n *yaml.Node, format string, args ...any) {
	c.failAt(n.Line, n.Column, &fault{err: fmt.Errorf(format, args...)})
}

// list reads a list of messages and loops.
func (c *conversationParser) list(n *yaml.Node) (nodes []node) {
	n = resolved(n)
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		c.failfAt(n, "not a list of messages: write each as - {role: user, content: …}")
		return nil
	}
	for _, item := range n.Content {
		if one := c.item(resolved(item)); one != nil {
			nodes = append(nodes, one)
		}
	}
	return nodes
}

// item reads one message, or one loop.
func (c *conversationParser) item(n *yaml.Node) node {
	if n.Kind != yaml.MappingNode {
		c.failfAt(n, "not a message: write it as {role: user, content: …}")
		return nil
	}
	if _, loop := byName(n)["for"]; loop {
		m := c.members(n, "for", "messages")
		if m == nil {
			return nil
		}
		return c.loop(m["for"], m["messages"])
	}
	m := c.members(n, "role", "content", "if?")
	if m == nil {
		return nil
	}
	message := &messageNode{line: n.Line, role: c.role(m["role"])}
	message.parts, message.list = c.content(m["content"])
	if m["if"] == nil {
		return message
	}
	b := branch{line: m["if"].Line, nodes: []node{message}}
	c.expressionOf(m["if"], func() { b.condition = c.tuple(true) })
	return &ifNode{branches: []branch{b}}
}

// members returns the members of a mapping by name, or nil where one is missing or
// unknown. A name that ends in "?" may be missing.
func (c *conversationParser) members(n *yaml.Node, names ...string) map[string]*yaml.Node {
	found := byName(n)
	fine := true
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if !slices.ContainsFunc(names, func(name string) bool { return strings.TrimSuffix(name, "?") == key.Value }) {
			c.failfAt(key, "%q is unknown here: there are %s", key.Value, strings.ReplaceAll(strings.Join(names, ", "), "?", ""))
			fine = false
		}
	}
	for _, name := range names {
		if found[name] == nil && !strings.HasSuffix(name, "?") {
			c.failfAt(n, "%s is missing", name)
			fine = false
		}
	}
	if !fine {
		return nil
	}
	return found
}

// byName returns the values of a mapping by their keys.
func byName(n *yaml.Node) map[string]*yaml.Node {
	found := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		found[n.Content[i].Value] = resolved(n.Content[i+1])
	}
	return found
}

func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// loop reads what follows for, such as "ex in lookup.examples if ex.good", and the
// messages of each turn.
func (c *conversationParser) loop(head, body *yaml.Node) node {
	n := &forNode{line: head.Line}
	if c.blocks++; c.blocks > maxBlocks {
		c.failfAt(head, "more than %d nested loops", maxBlocks)
		return nil
	}
	defer func() { c.blocks-- }()
	before := maps.Clone(c.known)
	c.expressionOf(head, func() { c.forHead(n) })
	defer func() { c.known = before }()
	c.loops++
	n.nodes = c.list(body)
	c.loops--
	return n
}

// expressionOf has read read the text of a node as the inside of a tag.
func (c *conversationParser) expressionOf(n *yaml.Node, read func()) {
	const end = "%}"
	if !c.scan(n, n.Value+" "+end) {
		return
	}
	if c.tokens = c.scanner.tokens(end); c.tokens == nil {
		c.errorf("not an expression")
		c.tokens = []token{{kind: endToken, line: n.Line}}
	}
	read()
	c.tagEnd()
	if c.pos < len(c.text) {
		c.errorf("expected an expression, found %q behind one", end)
	}
	c.scanned(n)
}

// role reads a message's role. One without a tag is checked at once.
func (c *conversationParser) role(n *yaml.Node) []node {
	nodes := c.compiled(n)
	if len(nodes) == 0 {
		c.failfAt(n, "the role is empty: write system, user or assistant")
		return nil
	}
	if text, ok := nodes[0].(*textNode); ok && len(nodes) == 1 {
		if _, err := llm.ParseRole(text.text); err != nil {
			c.failfAt(n, "%w", err)
		}
	}
	return nodes
}

// content reads a text, or a list of parts.
func (c *conversationParser) content(n *yaml.Node) (parts [][]node, list bool) {
	if n.Kind != yaml.SequenceNode {
		return [][]node{c.compiled(n)}, false
	}
	for _, part := range n.Content {
		if part = resolved(part); part.Kind != yaml.MappingNode {
			c.failfAt(part, "not a part: write it as {type: text, text: …}")
			continue
		}
		if kind := byName(part)["type"]; kind != nil && kind.Value != "text" {
			c.failfAt(kind, "parts of type %q are not available: there is text", kind.Value)
			continue
		}
		if m := c.members(part, "type", "text"); m != nil {
			parts = append(parts, c.compiled(m["text"]))
		}
	}
	return parts, true
}

// compiled compiles a string of the file.
func (c *conversationParser) compiled(n *yaml.Node) (nodes []node) {
	if !c.scan(n, n.Value) {
		return nil
	}
	before := maps.Clone(c.known)
	nodes, _ = c.body(nil)
	c.scanned(n)
	c.known = before // what it sets is not known in other strings
	return nodes
}

// scan begins to read a text that stands in a node.
func (c *conversationParser) scan(n *yaml.Node, text string) bool {
	if n.Kind != yaml.ScalarNode {
		c.failfAt(n, "not a text: write it in quotes")
		return false
	}
	s, err := newScanner([]byte(text))
	if err != nil {
		c.failfAt(n, "%w", err)
		return false
	}
	// Only a literal block has the lines of its text. In any other form an error names the
	// line where the string begins.
	if s.countedLine, s.lineless = n.Line, true; n.Style&yaml.LiteralStyle != 0 {
		s.countedLine, s.lineless = n.Line+1, false
	}
	c.scanner = s
	return true
}

// scanned notes the errors of the text that was read.
func (c *conversationParser) scanned(n *yaml.Node) {
	faults := c.unknownNames()
	c.read = nil
	if f, ok := errors.AsType[*fault](c.err); ok { // what comes behind it was not read
		faults = []*fault{f}
	}
	for _, f := range faults {
		if f.line > n.Line {
			c.failAt(f.line, 0, f)
		} else {
			c.failAt(n.Line, n.Column, f)
		}
	}
}

// messageNode adds one message. Its text is written to the rendering's output, like any
// other, and the message keeps where it begins and ends.
type messageNode struct {
	line  int
	role  []node
	parts [][]node
	list  bool // parts is a list in the file
}

// span is a piece of a rendering's output.
type span struct{ from, to int }

// messageSpans is a message before its texts are cut out of the output.
type messageSpans struct {
	role  llm.Role
	parts []span
	list  bool
}

func (n *messageNode) render(r *rendering) error {
	if len(r.messages) == maxMessages {
		return at(n.line, fmt.Errorf("more than %d messages", maxMessages))
	}
	if err := r.Spend(value.TurnCost); err != nil {
		return at(n.line, err)
	}
	role, err := n.renderRole(r)
	if err != nil {
		return at(n.line, err)
	}
	m := messageSpans{role: role, list: n.list, parts: make([]span, 0, len(n.parts))}
	for _, part := range n.parts {
		piece := span{from: r.out.Len()}
		if err := r.scoped(part); err != nil {
			return err
		}
		if piece.to = r.out.Len(); piece.to > piece.from {
			m.parts = append(m.parts, piece)
		}
	}
	if len(m.parts) == 0 {
		return &fault{
			line: n.line, err: fmt.Errorf("the content of message %d, role %s, is empty", len(r.messages)+1, role),
			hint: "leave such a message out with if",
		}
	}
	r.messages = append(r.messages, m)
	return nil
}

func (n *messageNode) renderRole(r *rendering) (llm.Role, error) {
	if text, ok := n.role[0].(*textNode); ok && len(n.role) == 1 {
		return llm.ParseRole(text.text)
	}
	out := r.out
	r.out = &strings.Builder{}
	err := r.scoped(n.role)
	text := r.out.String()
	if r.out = out; err != nil {
		return "", err
	}
	return llm.ParseRole(strings.TrimSpace(text))
}

// scoped renders nodes whose names are theirs alone.
func (r *rendering) scoped(nodes []node) error {
	defer r.close(r.open())
	return renderAll(r, nodes)
}

// Messages returns the conversation for a row, or for the element at an index of items
// unless these are nil. It fails as [Template.Render] does, and where a message or the
// conversation is empty.
func (t *Template) Messages(of *row.Row, items *row.Items, index int) ([]llm.Message, error) {
	text, spans, err := t.run(of, items, index)
	if err != nil {
		return nil, err
	}
	if len(spans) == 0 {
		return nil, t.renderingFailed(errors.New("the conversation has no messages"))
	}
	messages := make([]llm.Message, len(spans))
	for i, m := range spans {
		messages[i].Role = m.role
		if !m.list {
			messages[i].Text = text[m.parts[0].from:m.parts[0].to]
			continue
		}
		for _, p := range m.parts {
			messages[i].Parts = append(messages[i].Parts, llm.Part{Text: text[p.from:p.to]})
		}
	}
	return messages, nil
}
