package template

import (
	"bytes"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// tokenKind is what a token is, as far as the meaning of the next one depends on it.
type tokenKind int

const (
	operatorToken tokenKind = iota // or an opening bracket, or none yet: an operand is due
	operandToken                   // the end of one: a name, a number, a closing bracket
	stringToken
	dotToken
	commaToken
	signToken // of one operand
	notToken  // of one operand
	tokenIs   // "is" and "is not"
	testToken // the name of a test, which ends an operand too
)

// tagReader reads the tokens of one tag.
type tagReader struct {
	*templateSource
	start    int       // of the tag, in text
	last     tokenKind // of what was read before
	lastPos  int       // in tidy
	open     []bracket
	tested   int      // brackets open at the last test, and 1; 0: none that an operator could follow
	notIn    bool     // a "not" was read that only "in" may follow
	block    string   // its name
	forParts []string // the words that divide "for", as long as they are due
}

type bracket struct {
	closing byte
	call    bool // what is in it are arguments
	pos     int  // in tidy
}

// The numbers of Jinja. A float cannot follow a point: x.1.2 is x[1][2].
var (
	floatLiteral   = regexp.MustCompile(`^(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?[eE][+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)`)
	integerLiteral = regexp.MustCompile(`^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[\da-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*)`)
	operatorTokens = regexp.MustCompile(`^(?:\*\*|//|==|!=|<=|>=|[-+*/%~<>=,:|.()\[\]{}])`)
)

// inside reads what stands in a tag that began at start, and its end. block is its name, or empty for an output.
func (s *templateSource) inside(start int, block string) error {
	r := &tagReader{templateSource: s, start: start, block: block}
	end := "}}"
	if block != "" {
		end = "%}"
	}
	if block == "for" {
		r.forParts = []string{"in", "if"}
	}
	for s.pos < len(s.text) {
		c, size := utf8.DecodeRuneInString(s.text[s.pos:])
		if isTemplateSpace(c) {
			s.pos += size
			continue
		}
		s.here()
		ended, err := r.end(end)
		if ended || err != nil {
			return err
		}
		if err := r.token(c); err != nil {
			return err
		}
	}
	return s.errorf(start, "the tag is not closed by %q", end)
}

// end reads the end of the tag, if it is there.
func (r *tagReader) end(end string) (bool, error) {
	rest := r.text[r.pos:]
	control := ""
	if rest[0] == '-' || rest[0] == '+' && r.block != "" && r.block != "raw" {
		control = rest[:1]
	}
	top := byte(0)
	if n := len(r.open); n > 0 {
		top = r.open[n-1].closing
	}
	if !strings.HasPrefix(rest[len(control):], end) || top == '}' {
		return false, nil
	}
	switch {
	case top != 0:
		return false, r.errorf(r.pos, "%q is missing before %q", top, end)
	case r.notIn:
		return false, r.errorf(r.pos, `"in" is missing behind "not"`)
	}
	r.copyTo(r.pos + len(control) + len(end))
	return true, nil
}

// token reads one token, which begins with c.
func (r *tagReader) token(c rune) error {
	rest := r.text[r.pos:]
	if r.notIn && firstWord(rest) != "in" {
		return r.errorf(r.pos, `"in" is missing behind "not"`)
	}
	if r.last == tokenIs && !isNameRune(c) {
		return r.errorf(r.pos, `the name of a test is missing behind "is"`)
	}
	switch {
	case c == '"' || c == '\'':
		return r.str()
	case c >= '0' && c <= '9':
		return r.number()
	case isNameRune(c):
		word := firstWord(rest)
		err := r.misplaced(word)
		if err == nil {
			err = r.word(word)
		}
		r.pos += len(word)
		return err
	}
	op := operatorTokens.FindString(rest)
	if op == "" {
		return r.errorf(r.pos, "unexpected %q", c)
	}
	if err := r.behindTest(op); err != nil {
		return err
	}
	defer func() { r.pos += len(op) }()
	switch op {
	case "(", "[", "{":
		if len(r.open) == maxBrackets {
			return r.errorf(r.pos, "more than %d brackets within each other", maxBrackets)
		}
		call := op == "(" && r.operand()
		closing := ")]}"[strings.Index("([{", op)]
		r.write(op, operatorToken)
		r.open = append(r.open, bracket{closing, call, r.lastPos})
	case ")", "]", "}":
		return r.closing(op[0])
	case "+", "-":
		return r.sign(op)
	case ".":
		r.write(op, dotToken)
	case ",":
		r.write(op, commaToken)
	default:
		r.write(op, operatorToken)
	}
	return nil
}

// behindTest fails where an operator follows a test: gonja's parser ends an expression there.
func (r *tagReader) behindTest(operator string) error {
	const others, ends = "=.|()[]{}", ",:" // that are no operators on two operands, and those that end an expression
	switch {
	case r.tested != len(r.open)+1:
	case strings.Contains(ends, operator), slices.Contains([]string{"and", "or", "if", "else"}, operator):
		r.tested = 0
	case r.operand() && !strings.Contains(others, operator):
		return r.errorf(r.pos, "put the test before %q in brackets", operator)
	}
	return nil
}

// operand reports whether an operand ends here, so that no other can follow.
func (r *tagReader) operand() bool {
	return r.last == operandToken || r.last == stringToken || r.last == testToken
}

// write writes a token.
func (r *tagReader) write(text string, kind tokenKind) {
	r.last, r.lastPos = kind, len(r.tidy)
	if n := len(r.open); n > 0 {
		r.within[r.lastPos] = r.open[n-1].pos
	}
	r.tidy = append(append(r.tidy, text...), ' ')
}

// instead writes something that gonja can read in the place of a word.
func (r *tagReader) instead(text, word string, kind tokenKind) {
	r.write(text, kind)
	r.words[r.lastPos] = word
}

// sign reads + or -. Several signs of one operand are written as one.
func (r *tagReader) sign(sign string) error {
	switch {
	case r.operand():
		r.write(sign, operatorToken)
	case r.last == signToken:
		return r.again(sign)
	default:
		r.instead(sign, sign, signToken)
	}
	return nil
}

// again notes that an operator of one operand is repeated.
func (r *tagReader) again(word string) error {
	if len(r.words[r.lastPos]) > maxExpressionDepth {
		return r.errorf(r.pos, "too many %q in a row", strings.TrimSpace(word))
	}
	r.words[r.lastPos] += word
	return nil
}

func (r *tagReader) closing(c byte) error {
	n := len(r.open)
	if n == 0 || r.open[n-1].closing != c {
		return r.errorf(r.pos, "%q has no opening bracket", c)
	}
	b := r.open[n-1]
	if r.last == commaToken && (b.call || c == '}') {
		r.tidy = bytes.TrimRight(r.tidy[:r.lastPos], " ") // gonja takes none at the end of these
		if len(r.tidy) == b.pos+1 {
			return r.errorf(r.pos, `unexpected ","`)
		}
		r.tidy = append(r.tidy, ' ')
	}
	r.open = r.open[:n-1]
	if r.tested > n {
		r.tested = 0
	}
	r.write(string(c), operandToken)
	return nil
}

// misplaced fails where Jinja would not read a word as gonja does.
func (r *tagReader) misplaced(word string) error {
	switch {
	case r.last == dotToken:
	case word == "nil":
		return r.errorf(r.pos, "nil is not available; write none")
	case (word == "if" || word == "else") && len(r.open) == 0 && (r.block == "if" || r.block == "elif"):
		return r.errorf(r.pos, `put brackets around "a if b else c"`)
	case word == "if" && r.last == testToken: // Jinja takes it for the test's argument
		return r.errorf(r.pos, `put brackets around what is before "if"`)
	case slices.Contains([]string{"and", "or", "if", "else", "in", "not", "is"}, word) && r.last != tokenIs:
		return r.behindTest(word)
	}
	return nil
}

// word reads a name or an operator that is a word. gonja has no "if" and "else" within brackets and takes nothing but one
// operand behind "in"; "or" and "==" are parsed as these should be.
func (r *tagReader) word(word string) error {
	keyword := slices.Contains([]string{"and", "or", "not", "in", "is"}, word)
	switch {
	case r.last == dotToken && keyword: // x.not is x["not"]
		r.tidy = r.tidy[:r.lastPos]
		r.write("[", operatorToken)
		r.write(strconv.Quote(word), stringToken)
		r.write("]", operandToken)
	case r.last == dotToken:
		r.write(word, operandToken)
	case r.last == tokenIs && word != "not":
		r.tested = len(r.open) + 1
		r.write(word, testToken)
	case len(r.forParts) > 0 && len(r.open) == 0 && slices.Contains(r.forParts, word):
		r.forParts = r.forParts[slices.Index(r.forParts, word)+1:]
		r.write(word, operatorToken)
	case word == "if", word == "else":
		r.instead("or", word, operatorToken)
	case word == "in" && r.notIn:
		r.notIn = false
		r.instead("==", "not in", operatorToken)
	case word == "in":
		r.instead("==", "in", operatorToken)
	case word == "is":
		r.write(word, tokenIs)
	case word == "not" && r.last == tokenIs:
		r.instead(word, "is not", tokenIs)
	case word == "not" && r.last == notToken:
		return r.again(" not")
	case word == "not" && r.operand():
		r.notIn = true
	case word == "not":
		r.instead(word, word, notToken)
	case keyword:
		r.write(word, operatorToken)
	default:
		r.write(word, operandToken)
	}
	return nil
}

// number reads a number and writes it without what gonja does not know.
func (r *tagReader) number() error {
	rest := r.text[r.pos:]
	literal := floatLiteral.FindString(rest)
	if literal == "" || r.last == dotToken {
		literal = integerLiteral.FindString(rest)
	}
	after := rest[len(literal):]
	if c, _ := utf8.DecodeRuneInString(after); isNameRune(c) || r.last != dotToken && strings.HasPrefix(after, ".") {
		return r.errorf(r.pos, "%s%s is no number", literal, after[:max(1, len(firstWord(after)))])
	}
	if integerLiteral.FindString(literal) == literal {
		if err := r.integer(literal); err != nil {
			return err
		}
	} else {
		plain := strings.ReplaceAll(literal, "_", "")
		if _, err := strconv.ParseFloat(plain, 64); err != nil {
			return r.errorf(r.pos, "the number %.30s is too large", literal)
		}
		r.write(plain, operandToken)
	}
	r.pos += len(literal)
	return nil
}

// integer writes an integer, or 0 where it is too large for gonja: then its digits are kept.
func (r *tagReader) integer(literal string) error {
	if len(literal) > maxDigits {
		return r.errorf(r.pos, "the number %.30s is too large", literal)
	}
	i, _ := new(big.Int).SetString(literal, 0)
	if digits := i.String(); len(digits) > maxDigits {
		return r.errorf(r.pos, "the number %.30s is too large", literal)
	} else if i.IsInt64() {
		r.write(digits, operandToken)
	} else {
		r.instead("0", digits, operandToken)
	}
	return nil
}

// str reads a string. Adjacent strings are one.
func (r *tagReader) str() error {
	quote, start := r.text[r.pos], r.pos
	end := start + 1
	for ; end < len(r.text) && r.text[end] != quote; end++ {
		if r.text[end] == '\\' {
			end++
		}
	}
	if end >= len(r.text) {
		return r.errorf(start, "the string is not closed by %q", quote)
	}
	value, problem := unescape(r.text[start+1 : end])
	if problem != "" {
		return r.errorf(start, "%s", problem)
	}
	if r.last == stringToken {
		r.tidy = append(append(bytes.TrimSuffix(r.tidy, []byte(`" `)), goEscapes.Replace(value)...), `" `...)
	} else {
		r.write(`"`+goEscapes.Replace(value)+`"`, stringToken)
	}
	r.pos = end + 1
	return nil
}

// goEscapes writes what a string of gonja cannot hold as it is.
var goEscapes = strings.NewReplacer(`\`, `\x5c`, `"`, `\x22`, `'`, `\x27`, "\n", `\x0a`, "\r", `\x0d`)

// escapes are those of one character.
var escapes = map[byte]string{
	'\n': "", '\\': `\`, '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape returns what a string of Jinja, which has Python's escapes, stands for, or what is wrong with it.
func unescape(s string) (value, problem string) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, `\`)
		b.WriteString(before)
		if !found {
			return b.String(), ""
		}
		c := after[0] // there is one: a string does not end in a backslash that stands alone
		digits, base := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c], 16
		switch {
		case digits > 0:
			after = after[1:]
		case c >= '0' && c <= '7':
			octal := after[:min(3, len(after))]
			digits, base = len(octal)-len(strings.TrimLeft(octal, "01234567")), 8
		case c == 'N', c >= utf8.RuneSelf:
			r, _ := utf8.DecodeRuneInString(after)
			return "", `the escape \` + string(r) + ` is not available; write the character`
		default:
			if plain, ok := escapes[c]; ok {
				b.WriteString(plain)
			} else {
				b.WriteString(`\` + string(c))
			}
			s = after[1:]
			continue
		}
		n, err := strconv.ParseUint(after[:min(digits, len(after))], base, 32)
		if err != nil || len(after) < digits || !utf8.ValidRune(rune(n)) { //nolint:gosec // 32 bits: too large is not valid
			return "", `a string has an escape that is no character`
		}
		b.WriteRune(rune(n)) //nolint:gosec // it is valid
		s = after[digits:]
	}
}
