package yamldoc

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"go.yaml.in/yaml/v4"
)

// The parser follows YAML 1.1 in two points in which the files of users follow 1.2. Both
// are hidden from it.

// directive is a YAML directive for a version that the parser would refuse. It stands
// before the line of ---, behind comments, empty lines and other directives alone.
var directive = regexp.MustCompile(`\A(?:[ \t]*(?:#[^\r\n]*)?\r?\n|%[^\r\n]*\r?\n)*?(%)YAML[ \t]+1\.\d+`)

// withoutVersion makes a comment of a directive such as %YAML 1.2.
func withoutVersion(text []byte) []byte {
	at := directive.FindSubmatchIndex(text)
	if at == nil {
		return text
	}
	text = bytes.Clone(text)
	text[at[2]] = '#'
	return text
}

// oldBreaks are line breaks in YAML 1.1 and ordinary characters in 1.2: next line, line
// and paragraph separator. Text from the web has them.
var oldBreaks = [...]string{"\u0085", "\u2028", "\u2029"}

// hideBreaks puts characters of the private use area that text does not have in the place
// of oldBreaks. restore puts these back into a scalar; nil means that there is nothing to
// restore.
func hideBreaks(text []byte) (hidden []byte, restore *strings.Replacer) {
	if !bytes.ContainsAny(text, strings.Join(oldBreaks[:], "")) {
		return text, nil
	}
	var there, back []string
	unused := '\ue000'
	for _, old := range oldBreaks {
		for bytes.ContainsRune(text, unused) && unused < '\uf8ff' {
			unused++
		}
		there = append(there, old, string(unused))
		back = append(back, string(unused), old)
		unused++
	}
	return []byte(strings.NewReplacer(there...).Replace(string(text))), strings.NewReplacer(back...)
}

// restoreBreaks puts back what hideBreaks has replaced.
func restoreBreaks(n *yaml.Node, restore *strings.Replacer) {
	n.Value = restore.Replace(n.Value)
	if n.Kind == yaml.AliasNode {
		return
	}
	for _, part := range n.Content {
		restoreBreaks(part, restore)
	}
}

// checkCharacters returns an error for the first byte that is not UTF-8, and for the
// first control character, of which YAML allows tab, line feed and carriage return.
func checkCharacters(text []byte) error {
	if !utf8.Valid(text) {
		at := jsonbytes.InvalidUTF8(text)
		return errorIn(text, at, fmt.Sprintf("invalid UTF-8 at byte %d: save the file as UTF-8", at))
	}
	at := bytes.IndexFunc(text, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == '\ufffe' || r == '\uffff'
	})
	if at >= 0 {
		r, _ := utf8.DecodeRune(text[at:])
		return errorIn(text, at, fmt.Sprintf("control characters are not allowed: write %U as an escape, in double quotes", r))
	}
	return nil
}

// marksMax bounds the marks of a text. Each may be a node of the tree, which takes up to
// a kilobyte while it is read: a megabyte of "1," takes 600 MB, and at the bound 300.
const marksMax = 250_000

// checkSize returns an error for a text that has too many commas, brackets, pairs of
// quotes, anchors, aliases, tags and lines.
func checkSize(text []byte) error {
	marks, quotes := 0, 0
	for _, c := range text {
		switch c {
		case ',', '[', '{', '&', '*', '!', '\n':
			marks++
		case '"', '\'':
			quotes++
		}
	}
	if marks+quotes/2 > marksMax {
		return &Error{Text: fmt.Sprintf("more than %d values and lines, too many for YAML", marksMax), Hint: "write a large table as JSON"}
	}
	return nil
}

// errorIn returns an error about a byte of text.
func errorIn(text []byte, at int, what string) *Error {
	before := text[:at]
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	return &Error{Line: bytes.Count(before, []byte("\n")) + 1, Column: utf8.RuneCount(line) + 1, Text: what}
}
