package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// parser reads the blocks and expressions of a template and builds the nodes that render it. Whatever can be checked
// without a row is checked here.
type parser struct {
	*scanner
	tokens []token // of the tag that is being read, from the present one on
	depth  int     // of the expression
	blocks int     // open ones
	loops  int     // open ones

	numbers map[string]int // of all names

	globals []string        // names that are always set
	known   map[string]bool // names that some block sets, or of which some part asks whether they are defined
	read    []*nameExpr     // names that are read
}

// The numbers of the names that renderings set by themselves.
const (
	rowNumber = iota
	lookupNumber
	loopNumber
)

// parse returns the nodes of a template, and how many names it has.
func parse(source []byte, lookup bool) ([]node, int, error) {
	s, err := newScanner(source)
	if err != nil {
		return nil, 0, err
	}
	p := &parser{scanner: s, globals: []string{"row"}, known: map[string]bool{}, numbers: map[string]int{"row": rowNumber, "lookup": lookupNumber, "loop": loopNumber}}
	if lookup {
		p.globals = append(p.globals, "lookup")
	}
	nodes, _, err := p.body(nil)
	if err == nil {
		err = p.checkNames()
	}
	return nodes, len(p.numbers), err
}

// checkNames fails where a name is read that nothing sets.
func (p *parser) checkNames() error {
	for _, x := range p.read {
		if p.known[x.name] {
			continue
		}
		f := &fault{line: x.line, err: &value.Undefined{What: x.name}}
		switch x.name {
		case "lookup":
			f.hint = "no lookup file is configured"
		case "nil", "null", "NULL":
			f.hint = "write none"
		default:
			f.hint = fmt.Sprintf("there are %s and what the template sets; did you mean row.%s?", strings.Join(p.globals, ", "), x.name)
		}
		return f
	}
	return nil
}

// opened is a block that is not closed yet.
type opened struct {
	name string
	line int
	ends []string // the tags that end its body; the last one closes the block
}

// body reads up to the tag that ends the body of the block and returns its name. No block: up to the end.
func (p *parser) body(block *opened) (nodes []node, end string, err error) {
	for {
		part, err := p.next()
		if err != nil {
			return nil, "", err
		}
		p.tokens = part.tokens
		var n node
		switch part.kind {
		case textPart:
			n = &textNode{text: part.text, line: part.line}
		case outputPart:
			n, err = p.output(part.line)
		case blockPart:
			name := p.tokens[0]
			if block != nil && name.kind == nameToken && slices.Contains(block.ends, name.text) {
				p.advance()
				return nodes, name.text, nil
			}
			n, err = p.block(block)
		case endPart, commentPart: // of which next returns only the end
			if block != nil {
				err = &fault{line: block.line, err: fmt.Errorf("the block %q is not closed by %q", block.name, block.ends[len(block.ends)-1])}
			}
			return nodes, "", err
		}
		if err != nil {
			return nil, "", err
		}
		nodes = append(nodes, n)
	}
}

// output reads {{ … }}.
func (p *parser) output(line int) (node, error) {
	x, err := p.tuple(true)
	if err != nil {
		return nil, err
	}
	return &outputNode{x, line}, p.tagEnd()
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
func (p *parser) expect(text string) error {
	if !p.skip(text) {
		return p.unexpected(fmt.Sprintf("%q", text))
	}
	return nil
}

// expectName consumes a name, which must be next.
func (p *parser) expectName(what string) (*token, error) {
	if p.present().kind != nameToken {
		return nil, p.unexpected(what)
	}
	return p.advance(), nil
}

// tagEnd fails unless the tag ends here.
func (p *parser) tagEnd() error {
	if p.present().kind != endToken {
		return p.unexpected("the end of the tag")
	}
	return nil
}

// unexpected returns an error that what is expected instead of the current token.
func (p *parser) unexpected(what string) error {
	return p.failf(p.present().line, "expected %s, found %q", what, p.present().text)
}

func (p *parser) failf(line int, format string, args ...any) error {
	return &fault{line: line, err: fmt.Errorf(format, args...)}
}
