package template

import "fmt"

// cursor is the place in the tokens of a tag up to which they are read. Its methods do not
// return errors: the first error is in the scanner, and from then on the tag has ended, so
// that every loop over its tokens ends, too.
type cursor struct {
	*scanner
	// tokens are the tokens of the tag that is being read, from the current one on. The
	// last is an endToken.
	tokens []token
}

// present returns the current token. The end of a tag is never consumed.
func (c *cursor) present() *token { return &c.tokens[0] }

// advance consumes the current token and returns it.
func (c *cursor) advance() *token {
	t := &c.tokens[0]
	if t.kind != endToken {
		c.tokens = c.tokens[1:]
	}
	return t
}

// skip consumes an operator or a word, if it is next.
func (c *cursor) skip(text string) bool {
	ok := c.present().is(text)
	if ok {
		c.advance()
	}
	return ok
}

// expect consumes an operator or a word, which must be next.
func (c *cursor) expect(text string) {
	if !c.skip(text) {
		c.unexpected(fmt.Sprintf("%q", text))
	}
}

// expectName consumes a name, which must be next.
func (c *cursor) expectName(what string) *token {
	if c.present().kind != nameToken {
		c.unexpected(what)
	}
	return c.advance()
}

// tagEnd fails unless the tag ends here.
func (c *cursor) tagEnd() {
	if c.present().kind != endToken {
		c.unexpected("the end of the tag")
	}
}

// unexpected fails, because what should come here is not the current token.
func (c *cursor) unexpected(what string) {
	c.failf(c.present().line, "expected %s, found %q", what, c.present().text)
}

// failf records an error and ends the tag.
func (c *cursor) failf(line int, format string, args ...any) {
	c.fail(&fault{line: line, err: fmt.Errorf(format, args...)})
	c.tokens = []token{{kind: endToken, line: line}}
}
