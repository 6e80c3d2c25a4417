package config

import (
	"encoding/json"
	"io"
	"reflect"
	"strings"
)

// variableSchema is the JSON Schema of one variable, in the keywords that drafts 7 and later share. A value may be text,
// as in the environment, or what YAML makes of it unquoted: a bound holds for the number, a pattern for the text.
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
}

// Patterns of values as text. Each allows the empty text, which counts as unset.
const (
	booleanPattern  = `^([01tfTF]|true|false|True|False|TRUE|FALSE)?$`
	wholePattern    = `^([+-]?[0-9]+)?$`
	numberPattern   = `^([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)?$`
	sizePattern     = `^ *([0-9]+ *(B|KiB|MiB|GiB)? *)?$`
	durationPattern = `^(0|\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)?$`
	syncPattern     = `^(always|\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)?$`
	pairsPattern    = `^([a-z-]+=[0-9]+( *, *[a-z-]+=[0-9]+)*)?$`
	modelsPattern   = `^([a-z-]+:[^,]+(, *[a-z-]+:[^,]+)*)?$`
	hostsPattern    = `^[A-Za-z0-9_.*:\[\], -]*$`
	urlPattern      = `^(https?://[^#]+)?$`
)

// schema describes the variable.
func (f *Field) schema() variableSchema {
	s := variableSchema{Description: f.Help, Default: f.Fallback, WriteOnly: f.Secret, Type: []string{"string"}}
	limit := func(b bound) *float64 {
		if b.text == "" {
			return nil
		}
		return &b.value
	}
	numeric := func(kind, pattern string) {
		s.Type, s.Pattern = []string{kind, "string"}, pattern
		s.Minimum, s.ExclusiveMinimum, s.Maximum = limit(f.min), limit(f.above), limit(f.max)
		if s.Minimum == nil && s.ExclusiveMinimum == nil {
			s.Minimum = new(float64) // as checkRange has it
		}
	}
	switch f.Kind() {
	case "bool":
		s.Type, s.Pattern = []string{"boolean", "string"}, booleanPattern
	case "number":
		if t := f.leaf.Type; t.Kind() == reflect.Int || t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Int {
			numeric("integer", wholePattern)
		} else {
			numeric("number", numberPattern)
		}
	case "ms":
		numeric("number", numberPattern)
		s.Minimum, s.ExclusiveMinimum, s.Maximum = inMilliseconds(s.Minimum), inMilliseconds(s.ExclusiveMinimum), inMilliseconds(s.Maximum)
	case "size":
		numeric("integer", sizePattern)
	case "duration":
		s.Pattern = durationPattern
		if f.leaf.Type == reflect.TypeFor[SyncPolicy]() {
			s.Pattern = syncPattern
		}
	case "list":
		switch f.leaf.Type {
		case reflect.TypeFor[ProviderLimits]():
			s.Pattern = pairsPattern
		case reflect.TypeFor[HostNames]():
			s.Pattern = hostsPattern
		default:
			s.Pattern = modelsPattern
		}
	case "url":
		if f.isURL {
			s.Pattern = urlPattern
		}
	}
	for _, word := range f.OneOf {
		s.Enum = append(s.Enum, word)
	}
	if len(f.OneOf) > 0 {
		s.Enum = append(s.Enum, "")
	}
	return s
}

// inMilliseconds turns nanoseconds, as which a bound of [Milliseconds] is read, into what its variable says.
func inMilliseconds(nanoseconds *float64) *float64 {
	if nanoseconds == nil {
		return nil
	}
	ms := *nanoseconds / 1e6
	return &ms
}

// WriteSchema prints a JSON Schema of the environment: one property for each variable, and no other that starts with the
// prefix. It holds what can be said of one variable alone; --check says the rest.
func WriteSchema(w io.Writer) error {
	properties := make(map[string]variableSchema)
	for i := range Fields() {
		f := &Fields()[i]
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
		"$schema":              "http://json-schema.org/draft-07/schema#",
		"title":                "variables of " + strings.TrimSuffix(strings.ToLower(VariablePrefix), "_"),
		"type":                 "object",
		"additionalProperties": false,
		"properties":           properties,
	})
}
