package template

import "slices"

// parser reads the text, outputs and blocks of a template, and builds the nodes that render
// it. It checks all that can be checked without a row. As with a [cursor], the first error
// is in the scanner, and from then on the template has ended.
type parser struct {
	exprParser
	blocks int // open ones
}

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
	return &parser{exprParser: exprParser{cursor: cursor{scanner: s}, names: newNames(o)}}
}

// opened is a block that is not closed yet.
type opened struct {
	name string
	line int
	ends []string // the tags that end its body; the last one closes the block
}

// body reads up to the tag that ends the body of the block and returns its name. Without a
// block it reads up to the end of the template.
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
