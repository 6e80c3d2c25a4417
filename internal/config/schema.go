package config

import (
	"encoding/json"
	"io"
	"strings"
)

// variableSchema is the JSON Schema of one variable, in the keywords that drafts 7 and
// later share. A value may be text, as in the environment, or what YAML makes of it
// unquoted: a bound holds for the number, a pattern for the text.
type variableSchema struct {
	Description      string   `json:"description"`
	Type             []string `json:"type"`
	Enum             []any    `json:"enum,omitempty"`
	Pattern          string   `json:"pattern,omitempty"`
	Minimum          *float64 `json:"minimum,omitempty"`
	ExclusiveMinimum *float64 `json:"exclusiveMinimum,omitempty"`
	Maximum          *float64 `json:"maximum,omitempty"`
	Default          string   `json:"default,omitempty"`
	WriteOnly        bool     `json:"writeOnly,omitempty"` // a secret
	Deprecated       bool     `json:"deprecated,omitempty"`
}

// schema returns the schema of the variable. For example, STAGE_POOL_SIZE is an integer
// or a text of digits, with the minimum 1 and the maximum 10000.
func (f *Field) schema() variableSchema {
	s := variableSchema{
		Description: f.Help, Default: f.Fallback, WriteOnly: f.Secret,
		Type: []string{"string"}, Pattern: f.kind.pattern,
	}
	if f.kind.json != "" {
		s.Type = []string{f.kind.json, "string"}
	}
	if f.kind.json == "integer" || f.kind.json == "number" {
		s.Minimum, s.ExclusiveMinimum, s.Maximum = f.min.limit(), f.above.limit(), f.max.limit()
		if s.Minimum == nil && s.ExclusiveMinimum == nil {
			s.Minimum = new(float64) // as in checkRange
		}
	}
	if f.Deprecated != "" {
		s.Description, s.Deprecated = "deprecated: "+f.Deprecated, true
	}
	for _, word := range f.OneOf {
		s.Enum = append(s.Enum, word)
	}
	if len(f.OneOf) > 0 {
		s.Enum = append(s.Enum, "") // unset
	}
	return s
}

// limit returns the value of the bound, or nil if the bound limits nothing.
func (b bound) limit() *float64 {
	if b.text == "" {
		return nil
	}
	return &b.value
}

// WriteSchema prints a JSON Schema of the environment: one property for each variable,
// and no others. It covers each variable on its own; only [Source.Load] checks that they
// are consistent.
func WriteSchema(w io.Writer) error {
	properties := make(map[string]variableSchema)
	for _, f := range Fields() {
		properties[f.Variable] = f.schema()
		if f.Secret {
			properties[f.Variable+FileSuffix] = variableSchema{
				Description: "path of a file that holds it: " + f.Help, Type: []string{"string"},
			}
		}
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(map[string]any{
		"$schema": "http://json-schema.org/draft-07/schema#",
		"title": "variables of " +
			strings.TrimSuffix(strings.ToLower(VariablePrefix), "_"),
		"type":                 "object",
		"additionalProperties": false,
		"properties":           properties,
	})
}
