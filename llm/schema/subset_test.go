package schema

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"
)

// The facts in this file come from, as of August 2026:
//   - OpenAI: the guide "Structured model outputs", section "Supported schemas"; openai-python v3.3.1
//     (src/openai/lib/_pydantic.py) and openai-node v7.5.0 (src/lib/transform.ts); pydantic-ai v2.9.1
//     (pydantic_ai/profiles/openai.py: formats, keywords, untyped items); the API's own 400s: "'oneOf' is
//     not permitted", "'uri' is not a valid format", "schema must have a 'type' key", "$ref cannot have keywords
//     {'description'}", "enum values must be of the same type", "enum value 0 does not validate against {...}",
//     "11 levels of nesting exceeds limit of 10", "6000 parameters exceeds limit of 5000".
//     Patterns: pydantic-ai v2.33.0 (the same file) keeps what looks around out of strict mode, after OpenAI's support had
//     named it (issue 5508); the API's 400, "regex lookaround is not supported", is in vercel/ai pull request 21037.
//   - Azure: the guide "Structured outputs" of learn.microsoft.com, updated in June 2026: "Unsupported type-specific
//     keywords", five levels, 100 properties.
//   - Anthropic: the guide "Structured outputs", sections "JSON Schema limitations" and "Schema complexity limits";
//     anthropic-sdk-python v0.121.0 (src/anthropic/lib/_parse/_transform.py).
//   - Gemini: python-genai v2.19.0 (google/genai/types.py, GenerateContentConfig.response_json_schema); the guide
//     "Structured outputs": "The model ignores unsupported properties."

// closedObject wraps the schema of one property in all that strict modes ask of an object.
func closedObject(property string) string {
	return `{"type":"object","properties":{"a":` + property + `},"required":["a"],"additionalProperties":false}`
}

var dialects = map[string]Dialect{"o": OpenAIStrict, "z": AzureStrict, "a": AnthropicOutput, "r": GeminiOutput, "g": geminiEnforced}

// checkSubset compares who accepts the schema with a set of letters: o OpenAI's strict mode, z Azure's, a Anthropic,
// r Gemini without a 400, g Gemini with all of it enforced. Each of the others must have complaint as its reason.
func checkSubset(t *testing.T, source, want, complaint string) {
	t.Helper()
	s := &Schema{outside: outsideSubsets(must.Value(jsonschema.UnmarshalJSON(strings.NewReader(source)))(t))}
	if len(source) < 10_000 { // to compile 5,000 properties takes a second
		s = schemaOf(t, source)
	}
	for letter, d := range dialects {
		switch accepts := strings.Contains(want, letter); {
		case accepts != s.Within(d):
			t.Errorf("%.300s: within %s: %t, want %t; it says %q", source, letter, !accepts, accepts, s.outside[d])
		case !accepts && !strings.Contains(s.outside[d], complaint):
			t.Errorf("%.300s: %s says %q, want %q", source, letter, s.outside[d], complaint)
		}
	}
}

// Every keyword of every draft, with who accepts it in one property, and that property.
var keywordRows = map[string][2]string{
	"$schema":               {"rg", `{"type":"string","$schema":"https://json-schema.org/draft/2020-12/schema"}`},
	"$id":                   {"rg", `{"type":"string","$id":"https://example.com/a"}`},
	"id":                    {"r", `{"type":"string","id":"a"}`},
	"$anchor":               {"rg", `{"type":"string","$anchor":"a"}`},
	"$dynamicAnchor":        {"r", `{"type":"string","$dynamicAnchor":"a"}`},
	"$dynamicRef":           {"r", `{"type":"string","$dynamicRef":"#"}`},
	"$recursiveAnchor":      {"r", `{"type":"string","$recursiveAnchor":"a"}`},
	"$recursiveRef":         {"r", `{"type":"string","$recursiveRef":"#"}`},
	"$vocabulary":           {"r", `{"type":"string","$vocabulary":{}}`},
	"$comment":              {"rg", `{"type":"string","$comment":"c"}`},
	"$defs":                 {"rg", `{"type":"string","$defs":{"x":{"type":"string"}}}`},
	"definitions":           {"rg", `{"type":"string","definitions":{"x":{"type":"string"}}}`},
	"$ref":                  {"ozg", `{"$ref":"#"}`}, // recursive and required
	"type":                  {"ozarg", `{"type":"boolean"}`},
	"title":                 {"ozarg", `{"type":"string","title":"t"}`},
	"description":           {"ozarg", `{"type":"string","description":"d"}`},
	"default":               {"arg", `{"type":"string","default":"x"}`},
	"examples":              {"rg", `{"type":"string","examples":["x"]}`},
	"deprecated":            {"rg", `{"type":"string","deprecated":true}`},
	"readOnly":              {"rg", `{"type":"string","readOnly":true}`},
	"writeOnly":             {"rg", `{"type":"string","writeOnly":true}`},
	"enum":                  {"ozarg", `{"type":"string","enum":["x","y"]}`},
	"const":                 {"ozar", `{"type":"string","const":"x"}`},
	"format":                {"oarg", `{"type":"string","format":"date"}`},
	"pattern":               {"oar", `{"type":"string","pattern":"^[a-z]+$"}`},
	"minLength":             {"r", `{"type":"string","minLength":1}`},
	"maxLength":             {"r", `{"type":"string","maxLength":9}`},
	"contentEncoding":       {"r", `{"type":"string","contentEncoding":"base64"}`},
	"contentMediaType":      {"r", `{"type":"string","contentMediaType":"text/html"}`},
	"contentSchema":         {"r", `{"type":"string","contentSchema":{"type":"string"}}`},
	"minimum":               {"org", `{"type":"integer","minimum":1}`},
	"maximum":               {"org", `{"type":"integer","maximum":9}`},
	"exclusiveMinimum":      {"or", `{"type":"number","exclusiveMinimum":0}`},
	"exclusiveMaximum":      {"or", `{"type":"number","exclusiveMaximum":9}`},
	"multipleOf":            {"or", `{"type":"number","multipleOf":0.5}`},
	"items":                 {"ozarg", `{"type":"array","items":{"type":"string"}}`},
	"additionalItems":       {"r", `{"type":"array","items":{"type":"string"},"additionalItems":false}`},
	"prefixItems":           {"rg", `{"type":"array","items":{"type":"string"},"prefixItems":[{"type":"string"}]}`},
	"contains":              {"r", `{"type":"array","items":{"type":"string"},"contains":{"type":"string"}}`},
	"minContains":           {"r", `{"type":"array","items":{"type":"string"},"minContains":1}`},
	"maxContains":           {"r", `{"type":"array","items":{"type":"string"},"maxContains":1}`},
	"minItems":              {"oarg", `{"type":"array","items":{"type":"string"},"minItems":1}`},
	"maxItems":              {"org", `{"type":"array","items":{"type":"string"},"maxItems":3}`},
	"uniqueItems":           {"r", `{"type":"array","items":{"type":"string"},"uniqueItems":true}`},
	"unevaluatedItems":      {"r", `{"type":"array","items":{"type":"string"},"unevaluatedItems":false}`},
	"properties":            {"ozarg", closedObject(`{"type":"null"}`)},
	"required":              {"ozarg", closedObject(`{"type":"number"}`)},
	"additionalProperties":  {"ozarg", closedObject(`{"type":"integer"}`)},
	"patternProperties":     {"r", closedWith(`"patternProperties":{"^x":{"type":"string"}}`)},
	"propertyNames":         {"r", closedWith(`"propertyNames":{"pattern":"^x"}`)},
	"minProperties":         {"r", closedWith(`"minProperties":1`)},
	"maxProperties":         {"r", closedWith(`"maxProperties":1`)},
	"dependentRequired":     {"r", closedWith(`"dependentRequired":{"a":["a"]}`)},
	"dependentSchemas":      {"r", closedWith(`"dependentSchemas":{"a":{"type":"object"}}`)},
	"dependencies":          {"r", closedWith(`"dependencies":{"a":["a"]}`)},
	"unevaluatedProperties": {"r", closedWith(`"unevaluatedProperties":false`)},
	"anyOf":                 {"ozarg", `{"anyOf":[{"type":"string"},{"type":"null"}]}`},
	"oneOf":                 {"rg", `{"type":["string","null"],"oneOf":[{"type":"string"},{"type":"null"}]}`},
	"allOf":                 {"ar", `{"allOf":[{"type":"string"}]}`},
	"not":                   {"r", `{"type":"string","not":{"const":"x"}}`},
	"if":                    {"r", `{"type":"string","if":{"const":"x"}}`},
	"then":                  {"r", `{"type":"string","then":{"const":"x"}}`},
	"else":                  {"r", `{"type":"string","else":{"const":"x"}}`},
	"nullable":              {"r", `{"type":"string","nullable":true}`},   // OpenAPI
	"discriminator":         {"r", `{"type":"string","discriminator":1}`}, // OpenAPI
	"propertyOrdering":      {"rg", closedWith(`"propertyOrdering":["a"]`)},
}

func closedWith(member string) string {
	return `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false,` + member + `}`
}

func TestEveryKeywordIsSentOnlyToWhoKnowsIt(t *testing.T) {
	for keyword, row := range keywordRows {
		complaint := fmt.Sprintf("/properties/a has %q", keyword)
		switch keyword {
		case "$ref":
			complaint = "/properties/a is recursive"
		case "format":
			complaint = "/properties/a has the format"
		}
		checkSubset(t, closedObject(row[1]), row[0], complaint)
	}
}

// The metaschemas are read where the validator is installed.
func TestNoKeywordOfAnyDraftIsForgotten(t *testing.T) {
	dir := must.Value(exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/santhosh-tekuri/jsonschema/v6").Output())(t)
	known := 0
	err := filepath.WalkDir(filepath.Join(strings.TrimSpace(string(dir)), "metaschemas"), func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var metaschema struct {
			Properties map[string]any `json:"properties"`
		}
		if err := json.Unmarshal(text, &metaschema); err != nil {
			return err
		}
		for keyword := range metaschema.Properties {
			if _, ok := keywordRows[keyword]; !ok {
				t.Errorf("%s has %q, which no row of keywordRows has", path, keyword)
			}
			known++
		}
		return nil
	})
	if err != nil || known < 200 {
		t.Errorf("%d keywords read, %v", known, err)
	}
}

// Every format of the JSON Schema test suite (44401e0, tests/*/optional/format), and some that schemas in the wild have.
func TestEveryFormatIsSentOnlyToWhoKnowsIt(t *testing.T) {
	who := map[string]string{
		"date-time": "oarg", "date": "oarg", "time": "oarg",
		"duration": "oar", "email": "oar", "hostname": "oar", "ipv4": "oar", "ipv6": "oar", "uuid": "oar",
		"uri": "ar",
	}
	for _, format := range []string{
		"color", "date-time", "date", "duration", "email", "host-name", "hostname", "idn-email", "idn-hostname", "ip-address",
		"ipv4", "ipv6", "iri-reference", "iri", "json-pointer", "regex", "relative-json-pointer", "time", "unknown",
		"uri-reference", "uri-template", "uri", "uuid", "byte", "binary", "password", "int32", "int64", "float", "double", "text", "",
	} {
		want, ok := who[format]
		if !ok {
			want = "r"
		}
		checkSubset(t, closedObject(fmt.Sprintf(`{"type":"string","format":%q}`, format)), want,
			fmt.Sprintf("/properties/a has the format %q", format))
	}
}

// TestSchemaLeavesSubsetsAt runs testdata/subsets.txt.
func TestSchemaLeavesSubsetsAt(t *testing.T) {
	datadriven.RunTest(t, "testdata/subsets.txt", func(t *testing.T, d *datadriven.TestData) string {
		schema, out := schemaOf(t, d.Input), "within:"
		for _, letter := range []string{"o", "z", "a", "r", "g"} {
			if schema.Within(dialects[letter]) {
				out += " " + letter
			}
		}
		for _, letter := range []string{"o", "z", "a", "r", "g"} {
			if !schema.Within(dialects[letter]) {
				out += "\n" + letter + ": " + schema.outside[dialects[letter]]
			}
		}
		return out + "\n"
	})
}

func withDefinition(keyword, name, definition, property string) string {
	return `{"` + keyword + `":{"` + name + `":` + definition + `},` + closedObject(property)[1:]
}

func TestSchemaSizes(t *testing.T) {
	object := func(required bool, properties ...string) string {
		names := make([]string, 0, len(properties))
		for i, property := range properties {
			names = append(names, fmt.Sprintf(`"p%d"`, i))
			properties[i] = names[i] + ":" + property
		}
		if !required {
			names = nil
		}
		return `{"type":"object","properties":{` + strings.Join(properties, ",") + `},"required":[` + strings.Join(names, ",") + `],"additionalProperties":false}`
	}
	many := func(n int, property string) []string { return slices.Repeat([]string{property}, n) }
	nested := func(levels int) string {
		s := `{"type":"string"}`
		for i := range levels { // a list is a level too
			if i%2 == 1 && i < levels-1 {
				s = `{"type":"array","items":` + s + `}`
			} else {
				s = closedObject(s)
			}
		}
		return s
	}
	values := func(n, characters int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(`"%0*d"`, characters, i)
		}
		return `{"type":"string","enum":[` + strings.Join(list, ",") + `]}`
	}
	for name, row := range map[string]struct{ source, want, complaint string }{
		"5 levels":                      {nested(5), "ozarg", ""},
		"6 levels":                      {nested(6), "oarg", "is nested more than 5 levels deep"},
		"100 properties":                {object(true, many(100, `{"type":"null"}`)...), "ozarg", ""},
		"101 properties":                {object(true, many(101, `{"type":"null"}`)...), "oarg", "the schema has 101 properties, more than 100"},
		"10 levels":                     {nested(10), "oarg", "is nested more than 5 levels deep"},
		"11 levels":                     {nested(11), "arg", "levels deep"},
		"5000 properties":               {object(true, many(5000, `{"type":"null"}`)...), "oarg", "has 5000 properties, more than 100"},
		"5001 properties":               {object(true, many(5001, `{"type":"null"}`)...), "arg", "the schema has 5001 properties, more than "},
		"120,000 characters":            {closedObject(`{"type":"string","const":"` + strings.Repeat("ä", 119_999) + `"}`), "ozar", `has "const"`},
		"120,001 characters":            {closedObject(`{"type":"string","enum":["` + strings.Repeat("ä", 120_000) + `"]}`), "arg", "has 120001 characters"},
		"1000 values":                   {object(true, many(4, values(250, 3))...), "ozarg", ""},
		"1001 values":                   {object(true, append(many(4, values(250, 3)), values(1, 3))...), "arg", "has 1001 enum values"},
		"250 long values":               {closedObject(values(250, 100)), "ozarg", ""},
		"251 values, 15,060 characters": {closedObject(values(251, 60)), "arg", "/properties/a has 15060 characters in one enum"},
		"24 optional":                   {object(false, many(24, `{"type":"null"}`)...), "arg", "does not require"},
		"25 optional":                   {object(false, many(25, `{"type":"null"}`)...), "rg", ""},
		"16 unions":                     {object(true, many(16, `{"type":["string","null"]}`)...), "ozarg", ""},
		"17 unions":                     {object(true, many(17, `{"anyOf":[{"type":"string"}]}`)...), "ozrg", "has 17 properties of several types"},
	} {
		t.Run(name, func(t *testing.T) { checkSubset(t, row.source, row.want, row.complaint) })
	}
}

// A random schema that is sent as strict has known keywords and closed objects at every level, referred to or not.
func TestStrictSchemaHasNothingUnknownAnywhere(t *testing.T) {
	allowed := []string{
		"$schema", "$defs", "definitions", "$ref", "title", "description", "type", "properties", "required", "additionalProperties",
		"items", "enum", "const", "anyOf", "format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
		"minItems", "maxItems",
	}
	var check func(t *rapid.T, value any, inside string)
	check = func(t *rapid.T, value any, inside string) {
		switch value := value.(type) {
		case []any:
			for _, item := range value {
				check(t, item, inside)
			}
		case map[string]any:
			for key, below := range value {
				switch {
				case inside == "properties" || inside == "$defs" || inside == "definitions":
					check(t, below, "")
				case !slices.Contains(allowed, key):
					t.Fatalf("%q is sent as strict", key)
				case key != "enum" && key != "const":
					check(t, below, key)
				}
			}
			if inside == "" && value["type"] == "object" && value["additionalProperties"] != false {
				t.Fatal("an open object is sent as strict")
			}
		}
	}
	strict := 0
	rapid.Check(t, func(t *rapid.T) {
		rows := slices.Sorted(maps.Keys(keywordRows))
		draw := func(label string) string {
			row := keywordRows[rapid.SampledFrom(rows).Draw(t, label)]
			if !strings.Contains(row[0], "o") && rapid.IntRange(0, 3).Draw(t, "odd") > 0 {
				return `{"type":"string"}`
			}
			return row[1]
		}
		source := withDefinition(rapid.SampledFrom([]string{"$defs", "definitions"}).Draw(t, "definitions"), "x", draw("x"),
			closedObject(`{"anyOf":[`+draw("one")+`,`+closedObject(draw("two"))+`,{"type":"array","items":`+draw("three")+`}]}`))
		s, err := Parse([]byte(source), "schema")
		if err != nil {
			t.Skip(err) // such as one anchor twice
		}
		if s.Within(OpenAIStrict) {
			strict++
			var doc any
			must.Do(t, json.Unmarshal(s.Source(), &doc))
			check(t, doc, "")
		}
	})
	if strict < 10 && !testing.Short() { // a short run draws a fifth as many
		t.Errorf("only %d schemas were strict", strict)
	}
}
