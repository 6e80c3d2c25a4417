package config

import (
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"time"
)

// variableSchema is the JSON Schema of one variable, in the keywords that drafts 7 and later share. A value may be
// text, as in the environment, or what YAML makes of it unquoted: a bound holds for the number, a pattern for the
// text.
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

// schema returns the schema of the variable.
func (f *Field) schema() variableSchema {
	s := variableSchema{Description: f.Help, Default: f.Fallback, WriteOnly: f.Secret, Type: []string{"string"}}
	switch f.Kind() {
	case "bool":
		s.Type, s.Pattern = []string{"boolean", "string"}, booleanPattern
	case "number":
		if t := f.leaf.Type; t.Kind() == reflect.Int || t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Int {
			s.setNumeric(f, "integer", wholePattern)
		} else {
			s.setNumeric(f, "number", numberPattern)
		}
	case "ms":
		s.setNumeric(f, "number", numberPattern)
		s.Minimum, s.ExclusiveMinimum, s.Maximum = inMilliseconds(s.Minimum), inMilliseconds(s.ExclusiveMinimum), inMilliseconds(s.Maximum)
	case "size":
		s.setNumeric(f, "integer", sizePattern)
	default:
		s.Pattern = f.textPattern()
	}
	for _, word := range f.OneOf {
		s.Enum = append(s.Enum, word)
	}
	if len(f.OneOf) > 0 {
		s.Enum = append(s.Enum, "") // unset
	}
	return s
}

// setNumeric makes the schema that of a number, or of text that holds one, within the bounds of the field.
func (s *variableSchema) setNumeric(f *Field, kind, pattern string) {
	limit := func(b bound) *float64 {
		if b.text == "" {
			return nil
		}
		return &b.value
	}
	s.Type, s.Pattern = []string{kind, "string"}, pattern
	s.Minimum, s.ExclusiveMinimum, s.Maximum = limit(f.min), limit(f.above), limit(f.max)
	if s.Minimum == nil && s.ExclusiveMinimum == nil {
		s.Minimum = new(float64) // as checkRange has it
	}
}

// textPattern returns the pattern of a value that is always text; "" where any text will do.
func (f *Field) textPattern() string {
	switch f.leaf.Type {
	case reflect.TypeFor[time.Duration]():
		return durationPattern
	case reflect.TypeFor[SyncPolicy]():
		return syncPattern
	case reflect.TypeFor[ProviderLimits]():
		return pairsPattern
	case reflect.TypeFor[HostNames]():
		return hostsPattern
	case reflect.TypeFor[Fallbacks]():
		return modelsPattern
	}
	if f.isURL {
		return urlPattern
	}
	return ""
}

// inMilliseconds converts a bound of [Milliseconds], which is read as nanoseconds, to the unit of its variable.
func inMilliseconds(nanoseconds *float64) *float64 {
	if nanoseconds == nil {
		return nil
	}
	ms := *nanoseconds / 1e6
	return &ms
}

// WriteSchema prints a JSON Schema of the environment: one property for each variable, and no others. It covers each
// variable by itself; how they fit together is checked by [Source.Load] alone.
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
