package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// parser reads the blocks and expressions of a template and builds the nodes that render
// it. It checks all that can be checked without a row. Its methods do not return errors:
// the first one is in the scanner, and from then on the tag, and so the template, has
// ended.
type parser struct {
	*scanner
	tokens []token // of the tag that is being read, from the current one on
	depth  int     // of the expression
	blocks int     // open ones
	loops  int     // open ones

	numbers map[string]int // of all names

	item    bool            // [Options.Item]
	noItem  string          // [Options.NoItem]
	globals []string        // names that are always set
	known   map[string]bool // names that some block sets, or that some part tests for being defined
	read    []*nameExpr     // names that are read
}

// The numbers of the names that every rendering sets.
const (
	rowNumber = iota
	lookupNumber
	loopNumber
	itemNumber // with Options.Item
)

// parse returns the nodes of a template and the number of its names.
func parse(source []byte, o *Options) ([]node, int, error) {
	s, err := newScanner(source)
	if err != nil {
		return nil, 0, err
	}
	p := newParser(s, o)
	nodes, _ := p.body(nil)
	for _, f := range p.unknownNames() {
		p.fail(f)
	}
	return nodes, len(p.numbers), p.err
}

func newParser(s *scanner, o *Options) *parser {
	p := &parser{scanner: s, item: o.Item, noItem: o.NoItem, globals: []string{"row"}, known: map[string]bool{}, numbers: map[string]int{
		"row": rowNumber, "lookup": lookupNumber, "loop": loopNumber, "item": itemNumber,
	}}
	if o.Lookup != nil {
		p.globals = append(p.globals, "lookup")
	}
	if o.Item {
		p.globals = append(p.globals, "item", "loop")
	}
	return p
}

// unknownNames returns an error for each name that is read and that nothing sets.
func (p *parser) unknownNames() (faults []*fault) {
	for _, x := range p.read {
		if p.known[x.name] {
			continue
		}
		f := &fault{line: x.line, err: &value.Undefined{What: x.name}}
		switch x.name {
		case "lookup":
			f.hint = "no lookup file is configured"
		case "item", "loop":
			f.hint = p.noItemHint(x.name)
		case "nil", "null", "NULL":
			f.hint = "write none"
		default:
			f.hint = fmt.Sprintf("there are %s and what the template sets; did you mean row.%s?", strings.Join(p.globals, ", "), x.name)
		}
		faults = append(faults, f)
	}
	return faults
}

// noItemHint says what to write instead of item, or of loop outside of a loop, where the
// template sees neither.
func (p *parser) noItemHint(name string) string {
	hint := "no array is configured of which each element is a call"
	if p.noItem != "" {
		hint += ": " + p.noItem
	}
	return fmt.Sprintf("%s; or did you mean row.%s?", hint, name)
}

// opened is a block that is not closed yet.
type opened struct {
	name string
	line int
	ends []string // the tags that end its body; the last one closes the block
}

// body reads up to the tag that ends the body of the block and returns its name. No
// block: up to the end.
func (p *parser) body(block *opened) (nodes []node, end string) {
	for {
		part := p.next()
		p.tokens = part.tokens
		switch part.kind {
		case textPart:
			nodes = append(nodes, &textNode{text: part.text, line: part.line})
		case outputPart:
			nodes = append(nodes, &outputNode{value: p.tuple(true), line: part.line})
			p.tagEnd()
		case blockPart:
			name := p.tokens[0]
			if block != nil && name.kind == nameToken && slices.Contains(block.ends, name.text) {
				p.advance()
				return nodes, name.text
			}
			nodes = append(nodes, p.block(block))
		case endPart:
			if block != nil {
				p.failf(block.line, "the block %q is not closed by %q", block.name, block.ends[len(block.ends)-1])
			}
			return nodes, ""
		}
	}
}

// present returns the current token. The end of a tag is never consumed.
func (p *parser) present() *token { return &p.tokens[0] }

// advance consumes the current token and returns it.
func (p *parser) advance() *token {
	t := &p.tokens[0]
	if t.kind != endToken {
		p.tokens = p.tokens[1:]
	}
	return t
}

// skip consumes an operator or a word, if it is next.
func (p *parser) skip(text string) bool {
	ok := p.present().is(text)
	if ok {
		p.advance()
	}
	return ok
}

// expect consumes an operator or a word, which must be next.
func (p *parser) expect(text string) {
	if !p.skip(text) {
		p.unexpected(fmt.Sprintf("%q", text))
	}
}

// expectName consumes a name, which must be next.
func (p *parser) expectName(what string) *token {
	if p.present().kind != nameToken {
		p.unexpected(what)
	}
	return p.advance()
}

// tagEnd fails unless the tag ends here.
func (p *parser) tagEnd() {
	if p.present().kind != endToken {
		p.unexpected("the end of the tag")
	}
}

// unexpected fails, because what should come here is not the current token.
func (p *parser) unexpected(what string) {
	p.failf(p.present().line, "expected %s, found %q", what, p.present().text)
}

// failf records an error and ends the tag.
func (p *parser) failf(line int, format string, args ...any) {
	p.fail(&fault{line: line, err: fmt.Errorf(format, args...)})
	p.tokens = []token{{kind: endToken, line: line}}
}
