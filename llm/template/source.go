package template

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
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

// templateSource is a template on its way to gonja. gonja's lexer and parser know less than Jinja's and misread some of
// what they do not know, so each token is checked and written again, with spaces between, in a way that gonja reads
// right. What it has no way for is written as something near, and what really stands there is kept by position: see words.
type templateSource struct {
	text string // with \n for newlines
	pos  int    // in text
	tidy []byte // what gonja gets. All positions below are in it

	within map[int]int    // where the bracket around a token opens; no entry: there is none
	words  map[int]string // what really stands where an operator is
	lines  []linePlace    // in order
	blocks []string       // open ones

	counted, countedLine int // how far in text lines are counted, and the line there
}

// linePlace says that a line of the template begins at or before a position.
type linePlace struct{ pos, line int }

// readSource writes a template for gonja, or refuses what gonja would descend into too deep and what is no Jinja.
func readSource(source []byte) (*templateSource, error) {
	switch {
	case len(source) > maxTemplateBytes:
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(source), maxTemplateBytes)
	case !utf8.Valid(source):
		return nil, fmt.Errorf("no UTF-8 at byte %d", jsonbytes.InvalidUTF8(source))
	}
	text := strings.ReplaceAll(string(source), "\r\n", "\n")
	text = strings.TrimSuffix(strings.ReplaceAll(text, "\r", "\n"), "\n")
	s := &templateSource{text: text, within: map[int]int{}, words: map[int]string{}, countedLine: 1}
	for s.pos < len(text) {
		end := s.nextTag()
		s.copyTo(end)
		if end == len(text) {
			break
		}
		if err := s.tag(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// line returns the line in the template of a position in tidy, counted from 1.
func (s *templateSource) line(pos int) int {
	after := sort.Search(len(s.lines), func(i int) bool { return s.lines[i].pos > pos })
	return s.lines[max(0, after-1)].line
}

func (s *templateSource) errorf(pos int, format string, args ...any) error {
	return &templateFault{line: 1 + strings.Count(s.text[:pos], "\n"), msg: fmt.Sprintf(format, args...)}
}

// copyTo writes the text up to end as it is.
func (s *templateSource) copyTo(end int) {
	s.tidy = append(s.tidy, s.text[s.pos:end]...)
	s.pos = end
}

// here notes the line of pos for what is written next.
func (s *templateSource) here() {
	s.countedLine += strings.Count(s.text[s.counted:s.pos], "\n")
	s.counted = s.pos
	if n := len(s.lines); n == 0 || s.lines[n-1].line < s.countedLine {
		s.lines = append(s.lines, linePlace{len(s.tidy), s.countedLine})
	}
}

// nextTag returns where the next {{, {% or {# is, or the end of the text.
func (s *templateSource) nextTag() int {
	for at := s.pos; at+1 < len(s.text); at++ {
		next := strings.IndexByte(s.text[at:], '{')
		if next < 0 {
			break
		}
		if at += next; at+1 < len(s.text) && strings.IndexByte("{%#", s.text[at+1]) >= 0 {
			return at
		}
	}
	return len(s.text)
}

// tag reads the tag at pos, and what is in it if it is raw.
func (s *templateSource) tag() error {
	start := s.pos
	s.here()
	switch s.text[s.pos+1] {
	case '#':
		end := strings.Index(s.text[s.pos+2:], "#}")
		if end < 0 {
			return s.errorf(start, `the comment is not closed by "#}"`)
		}
		s.copyTo(s.pos + 2 + end + 2)
		return nil
	case '{':
		s.openTag("-")
		return s.inside(start, "")
	}
	s.openTag("-+")
	rest := strings.TrimLeftFunc(s.text[s.pos:], isTemplateSpace)
	s.pos = len(s.text) - len(rest)
	name := firstWord(rest)
	if !slices.Contains(blockNames, name) {
		return s.errorf(start, "the block %q is not available; there are if, for, set, with, filter and raw", name)
	}
	s.copyTo(s.pos + len(name))
	s.tidy = append(s.tidy, ' ')
	tokens := len(s.tidy)
	if err := s.inside(start, name); err != nil {
		return err
	}
	switch name {
	case "set":
		if slices.Contains(strings.Fields(string(s.tidy[tokens:])), "=") {
			break
		}
		fallthrough
	case "if", "for", "with", "filter":
		if s.blocks = append(s.blocks, name); len(s.blocks) > maxBlocks {
			return s.errorf(start, "more than %d blocks within each other", maxBlocks)
		}
	case "elif", "else":
		n := len(s.blocks)
		if n == 0 || s.blocks[n-1] != "if" && (name == "elif" || s.blocks[n-1] != "for") {
			return s.errorf(start, "%q does not belong to an open block", name)
		}
		if name == "else" {
			s.blocks[n-1] = "else"
		}
	case "endset", "endif", "endfor", "endwith", "endfilter":
		s.blocks = s.blocks[:max(0, len(s.blocks)-1)]
	}
	if name != "raw" {
		return nil
	}
	end := endOfRaw.FindStringIndex(s.text[s.pos:])
	if end == nil {
		return s.errorf(start, `the raw block is not closed by "{%% endraw %%}"`)
	}
	s.copyTo(s.pos + end[0])
	return nil
}

// openTag reads the two characters at the start of a tag and one of controls, if it is there.
func (s *templateSource) openTag(controls string) {
	s.copyTo(s.pos + 2)
	if s.pos < len(s.text) && strings.IndexByte(controls, s.text[s.pos]) >= 0 {
		s.copyTo(s.pos + 1)
	}
	s.tidy = append(s.tidy, ' ')
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

// isTemplateSpace reports whether Python takes r for white space.
func isTemplateSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
