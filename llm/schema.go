package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Schema is a compiled JSON Schema for replies. It is safe for concurrent use.
type Schema struct {
	source   json.RawMessage // compact
	compiled *jsonschema.Schema
	strict   bool // within what OpenAI's strict mode takes
	closed   bool // within what Anthropic's structured outputs take
}

// ParseSchema compiles a JSON Schema (draft 2020-12 unless "$schema" says
// otherwise). References reach no further than the schema itself: nothing is
// read from files or the network. Errors start with name, which says where the
// source came from.
func ParseSchema(source []byte, name string) (*Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(source))
	if err != nil {
		return nil, fmt.Errorf("%s: not JSON: %w", name, err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(jsonschema.SchemeURLLoader{}) // no scheme
	compiler.AssertFormat()
	const address = "schema:reply"
	if err := compiler.AddResource(address, doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	compiled, err := compiler.Compile(address)
	if err != nil {
		return nil, fmt.Errorf("%s: not a JSON Schema: %w", name, err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, source); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	strict, closed := subsets(doc)
	return &Schema{source: compact.Bytes(), compiled: compiled, strict: strict, closed: closed}, nil
}

// Source returns the schema as compact JSON. The caller must not change it.
func (s *Schema) Source() json.RawMessage { return s.source }

// Validate checks that a reply is one JSON value that satisfies the schema and
// returns the value as compact JSON. A Markdown fence around it is removed. The
// error is an [*Error] of class Transient and reason
// [ReasonSchemaValidationFailed]: the model may do better when asked again with
// [Schema.Complaint].
func (s *Schema) Validate(text string) (json.RawMessage, error) {
	text = unfence(text)
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, invalidReply(fmt.Errorf("reply is not one JSON value: %w", err))
	}
	if err := s.compiled.Validate(value); err != nil {
		// The first line names the schema's address, which nobody knows.
		_, findings, _ := strings.Cut(err.Error(), "\n")
		return nil, invalidReply(errors.New("reply does not satisfy the schema: " + preview(oneLine(findings))))
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(text)); err != nil {
		return nil, invalidReply(err)
	}
	return compact.Bytes(), nil
}

// Complaint returns what to tell the model after [Schema.Validate] returned
// err, for [Request.Complaint].
func (s *Schema) Complaint(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		err = e.Err
	}
	return "Your " + err.Error() + ". Answer again with one JSON value that satisfies the schema, and nothing else."
}

func invalidReply(err error) error {
	return &Error{Class: Transient, Reason: ReasonSchemaValidationFailed, Alike: string(ReasonSchemaValidationFailed), Err: err}
}

// instruction asks for a reply that satisfies the schema in words, where the
// provider cannot be told otherwise.
func (s *Schema) instruction() string {
	return "Answer with one JSON value, and nothing else, that satisfies this JSON Schema:\n" + string(s.source)
}

// unfence removes white space and a Markdown code fence around a reply.
func unfence(text string) string {
	text = strings.TrimSpace(text)
	inner, ok := strings.CutPrefix(text, "```")
	if !ok {
		return text
	}
	if inner, ok = strings.CutSuffix(inner, "```"); !ok {
		return text
	}
	_, inner, ok = strings.Cut(inner, "\n") // the rest of the first line names the language
	if !ok {
		return text
	}
	return strings.TrimSpace(inner)
}

// oneLine joins the validator's indented list of findings.
func oneLine(findings string) string {
	lines := strings.Split(findings, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimSpace(line), "- ")
	}
	return strings.Join(lines, "; ")
}

// Keywords that each provider's constrained decoding takes. A schema with any
// other is refused there with a 400, so it is not sent as binding.
var (
	commonKeywords = []string{
		"$schema", "$defs", "$ref", "title", "description", "type", "properties", "required",
		"additionalProperties", "items", "enum", "const", "anyOf", "format",
	}
	strictKeywords = []string{
		"pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
		"minItems", "maxItems",
	}
	closedKeywords = []string{"default"}
)

// subsets says whether a schema lies within what OpenAI's strict mode takes
// (every object closed, all of its properties required) and within what
// Anthropic takes (every object closed, no recursion).
func subsets(doc any) (strict, closed bool) {
	root, ok := doc.(map[string]any)
	if !ok || root["type"] != "object" {
		return false, false
	}
	w := subsetWalk{root: root, strict: true, closed: true}
	w.schema(root, nil)
	return w.strict, w.closed
}

type subsetWalk struct {
	root           map[string]any
	strict, closed bool
}

// schema visits one schema; refs are the references followed to come here.
func (w *subsetWalk) schema(doc any, refs []string) {
	node, ok := doc.(map[string]any)
	if !ok || len(refs) > 20 {
		w.strict, w.closed = false, false
		return
	}
	for keyword, value := range node {
		switch {
		case slices.Contains(commonKeywords, keyword):
		case slices.Contains(strictKeywords, keyword):
			w.closed = false
		case slices.Contains(closedKeywords, keyword):
			w.strict = false
		default:
			w.strict, w.closed = false, false
			return
		}
		switch keyword {
		case "items":
			w.schema(value, refs)
		case "anyOf":
			list, _ := value.([]any)
			for _, item := range list {
				w.schema(item, refs)
			}
		case "$ref":
			w.ref(value, refs)
		}
	}
	properties, _ := node["properties"].(map[string]any)
	if properties == nil && node["type"] != "object" {
		return
	}
	if node["additionalProperties"] != false {
		w.strict, w.closed = false, false
		return
	}
	required, _ := node["required"].([]any)
	for name, property := range properties {
		if !slices.Contains(required, any(name)) {
			w.strict = false
		}
		w.schema(property, refs)
	}
}

func (w *subsetWalk) ref(value any, refs []string) {
	ref, _ := value.(string)
	if slices.Contains(refs, ref) {
		w.closed = false // recursive
		return
	}
	name, ok := strings.CutPrefix(ref, "#/$defs/")
	defs, _ := w.root["$defs"].(map[string]any)
	if !ok || defs[name] == nil {
		w.strict, w.closed = false, false
		return
	}
	w.schema(defs[name], append(slices.Clip(refs), ref))
}
