package llm

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds on a template's source. gonja's parser descends once for each bracket and block.
const (
	maxTemplateBytes = 256 << 10
	maxBrackets      = 100
	maxBlocks        = 50
)

// blockNames are the blocks that a template may have. raw and endraw are gonja's own.
var blockNames = []string{
	"if", "elif", "else", "endif", "for", "endfor", "set", "endset",
	"with", "endwith", "filter", "endfilter", "raw", "endraw",
}

var endOfRaw = regexp.MustCompile(`{%[-+]?\s*endraw`)

// templateSource is a template on its way to gonja, whose lexer has gaps that this check
// closes: it skips characters it does not know, takes a newline within a tag for a part
// of the word behind it, and does not see the end of a string that ends in a backslash.
type templateSource struct {
	text string // with \n for newlines
	tidy []byte // text with spaces for the newlines within tags; all offsets are equal
	pos  int

	blocks   int         // open ones
	opened   map[int]int // where the bracket opens that closes there
	newlines []int       // where they are in text
}

// checkSource refuses what gonja would misread or descend into too deep.
func checkSource(source []byte) (*templateSource, error) {
	switch {
	case len(source) > maxTemplateBytes:
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(source), maxTemplateBytes)
	case !utf8.Valid(source):
		return nil, fmt.Errorf("no UTF-8 at byte %d", invalidUTF8(source))
	}
	text := strings.ReplaceAll(string(source), "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	s := &templateSource{text: text, tidy: []byte(text), opened: map[int]int{}}
	for i := range len(text) {
		if text[i] == '\n' {
			s.newlines = append(s.newlines, i)
		}
	}
	for {
		tag := s.nextTag()
		if tag < 0 {
			return s, nil
		}
		if err := s.tag(); err != nil {
			return nil, err
		}
	}
}

// line returns the line of an offset, counted from 1.
func (s *templateSource) line(pos int) int {
	before, _ := slices.BinarySearch(s.newlines, pos)
	return before + 1
}

func (s *templateSource) errorf(pos int, format string, args ...any) error {
	return &templateFault{line: s.line(pos), msg: fmt.Sprintf(format, args...)}
}

// nextTag goes to the next {{, {% or {# and returns where it is, or -1.
func (s *templateSource) nextTag() int {
	for ; s.pos+1 < len(s.text); s.pos++ {
		next := strings.IndexByte(s.text[s.pos:], '{')
		if next < 0 {
			break
		}
		if s.pos += next; s.pos+1 < len(s.text) && strings.IndexByte("{%#", s.text[s.pos+1]) >= 0 {
			return s.pos
		}
	}
	return -1
}

// tag checks the tag at pos and goes behind it.
func (s *templateSource) tag() error {
	start := s.pos
	kind := s.text[s.pos+1]
	s.pos += 2
	switch kind {
	case '#':
		end := strings.Index(s.text[s.pos:], "#}")
		if end < 0 {
			return s.errorf(start, `the comment is not closed by "#}"`)
		}
		s.pos += end + 2
		return nil
	case '{':
		return s.inside(start, "}}")
	}
	name := s.blockName()
	if !slices.Contains(blockNames, name) {
		return s.errorf(start, "the block %q is not available; there are if, for, set, with, filter and raw", name)
	}
	if err := s.inside(start, "%}"); err != nil {
		return err
	}
	switch name {
	case "set":
		if strings.Contains(s.text[start:s.pos], "=") {
			break
		}
		fallthrough
	case "if", "for", "with", "filter":
		if s.blocks++; s.blocks > maxBlocks {
			return s.errorf(start, "more than %d blocks within each other", maxBlocks)
		}
	case "endset", "endif", "endfor", "endwith", "endfilter":
		s.blocks--
	}
	if name != "raw" {
		return nil
	}
	end := endOfRaw.FindStringIndex(s.text[s.pos:])
	if end == nil {
		return s.errorf(start, `the raw block is not closed by "{%% endraw %%}"`)
	}
	s.pos += end[0]
	return nil
}

// blockName returns the word at the start of a block, without going on.
func (s *templateSource) blockName() string {
	rest := strings.TrimLeft(s.text[s.pos:], "+-")
	return firstWord(strings.TrimLeftFunc(rest, unicode.IsSpace))
}

// firstWord returns the letters, digits and underscores at the start of text.
func firstWord(text string) string {
	end := strings.IndexFunc(text, func(r rune) bool { return !isNameRune(r) })
	if end < 0 {
		end = len(text)
	}
	return text[:end]
}

func isNameRune(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// inside checks what stands in a tag that began at start and goes behind its end.
func (s *templateSource) inside(start int, end string) error {
	var open []byte // closing brackets that are due
	var places []int
	last := -1 // where the last character that is no space stands
	for s.pos < len(s.text) {
		if strings.HasPrefix(s.text[s.pos:], end) && (len(open) == 0 || open[len(open)-1] != '}') {
			if len(open) > 0 {
				return s.errorf(s.pos, "%q is missing before %q", open[len(open)-1], end)
			}
			s.pos += len(end)
			return nil
		}
		r, size := utf8.DecodeRuneInString(s.text[s.pos:])
		switch at := strings.IndexRune("([{", r); {
		case at >= 0:
			places = append(places, s.pos)
			if open = append(open, ")]}"[at]); len(open) > maxBrackets {
				return s.errorf(s.pos, "more than %d brackets within each other", maxBrackets)
			}
		case r == ')' || r == ']' || r == '}':
			if len(open) == 0 || open[len(open)-1] != byte(r) {
				return s.errorf(s.pos, "%q has no opening bracket", r)
			}
			open = open[:len(open)-1]
			s.opened[s.pos] = places[len(open)]
			places = places[:len(open)]
			if r == '}' && s.text[last] == ',' {
				s.tidy[last] = ' ' // gonja takes none at the end of a mapping
			}
		case r == '"' || r == '\'':
			if err := s.str(); err != nil {
				return err
			}
			last = s.pos - 1
			continue
		case r == '\n':
			s.tidy[s.pos] = ' '
		case isNameRune(r):
			word := firstWord(s.text[s.pos:])
			if word == "if" && len(open) > 0 {
				return s.errorf(s.pos, `an "if" within brackets is not available; name its result first: {%% set x = a if b else c %%}`)
			}
			size = len(word)
		case r == '!' && strings.HasPrefix(s.text[s.pos:], "!="):
		case r == ' ', r == '\t', strings.ContainsRune("+-*/%~<>=.,:|", r):
		default:
			return s.errorf(s.pos, "unexpected %q", r)
		}
		if r != ' ' && r != '\t' && r != '\n' {
			last = s.pos
		}
		s.pos += size
	}
	return s.errorf(start, "the tag is not closed by %q", end)
}

// str goes behind the string at pos.
func (s *templateSource) str() error {
	start, quote := s.pos, s.text[s.pos]
	for s.pos++; s.pos < len(s.text); s.pos++ {
		switch s.text[s.pos] {
		case '\\':
			s.pos++
			if s.pos+1 < len(s.text) && s.text[s.pos] == '\\' && s.text[s.pos+1] == quote {
				return s.errorf(start, "a string cannot end in a backslash")
			}
		case quote:
			s.pos++
			return nil
		}
	}
	return s.errorf(start, "the string is not closed by %q", quote)
}

// bracketed reports whether what ends before pos, spaces aside, is in round brackets as a
// whole, and not just its last operand: gonja forgets brackets, so a + b and (a + b) are
// the same in its tree. Only brackets count that no operator, no "in" and no name of a
// function stands before.
func (s *templateSource) bracketed(pos int) bool {
	last := len(bytes.TrimRight(s.tidy[:pos], " \t")) - 1
	if last < 0 || s.tidy[last] != ')' {
		return false
	}
	before := bytes.TrimRight(s.tidy[:s.opened[last]], " \t")
	word := len(before) - len(bytes.TrimRightFunc(before, isNameRune))
	switch string(before[len(before)-word:]) {
	case "and", "or", "not", "if", "elif", "else":
		return true
	case "":
		assigns := bytes.HasSuffix(before, []byte("=")) && !bytes.ContainsAny(before[len(before)-2:len(before)-1], "=!<>")
		return assigns || !bytes.ContainsAny(before[len(before)-1:], "+-*/%~<>=)]") || bytes.HasSuffix(before, []byte("{%-")) || bytes.HasSuffix(before, []byte("{{-"))
	}
	return false
}
