package template

import (
	"encoding/json"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/llm-stage/stage/llm/template/internal/value"
)

// tokenKind is the kind of a token.
type tokenKind int

const (
	endToken      tokenKind = iota // the end of the tag
	nameToken                      // a name, or an operator that is a word
	stringToken                    // a string
	numberToken                    // a number
	operatorToken                  // an operator, a bracket or other punctuation
)

// token is a word of a tag.
type token struct {
	kind  tokenKind
	text  string // as written
	value any    // of a string or a number
	line  int
}

// is reports whether the token is the operator, or the word, text.
func (t *token) is(text string) bool {
	return (t.kind == operatorToken || t.kind == nameToken) && t.text == text
}

// The numbers and operators of Jinja. A float cannot follow a point: x.1.2 is x[1][2].
var (
	floatLiteral   = regexp.MustCompile(`^(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?[eE][+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)`)
	integerLiteral = regexp.MustCompile(`^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[\da-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*)`)
	operatorTokens = regexp.MustCompile(`^(?:\*\*|//|==|!=|<=|>=|[-+*/%~<>=,:|.()\[\]{}])`)
)

// tagReader reads the tokens of one tag.
type tagReader struct {
	*scanner
	tokens []token
	open   []byte // the closing brackets still missing
}

// tokens reads up to the end of a tag. It returns nil if there is no end or an error
// before it.
func (s *scanner) tokens(end string) []token {
	r := &tagReader{scanner: s}
	for s.err == nil && s.pos < len(s.text) {
		switch c, size := utf8.DecodeRuneInString(s.text[s.pos:]); {
		case value.IsSpace(c):
			s.pos += size
		case r.end(end):
			return r.tokens
		default:
			r.token(c)
		}
	}
	return nil
}

// end reads the end of the tag, if it is next.
func (r *tagReader) end(end string) bool {
	rest := r.text[r.pos:]
	control := ""
	if rest[0] == '-' || rest[0] == '+' && end == "%}" {
		control = rest[:1]
	}
	top := byte(0)
	if n := len(r.open); n > 0 {
		top = r.open[n-1]
	}
	if !strings.HasPrefix(rest[len(control):], end) || top == '}' {
		return false
	}
	if top != 0 {
		r.errorf("%q is missing before %q", top, end)
		return false
	}
	r.add(token{kind: endToken, text: end}, len(control)+len(end))
	r.trim = control == "-"
	return true
}

// add adds a token of size bytes.
func (r *tagReader) add(t token, size int) {
	t.line = r.line()
	r.tokens = append(r.tokens, t)
	r.pos += size
}

// token reads one token, which begins with c.
func (r *tagReader) token(c rune) {
	rest := r.text[r.pos:]
	switch {
	case c == '"' || c == '\'':
		r.str()
	case c >= '0' && c <= '9':
		r.number()
	case isNameRune(c):
		word := firstWord(rest)
		r.add(token{kind: nameToken, text: word}, len(word))
	default:
		r.operator(c, operatorTokens.FindString(rest))
	}
}

// operator reads the operator or bracket op. If there is none, c is unexpected.
func (r *tagReader) operator(c rune, op string) {
	n := len(r.open)
	switch op {
	case "":
		r.errorf("unexpected %q", c)
	case "(", "[", "{":
		if n == maxBrackets {
			r.errorf("more than %d nested brackets", maxBrackets)
		}
		r.open = append(r.open, ")]}"[strings.Index("([{", op)])
	case ")", "]", "}":
		if n == 0 || r.open[n-1] != op[0] {
			r.errorf("%q has no opening bracket", op[0])
			return
		}
		r.open = r.open[:n-1]
	}
	r.add(token{kind: operatorToken, text: op}, len(op))
}

// afterDot reports whether the last token is a point, after which a number is an index.
func (r *tagReader) afterDot() bool {
	n := len(r.tokens)
	return n > 0 && r.tokens[n-1].is(".")
}

func (r *tagReader) number() {
	rest := r.text[r.pos:]
	literal := floatLiteral.FindString(rest)
	if literal == "" || r.afterDot() {
		literal = integerLiteral.FindString(rest)
	}
	after := rest[len(literal):]
	if c, _ := utf8.DecodeRuneInString(after); isNameRune(c) || !r.afterDot() && strings.HasPrefix(after, ".") {
		r.errorf("%s%s is not a number", literal, after[:max(1, len(firstWord(after)))])
	}
	value, ok := numberOf(literal)
	if !ok {
		r.errorf("the number %.30s is too large", literal)
	}
	r.add(token{kind: numberToken, text: literal, value: value}, len(literal))
}

// numberOf returns the value of a literal, unless it is too large.
func numberOf(literal string) (any, bool) {
	if integerLiteral.FindString(literal) != literal {
		f, err := strconv.ParseFloat(strings.ReplaceAll(literal, "_", ""), 64)
		return f, err == nil
	}
	if len(literal) > value.MaxDigits {
		return nil, false
	}
	i, _ := new(big.Int).SetString(literal, 0)
	if i.IsInt64() {
		return i.Int64(), true
	}
	digits := i.String()
	return json.Number(digits), len(digits) <= value.MaxDigits
}

func (r *tagReader) str() {
	quote := r.text[r.pos]
	end := r.pos + 1
	for ; end < len(r.text) && r.text[end] != quote; end++ {
		if r.text[end] == '\\' {
			end++
		}
	}
	if end >= len(r.text) {
		r.errorf("the string is not closed by %q", quote)
		return
	}
	value, problem := unescape(r.text[r.pos+1 : end])
	if problem != "" {
		r.errorf("%s", problem)
	}
	end++
	r.add(token{kind: stringToken, text: r.text[r.pos:end], value: value}, end-r.pos)
}

// unescape resolves the escapes of a string, which are Python's, or returns the problem
// with it.
func unescape(s string) (value, problem string) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, `\`)
		b.WriteString(before)
		if !found {
			return b.String(), ""
		}
		escape := s[len(before):]
		// There is one, since a string does not end in a single backslash.
		c, size := utf8.DecodeRuneInString(after)
		s = after[size:]
		switch {
		case c == '\n':
		case c == '\'' || c == '"':
			b.WriteRune(c)
		case c >= '0' && c <= '7':
			digits := after[:min(3, len(after))]
			digits = digits[:len(digits)-len(strings.TrimLeft(digits, "01234567"))]
			n, _ := strconv.ParseUint(digits, 8, 32)
			b.WriteRune(rune(n)) //nolint:gosec // three digits
			s = after[len(digits):]
		// These are as in Go, but \x80 and above are characters, not bytes.
		case strings.ContainsRune(`\abfnrtvxuU`, c):
			r, _, rest, err := strconv.UnquoteChar(escape, 0)
			if err != nil {
				return "", `the string has an invalid escape`
			}
			b.WriteRune(r)
			s = rest
		case c == 'N', c >= utf8.RuneSelf:
			return "", `the escape \` + string(c) + ` is not available; write the character itself`
		default:
			b.WriteString(`\` + string(c))
		}
	}
}
