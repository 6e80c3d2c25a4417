// Package schema validates replies against a JSON Schema, and knows how much of it each
// provider enforces itself.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Schema is a compiled JSON Schema for replies. It is safe for concurrent use.
type Schema struct {
	source   json.RawMessage // compact
	compiled *jsonschema.Schema
	patterns *backtracking
	outside  map[Dialect]string // where it first leaves a provider's subset
}

// Parse compiles a JSON Schema (draft 2020-12 unless "$schema" names another). References
// reach no further than the schema itself: nothing is read from files or the network. A
// pattern may be any of ECMA-262. Errors start with name, which is where the source came
// from.
func Parse(source []byte, name string) (*Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(source))
	if err != nil {
		return nil, fmt.Errorf("%s: not JSON: %w", name, err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(jsonschema.SchemeURLLoader{}) // no scheme
	compiler.AssertFormat()
	patterns := &backtracking{limit: patternTime}
	compiler.UseRegexpEngine(patterns.compile)
	const address = "schema:reply"
	if err := compiler.AddResource(address, doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	compiled, err := compiler.Compile(address)
	if err != nil {
		return nil, fmt.Errorf("%s: not a JSON Schema: %w", name, err)
	}
	patterns.compiled = true
	var compact bytes.Buffer
	if err := json.Compact(&compact, source); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	sent := compact.Bytes()
	if doc == true { // the same as {}, and providers take objects only
		doc, sent = map[string]any{}, []byte("{}")
	}
	return &Schema{
		source: sent, compiled: compiled, patterns: patterns,
		outside: outsideSubsets(doc),
	}, nil
}

// Source returns the schema as compact JSON. The caller must not change it.
func (s *Schema) Source() json.RawMessage { return s.source }

// Validate checks that a reply is one JSON value that satisfies the schema and returns
// the value as compact JSON. Wrapping that servers add is removed: a Markdown fence, even
// if it lacks an end, the word json, a byte order mark, end tokens such as </s>. Patterns
// that need to backtrack, such as patterns with a lookahead, may take a second in all: a
// reply that takes longer does not satisfy the schema. The error describes the problem in
// one line.
func (s *Schema) Validate(text string) (json.RawMessage, error) {
	text = bare(text)
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("reply is not one JSON value: %w", err)
	}
	if err := s.patterns.validate(s.compiled, value); err != nil {
		findings := err.Error()
		if _, rest, ok := strings.Cut(findings, "\n"); ok {
			// The first line names the schema's address, which no user knows.
			findings = rest
		}
		return nil, errors.New("reply does not satisfy the schema: " +
			excerpt.Of(oneLine(findings)))
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(text)); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

// Note describes in one line how a provider that accepts this dialect may enforce less
// than the whole schema, and where the schema first leaves what it accepts. It is ""
// where the provider enforces all of it, and for the zero Dialect.
func (s *Schema) Note(d Dialect) string {
	if d == GeminiOutput && s.Within(d) {
		d = geminiEnforced
	}
	if s.Within(d) {
		return ""
	}
	n := dialectNotes[d]
	return n.how + ": " + excerpt.Of(oneLine(s.outside[d])) + ", " + n.subset +
		"; replies are still validated here"
}

// dialectNotes describe how a schema outside a dialect is sent, and name the dialect.
var dialectNotes = map[Dialect]struct{ how, subset string }{
	OpenAIStrict:    {"sent without strict", "outside OpenAI's strict mode"},
	AzureStrict:     {"sent without strict", "outside Azure OpenAI's strict mode"},
	AnthropicOutput: {"sent in the system prompt", "outside Anthropic's structured outputs"},
	GeminiOutput:    {"sent in the system prompt", "outside Gemini's structured output"},
	BedrockOutput:   {"sent in the system prompt", "outside Bedrock's structured outputs"},
	PromptOnly: {"sent in the system prompt", "since the model is not known to have " +
		"structured output there"},
	geminiEnforced: {"sent whole", "which Gemini ignores"},
}

// Instruction asks in the prompt for a reply that satisfies the schema, for a
// provider that would refuse the schema itself.
func (s *Schema) Instruction() string {
	return "Answer with one JSON value, and nothing else, that satisfies this JSON Schema:\n" +
		string(s.source)
}

// oneLine joins the validator's indented list of findings.
func oneLine(findings string) string {
	lines := strings.Split(findings, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimSpace(line), "- ")
	}
	return strings.Join(lines, "; ")
}
