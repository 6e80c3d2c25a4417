package template

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/template/internal/value"
)

// Bounds on a template's source. The parser recurses for each bracket and each block.
const (
	maxSourceBytes = 256 << 10
	maxBrackets    = 100
	maxBlocks      = 50
)

// partKind is the kind of a part of a template.
type partKind int

const (
	endPart    partKind = iota // of the template
	textPart                   // written as it is
	outputPart                 // {{ … }}
	blockPart                  // {% … %}
)

// part is a piece of a template: text, or the tokens of a tag.
type part struct {
	kind   partKind
	text   string
	tokens []token // the last one is an endToken
	line   int     // where it begins
}

// scanner splits a template into parts. "Hi {{ row.name -}}  !" has three: the text "Hi ",
// an outputPart with the tokens row . name, and the text "!", from which the "-" of the tag
// has removed the spaces.
type scanner struct {
	text string // the template, with \n for newlines
	pos  int
	trim bool  // the last tag ended with "-": the white space after it is removed
	err  error // the first error, after which nothing more is read

	counted, countedLine int  // the position up to which lines are counted, and its line
	lineless             bool // all of the text counts as one line
}

// newScanner checks the bounds of a source and removes one newline at its end, as Jinja
// does.
func newScanner(source []byte) (*scanner, error) {
	switch {
	case len(source) > maxSourceBytes:
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(source), maxSourceBytes)
	case !utf8.Valid(source):
		return nil, fmt.Errorf("invalid UTF-8 at byte %d", jsonbytes.InvalidUTF8(source))
	}
	text := strings.ReplaceAll(string(source), "\r\n", "\n")
	text = strings.TrimSuffix(strings.ReplaceAll(text, "\r", "\n"), "\n")
	return &scanner{text: text, countedLine: 1}, nil
}

// line returns the line of pos, counted from 1.
func (s *scanner) line() int {
	if s.lineless {
		return s.countedLine
	}
	s.countedLine += strings.Count(s.text[s.counted:s.pos], "\n")
	s.counted = s.pos
	return s.countedLine
}

// fail records f, unless there was an error before.
func (s *scanner) fail(f *fault) {
	if s.err == nil {
		s.err = f
	}
}

// errorf records an error at pos.
func (s *scanner) errorf(format string, args ...any) {
	s.fail(&fault{line: s.line(), err: fmt.Errorf(format, args...)})
}

// next returns the next part that is not empty. After an error it returns an endPart.
func (s *scanner) next() part {
	for s.err == nil {
		line := s.line()
		if text := s.plain(); text != "" {
			return part{kind: textPart, text: text, line: line}
		}
		if s.pos == len(s.text) {
			break
		}
		if p := s.tag(); p.text != "" || p.tokens != nil {
			return p
		}
	}
	return part{kind: endPart}
}

// plain reads the text before the next tag, without the white space that the tags around
// it remove.
func (s *scanner) plain() string {
	end := s.nextTag()
	text := s.text[s.pos:end]
	if s.trim {
		text = strings.TrimLeftFunc(text, value.IsSpace)
	}
	if strings.HasPrefix(s.text[min(end+2, len(s.text)):], "-") {
		text = strings.TrimRightFunc(text, value.IsSpace)
	}
	s.pos, s.trim = end, false
	return text
}

// nextTag returns the position of the next {{, {% or {#, or the end of the text.
func (s *scanner) nextTag() int {
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

// space matches Python's white space, as [value.IsSpace] does.
const space = `[\s\v\x1c-\x1f\x{85}\p{Z}]*`

var (
	rawTag    = regexp.MustCompile(`^\{%[-+]?` + space + `raw` + space + `(-?)%\}`)
	endrawTag = regexp.MustCompile(`\{%([-+]?)` + space + `endraw` + space + `([-+]?)%\}`)
)

// tag reads the tag at pos, and for raw the text up to its end. A comment is an empty part.
func (s *scanner) tag() part {
	if raw := rawTag.FindStringSubmatch(s.text[s.pos:]); raw != nil {
		return s.raw(raw[0], raw[1] == "-")
	}
	kind, end := outputPart, "}}"
	switch s.text[s.pos+1] {
	case '#':
		return s.comment()
	case '%':
		kind, end = blockPart, "%}"
	}
	p := part{kind: kind, line: s.line()}
	s.pos += len(end)
	if rest := s.text[s.pos:]; rest != "" && strings.IndexByte("-+", rest[0]) >= 0 {
		s.pos++
	}
	if p.tokens = s.tokens(end); p.tokens == nil {
		s.fail(&fault{line: p.line, err: fmt.Errorf("the tag is not closed by %q", end)})
	}
	return p
}

// comment skips {# … #}. It returns an empty part, which [scanner.next] passes over.
func (s *scanner) comment() part {
	body, _, closed := strings.Cut(s.text[s.pos+2:], "#}")
	if !closed {
		s.errorf(`the comment is not closed by "#}"`)
		return part{}
	}
	s.pos += 2 + len(body) + 2
	s.trim = len(body) > 1 && strings.HasSuffix(body, "-")
	return part{}
}

// raw reads the text after a raw tag, and the tag that closes it.
func (s *scanner) raw(tag string, trim bool) part {
	rest := s.text[s.pos+len(tag):]
	end := endrawTag.FindStringSubmatchIndex(rest)
	if end == nil {
		s.errorf(`the raw block is not closed by "{%% endraw %%}"`)
		return part{}
	}
	p := part{kind: textPart, text: rest[:end[0]], line: s.line()}
	if trim {
		p.text = strings.TrimLeftFunc(p.text, value.IsSpace)
	}
	if rest[end[2]:end[3]] == "-" {
		p.text = strings.TrimRightFunc(p.text, value.IsSpace)
	}
	s.pos += len(tag) + end[1]
	s.trim = rest[end[4]:end[5]] == "-"
	return p
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
