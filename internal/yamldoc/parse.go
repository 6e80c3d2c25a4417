// Package yamldoc reads a YAML file of a user: one document, as nodes that know their
// place, or as values.
//
// The parser is go.yaml.in/yaml/v4, which takes linear time and memory for hostile files,
// such as a megabyte of "[". Its own resolution of scalars is not used, because it
// follows YAML 1.1 (dates become times) or 1.2 and the files of users must keep the
// values that they have always had: see [Value].
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// DepthMax bounds the nesting of a document, also by way of aliases: a mapping of scalars
// has depth 1.
const DepthMax = 1000

// Error is what is wrong with a document, and where.
type Error struct {
	Line, Column int // from 1, or 0 if it is unknown
	Text         string
	Hint         string // what to change; empty means the text says it
}

// Error implements error: line and column, then what is wrong.
func (e *Error) Error() string {
	text := e.Text
	if e.Hint != "" {
		text += ": " + e.Hint
	}
	if e.Line == 0 {
		return text
	}
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, text)
}

// errorAt returns an error about a node.
func errorAt(n *yaml.Node, format string, args ...any) *Error {
	return &Error{Line: n.Line, Column: n.Column, Text: fmt.Sprintf(format, args...)}
}

// Parse returns the root of the only document in text, or nil where there is none. A byte
// order mark before it is ignored, and so are empty documents beside it. The mappings
// have no two equal keys, and all of their keys are scalars. The error is an [*Error].
func Parse(text []byte) (*yaml.Node, error) {
	text = jsonbytes.TrimBOM(text)
	if err := checkCharacters(text); err != nil {
		return nil, err
	}
	if err := checkSize(text); err != nil {
		return nil, err
	}
	text, restore := hideBreaks(withoutVersion(text))
	loader, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(DepthMax))))
	if err != nil {
		return nil, err
	}
	var root *yaml.Node
	for {
		var document yaml.Node
		switch err := loader.Load(&document); {
		case errors.Is(err, io.EOF):
			return root, nil
		case err != nil:
			return nil, place(err)
		}
		body := bodyOf(&document)
		switch {
		case body == nil:
			continue
		case root != nil:
			return nil, errorAt(body, "a second document: write all into one, without a line of ---")
		}
		if restore != nil {
			restoreBreaks(body, restore)
		}
		if err := checkKeys(body); err != nil {
			return nil, err
		}
		root = body
	}
}

// bodyOf returns what a document holds, or nil.
func bodyOf(document *yaml.Node) *yaml.Node {
	body := document
	if document.Kind == yaml.DocumentNode {
		if len(document.Content) == 0 {
			return nil
		}
		body = document.Content[0]
	}
	if body.Kind == 0 || isEmpty(body) {
		return nil
	}
	return body
}

// isEmpty reports whether nothing is written in the place of a value.
func isEmpty(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Value == "" && IsPlain(n) && n.Anchor == ""
}

// place returns an error of the parser with the place that it names.
func place(err error) *Error {
	e, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		return &Error{Text: "not YAML: " + err.Error()}
	}
	at := e.Mark
	if at.Line == 0 {
		at = e.ContextMark
	}
	return &Error{Line: at.Line, Column: at.Column, Text: e.Message, Hint: hints[e.Message]}
}

// hints are what to change where the parser does not say it.
var hints = map[string]string{
	"found invalid Unicode character escape code":                  `write the character itself, or "\U0001F600" for a pair such as "\ud83d\ude00"`,
	"mapping values are not allowed in this context":               "put a text with a colon and a space into quotes",
	"found character that cannot start any token":                  "put a text that begins with it into quotes; indent with spaces, not with tabs",
	"found a tab character that violates indentation":              "indent with spaces",
	"found a tab character where an indentation space is expected": "indent with spaces",
}

// checkKeys checks the keys of all mappings in n. Aliases are not followed: what they
// name is checked in its place.
func checkKeys(n *yaml.Node) error {
	if n.Kind == yaml.AliasNode {
		return nil
	}
	if n.Kind == yaml.MappingNode {
		first := make(map[string]*yaml.Node, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			name, err := Key(key)
			if err != nil {
				return err
			}
			if n.Style&yaml.FlowStyle != 0 && strings.Contains(name, ":") && IsPlain(key) && isEmpty(n.Content[i+1]) {
				return &Error{Line: key.Line, Column: key.Column, Text: "a key without a value", Hint: "write a space behind its colon, or put it into quotes"}
			}
			if other := first[name]; other != nil {
				return errorAt(key, "mapping key %q already defined at line %d, column %d", name, other.Line, other.Column)
			}
			first[name] = key
		}
	}
	for _, part := range n.Content {
		if err := checkKeys(part); err != nil {
			return err
		}
	}
	return nil
}

// IsPlain reports whether a scalar is written without quotes, block and tag.
func IsPlain(n *yaml.Node) bool {
	const marked = yaml.TaggedStyle | yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	return n.Style&marked == 0 && n.Tag != "!"
}

// IsTagged reports whether a node has a tag of its own.
func IsTagged(n *yaml.Node) bool { return n.Style&yaml.TaggedStyle != 0 || n.Tag == "!" }

// ErrorAt returns an error about the member of root that a path of keys leads to. It
// names the place of the last key that is written out, since a merge may have brought in
// the others.
func ErrorAt(root *yaml.Node, path []string, format string, args ...any) *Error {
	at, in := root, root
	for _, name := range path {
		key, value := find(in, name)
		if key == nil {
			break
		}
		at, in = key, value
	}
	return errorAt(at, format, args...)
}

// find returns the key of this name in a mapping, and what stands under it; nil means
// that it is not there.
func find(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if is, err := Key(n.Content[i]); err == nil && is == name {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}
