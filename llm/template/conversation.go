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

// maxConversationErrors bounds the errors that are listed for a file. The last line says
// that there are more.
const maxConversationErrors = 100

// ParseConversation compiles a list of messages in YAML or JSON, in which every string is
// a template:
//
//	# a system message, two messages for each example, and one if the row has a text
//	- {role: system, content: "You label tickets: {{ lookup.labels | join(', ') }}"}
//	- for: ex in lookup.examples
//	  messages:
//	    - {role: user, content: "{{ ex.text }}"}
//	    - {role: assistant, content: "{{ ex.label }}"}
//	- {role: user, content: "{{ row.text }}", if: row.text}
//
// The roles are system, for which developer is another name, user and assistant. Content
// is a text or a list of parts, each in one of these forms:
//
//   - {type: text, text: "{{ row.text }}"}
//   - {type: image, source: "{{ row.photo }}", detail: low}
//   - {type: file, source: "{{ row.invoice }}", name: "{{ row.id }}.pdf"}
//   - {type: audio, source: "{{ row.call }}"}
//
// The loop of for and the condition of if are those of Jinja's blocks.
//
// The error lists all that is wrong with the file, each with line and column: where its
// string begins, and within a block of text, where its line does. The template is rendered
// by [Template.Messages].
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
	c := &conversationParser{parser: newParser(nil, &o), lines: strings.Split(string(source), "\n")}
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
	lines []string // of the file
	errs  []error
}

// indent returns the column in which the text of a line begins, counted from 1, or 0 where
// the file has no such line.
func (c *conversationParser) indent(line int) int {
	if line > len(c.lines) {
		return 0
	}
	text := c.lines[line-1]
	return len(text) - len(strings.TrimLeft(text, " ")) + 1
}

// failAt adds an error. A column of 0 is unknown.
func (c *conversationParser) failAt(line, column int, f *fault) {
	if len(c.errs) == maxConversationErrors {
		c.errs = append(c.errs, fmt.Errorf("line %d and below: there are more errors", line))
	}
	if len(c.errs) > maxConversationErrors {
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
		return c.loop(m["for"], m["messages"])
	}
	m := c.members(n, "role", "content", "if?")
	message := &messageNode{line: n.Line, role: c.role(m["role"])}
	message.parts, message.list = c.content(m["content"])
	isMedia := func(p partNode) bool { return p.kind != "" }
	word, _ := plainText(message.role)
	role, err := llm.ParseRole(word)
	if err == nil && role != llm.RoleUser && slices.ContainsFunc(message.parts, isMedia) {
		c.failfAt(m["content"], "media of role %s: only a message of the user can have any", role)
	}
	if m["if"] == nil {
		return message
	}
	b := branch{line: m["if"].Line, nodes: []node{message}}
	c.expressionOf(m["if"], func() { b.condition = c.tuple(true) })
	return &ifNode{branches: []branch{b}}
}

// members returns the members of a mapping by name, and reports those that are missing or
// unknown. A name that ends in "?" may be missing. What is there is read even so, to report
// its errors, too.
func (c *conversationParser) members(n *yaml.Node, names ...string) map[string]*yaml.Node {
	found := byName(n)
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if !slices.ContainsFunc(names, func(name string) bool { return strings.TrimSuffix(name, "?") == key.Value }) {
			c.failfAt(key, "%q is unknown here: there are %s", key.Value, strings.ReplaceAll(strings.Join(names, ", "), "?", ""))
		}
	}
	for _, name := range names {
		if found[name] == nil && !strings.HasSuffix(name, "?") {
			c.failfAt(n, "%s is missing", name)
		}
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

// resolved follows an alias: "*labels" is read as the node that "&labels" marks.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// loop reads what follows for, such as "ex in lookup.examples if ex.good", and the
// messages of each turn.
func (c *conversationParser) loop(head, body *yaml.Node) node {
	if body == nil { // it is reported as missing
		return nil
	}
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

// expressionOf calls read with the text of a node as the inside of a tag. The parser of
// tags reads up to "%}", so that is appended: "row.text" is read as "row.text %}".
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
	if n != nil && len(nodes) == 0 {
		c.failfAt(n, "the role is empty: write system, user or assistant")
		return nil
	}
	if text, ok := plainText(nodes); ok && text != "" {
		if _, err := llm.ParseRole(text); err != nil {
			c.failfAt(n, "%w", err)
		}
	}
	return nodes
}

// content reads a text, or a list of parts.
func (c *conversationParser) content(n *yaml.Node) (parts []partNode, list bool) {
	if n == nil || n.Kind != yaml.SequenceNode {
		return []partNode{{nodes: c.compiled(n)}}, false
	}
	if len(n.Content) > llm.MaxParts {
		c.failfAt(n, "more than %d parts", llm.MaxParts)
	}
	for _, part := range n.Content {
		if part = resolved(part); part.Kind != yaml.MappingNode {
			c.failfAt(part, "not a part: write it as {type: text, text: …}")
			continue
		}
		if p, ok := c.part(part); ok {
			parts = append(parts, p)
		}
	}
	return parts, true
}

// part reads one part of a list.
func (c *conversationParser) part(n *yaml.Node) (p partNode, ok bool) {
	p.line = n.Line
	main, names := "source", []string{"type", "source"}
	switch kind := byName(n)["type"]; {
	case kind == nil || kind.Value == "text":
		main, names = "text", []string{"type", "text"}
	case kind.Value == string(llm.KindImage):
		p.kind, names = llm.KindImage, append(names, "detail?")
	case kind.Value == string(llm.KindFile):
		p.kind, names = llm.KindFile, append(names, "name?")
	case kind.Value == string(llm.KindAudio):
		p.kind = llm.KindAudio
	default:
		c.failfAt(kind, "parts of type %q are not available: there are text, image, file and audio", kind.Value)
		return p, false
	}
	m := c.members(n, names...)
	p.nodes = c.compiled(m[main])
	if name := m["name"]; name != nil {
		p.extra = c.compiled(name)
	}
	if detail := m["detail"]; detail != nil {
		p.extra = c.compiled(detail)
		if text, ok := plainText(p.extra); ok {
			if err := llm.CheckDetail(text); err != nil {
				c.failfAt(detail, "%w", err)
			}
		}
	}
	return p, true
}

// compiled compiles a string of the file. The node is nil where a member is missing.
func (c *conversationParser) compiled(n *yaml.Node) (nodes []node) {
	if n == nil || !c.scan(n, n.Value) {
		return nil
	}
	before := maps.Clone(c.known)
	nodes, _ = c.body(nil)
	c.scanned(n)
	c.known = before // a name that this string sets is not known in the others
	return nodes
}

// scan begins to read a text that stands in a node.
func (c *conversationParser) scan(n *yaml.Node, text string) bool {
	if n.Kind != yaml.ScalarNode {
		c.failfAt(n, "not a text: write it in quotes")
		return false
	}
	if n.ShortTag() == "!!null" { // it would be sent as the word null
		c.failfAt(n, "the text is missing; the word null stands in quotes")
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
			c.failAt(f.line, c.indent(f.line), f)
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
	parts []partNode
	list  bool // parts is a list in the file
}

// partNode is one part of a message.
type partNode struct {
	line  int
	kind  llm.MediaKind // empty for a text
	nodes []node        // of the text, or of the source
	extra []node        // of the name of a file, or the detail of an image
}

// span is a piece of a rendering's output.
type span struct{ from, to int }

func (s span) empty() bool { return s.from == s.to }

// partSpans is a part before its texts are cut out of the output. All messages are written
// into one output, so that its bound holds for the conversation as a whole.
type partSpans struct {
	kind        llm.MediaKind
	text, extra span
}

// messageSpans is a message before its texts are cut out of the output.
type messageSpans struct {
	role  llm.Role
	parts []partSpans
	list  bool
}

func (n *messageNode) render(r *rendering) error {
	if len(r.messages) == llm.MaxMessages {
		return at(n.line, fmt.Errorf("more than %d messages", llm.MaxMessages))
	}
	if err := r.Spend(value.TurnCost); err != nil {
		return at(n.line, err)
	}
	role, err := n.renderRole(r)
	if err != nil {
		return at(n.line, err)
	}
	m := messageSpans{role: role, list: n.list, parts: make([]partSpans, 0, len(n.parts))}
	for i := range n.parts {
		part, err := n.parts[i].render(r)
		if err != nil {
			return err
		}
		if !part.text.empty() {
			m.parts = append(m.parts, part)
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

// render renders a part. One without text or source is left out by the caller.
func (n *partNode) render(r *rendering) (p partSpans, err error) {
	p.kind = n.kind
	if n.kind != "" && isNull(r, n.nodes) {
		return p, nil
	}
	p.text, err = r.span(n.nodes)
	if n.kind != "" && strings.TrimSpace(p.text.of(r.out.String())) == "" {
		p.text.to = p.text.from
	}
	if err != nil || n.extra == nil || p.text.empty() {
		return p, err
	}
	p.extra, err = r.span(n.extra)
	if err == nil && n.kind == llm.KindImage {
		err = at(n.line, llm.CheckDetail(p.extra.of(r.out.String())))
	}
	return p, err
}

// isNull reports whether nodes are one expression whose value is null, as in
// "{{ row.photo }}" of a row with "photo": null. As a text it would be "None", which no
// source is meant to be.
func isNull(r *rendering, nodes []node) bool {
	if len(nodes) != 1 {
		return false
	}
	output, ok := nodes[0].(*outputNode)
	if !ok || output.nodes != nil {
		return false
	}
	v, err := output.value.eval(r) // an error comes again when it is rendered
	return err == nil && v == nil
}

// span renders nodes and returns where their text is.
func (r *rendering) span(nodes []node) (s span, err error) {
	s.from = r.out.Len()
	err = r.scoped(nodes)
	s.to = r.out.Len()
	return s, err
}

// plainText returns the text of nodes that have no tag.
func plainText(nodes []node) (string, bool) {
	if len(nodes) != 1 {
		return "", len(nodes) == 0
	}
	text, ok := nodes[0].(*textNode)
	if !ok {
		return "", false
	}
	return text.text, true
}

// renderRole returns the message's role. A role with a tag is rendered beside the output,
// since it is no part of the text that the model receives.
func (n *messageNode) renderRole(r *rendering) (llm.Role, error) {
	if text, ok := plainText(n.role); ok {
		return llm.ParseRole(text)
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
// unless these are nil. The media are not read: each has a [llm.Media.Source] and no content
// yet. It fails as [Template.Render] does, and where a message or the conversation is empty.
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
			messages[i].Text = m.parts[0].text.of(text)
			continue
		}
		for _, p := range m.parts {
			messages[i].Parts = append(messages[i].Parts, p.part(text))
		}
	}
	return messages, nil
}

func (s span) of(text string) string { return text[s.from:s.to] }

// part cuts a part out of the output.
func (p *partSpans) part(text string) llm.Part {
	of := p.text.of(text)
	if p.kind == "" {
		return llm.Part{Text: of}
	}
	m := &llm.Media{Kind: p.kind, Source: strings.TrimSpace(of)}
	if p.kind == llm.KindImage {
		m.Detail = p.extra.of(text)
	} else {
		m.Name = p.extra.of(text)
	}
	return llm.Part{Media: m}
}
