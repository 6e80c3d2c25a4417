package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Dialect is a set of the subsets of JSON Schema that providers accept. The zero Dialect
// stands for a provider about which nothing is known.
type Dialect uint8

// The subsets.
const (
	OpenAIStrict    Dialect = 1 << iota // OpenAI's strict mode: a 400 for anything else
	AzureStrict                         // Azure's, which has fewer keywords and lower limits
	AnthropicOutput                     // Anthropic's structured outputs: a 400 for anything else
	GeminiOutput                        // Gemini's responseJsonSchema: what it refuses with a 400
	BedrockOutput                       // Bedrock's structured outputs, whose rules are Anthropic's
	PromptOnly                          // nothing: the schema can only be put into a prompt
	geminiEnforced                      // Gemini ignores keywords that it does not know
	strictModes     = OpenAIStrict | AzureStrict
	outputs         = AnthropicOutput | BedrockOutput
	constrained     = strictModes | outputs
	everyone        = constrained | geminiEnforced
	refusing        = constrained | GeminiOutput
)

// schemaKeywords lists which dialects know a keyword. Gemini knows annotations in the
// sense that ignoring them changes nothing.
var schemaKeywords = map[string]Dialect{
	"$schema": everyone, "$defs": everyone, "definitions": everyone, "$ref": everyone,
	"title":       everyone,
	"description": everyone, "type": everyone, "properties": everyone, "required": everyone,
	"additionalProperties": everyone, "items": everyone, "enum": everyone, "anyOf": everyone,
	"format": everyone, "minItems": everyone &^ AzureStrict,
	"const": constrained, "pattern": constrained &^ AzureStrict,
	"minimum": OpenAIStrict | geminiEnforced, "maximum": OpenAIStrict | geminiEnforced,
	"exclusiveMinimum": OpenAIStrict, "exclusiveMaximum": OpenAIStrict, "multipleOf": OpenAIStrict,
	"maxItems": OpenAIStrict | geminiEnforced,
	"allOf":    outputs, "default": outputs | geminiEnforced,
	"oneOf": geminiEnforced, "prefixItems": geminiEnforced, "propertyOrdering": geminiEnforced,
	"$id": geminiEnforced, "$anchor": geminiEnforced, "$comment": geminiEnforced,
	"examples":   geminiEnforced,
	"deprecated": geminiEnforced, "readOnly": geminiEnforced, "writeOnly": geminiEnforced,
}

// keywordTypes lists the types that a keyword applies to. JSON Schema also allows the
// keyword with other types and ignores it there; the providers accept it by type.
var keywordTypes = map[string][]string{
	"minimum": {"number", "integer"}, "maximum": {"number", "integer"},
	"multipleOf":       {"number", "integer"},
	"exclusiveMinimum": {"number", "integer"}, "exclusiveMaximum": {"number", "integer"},
	"pattern": {"string"}, "format": {"string"},
	"items": {"array"}, "minItems": {"array"}, "maxItems": {"array"},
	"properties": {"object"}, "required": {"object"}, "additionalProperties": {"object"},
}

// schemaFormats lists the same for formats. Azure knows none.
var schemaFormats = map[string]Dialect{
	"date-time": everyone &^ AzureStrict, "time": everyone &^ AzureStrict,
	"date":     everyone &^ AzureStrict,
	"duration": constrained &^ AzureStrict, "email": constrained &^ AzureStrict,
	"hostname": constrained &^ AzureStrict,
	"ipv4":     constrained &^ AzureStrict, "ipv6": constrained &^ AzureStrict,
	"uuid": constrained &^ AzureStrict,
	"uri":  outputs,
}

// What OpenAI accepts of a schema in total, and what Azure does where it states its own
// limit.
const (
	openAILevelsMax       = 10 // objects and lists within each other
	azureLevelsMax        = 5
	openAIPropertiesMax   = 5000
	azurePropertiesMax    = 100
	openAICharactersMax   = 120_000 // names of properties and definitions, values of enum and const
	openAIEnumValuesMax   = 1000
	openAILongEnumMin     = 250 // a list of more strings than this has its own limit
	openAILongEnumTextMax = 15_000
)

// What Anthropic accepts of a schema in total.
const (
	anthropicOptionalMax = 24 // properties that are not required
	anthropicUnionsMax   = 16 // properties of several types
)

// anthropicPatternBad finds what Anthropic's constrained decoding does not do: groups
// with a question mark, word boundaries, classes by name and large repetitions.
var anthropicPatternBad = regexp.MustCompile(`\(\?|\\[bBpP]|\{\d*,?\d{3}`)

// outsideSubsets returns where a schema first leaves each provider's subset.
// Definitions that nothing refers to count too: providers read them all.
func outsideSubsets(doc any) map[Dialect]string {
	root, _ := doc.(map[string]any)
	w := subsetWalk{
		root: root, outside: make(map[Dialect]string), at: "#", refs: make(map[string][]schemaRef),
	}
	if root["type"] != "object" {
		w.fail(constrained, "", "is not of the type object")
	}
	if root["anyOf"] != nil {
		w.fail(constrained, "", "has anyOf at its root")
	}
	w.fail(PromptOnly, "", "is not enforced")
	w.schema(doc, "", 0, false)
	if path, ok := w.cycle(func(schemaRef) bool { return true }); ok {
		w.fail(outputs, path, "is recursive")
	}
	if path, ok := w.cycle(func(r schemaRef) bool { return !r.optional }); ok {
		w.fail(GeminiOutput, path, "is recursive and required")
	}
	if path, ok := w.cycle(func(r schemaRef) bool { return r.levels == 0 }); ok {
		w.fail(strictModes, path, "is recursive without an object or list between")
	}
	w.limit(OpenAIStrict, w.properties, openAIPropertiesMax, "properties")
	w.limit(AzureStrict, w.properties, azurePropertiesMax, "properties")
	w.limit(strictModes, w.characters, openAICharactersMax, "characters in names, enum and const")
	w.limit(strictModes, w.enumValues, openAIEnumValuesMax, "enum values")
	w.limit(outputs, w.optional, anthropicOptionalMax, "properties that are not required")
	w.limit(outputs, w.unions, anthropicUnionsMax, "properties of several types")
	return w.outside
}

// Within reports whether the provider of a dialect accepts the whole schema.
func (s *Schema) Within(d Dialect) bool { return s.outside[d] == "" }

// subsetWalk visits every part of a schema once, as it is written.
type subsetWalk struct {
	root    map[string]any
	outside map[Dialect]string
	at      string                 // the definition being visited, as a reference
	refs    map[string][]schemaRef // by the definition that they are in

	properties, characters, enumValues, optional, unions int
}

type schemaRef struct {
	to, path string
	levels   int  // objects and lists of the definition around it
	optional bool // within a property that is not required
}

// fail notes where the schema leaves dialects, each one's first place only.
func (w *subsetWalk) fail(in Dialect, path, format string, args ...any) {
	if path == "" {
		path = "the schema"
	}
	for d := OpenAIStrict; d <= geminiEnforced; d <<= 1 {
		if in&d != 0 && w.outside[d] == "" {
			w.outside[d] = path + " " + fmt.Sprintf(format, args...)
		}
	}
}

func (w *subsetWalk) limit(in Dialect, n, most int, what string) {
	if n > most {
		w.fail(in, "", "has %d %s, more than %d", n, what, most)
	}
}

// schema visits one schema. levels counts the objects and lists around it.
func (w *subsetWalk) schema(value any, path string, levels int, optional bool) {
	node, ok := value.(map[string]any)
	if !ok {
		w.fail(refusing, path, "is not an object with keywords")
		return
	}
	types := typesOf(node)
	if node["$ref"] == nil && node["anyOf"] == nil && node["allOf"] == nil && len(types) == 0 {
		w.fail(constrained, path, "has no type")
	}
	if slices.Contains(types, "object") || node["properties"] != nil {
		w.object(node, path)
	}
	if slices.Contains(types, "array") && node["items"] == nil {
		w.fail(strictModes, path, "has no items")
	}
	if slices.Contains(types, "object") || slices.Contains(types, "array") {
		levels++
		if levels > openAILevelsMax {
			w.fail(OpenAIStrict, path, "is nested more than %d levels deep", openAILevelsMax)
		}
		if levels > azureLevelsMax {
			w.fail(AzureStrict, path, "is nested more than %d levels deep", azureLevelsMax)
		}
	}
	for _, keyword := range slices.Sorted(maps.Keys(node)) {
		known := schemaKeywords[keyword]
		w.fail(everyone&^known, path, "has %q", keyword)
		if known != 0 {
			w.children(node, keyword, path, levels, optional)
			w.keyword(node, keyword, path, levels, optional)
		}
	}
}

// object checks what constrained decoding asks of an object: that it is closed and, in
// strict modes, that it has properties and requires exactly these.
func (w *subsetWalk) object(node map[string]any, path string) {
	if node["additionalProperties"] != false {
		w.fail(constrained, path, "does not set additionalProperties to false")
	}
	properties, ok := node["properties"].(map[string]any)
	if !ok {
		w.fail(strictModes, path, "has no properties")
	}
	if node["required"] == nil {
		w.fail(strictModes, path, "does not list the required properties")
	}
	required := requiredBy(node)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if !required[name] {
			w.fail(strictModes, path, "does not require %q", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(required)) {
		if properties[name] == nil {
			w.fail(strictModes, path, "requires %q, which is not one of its properties", name)
		}
	}
}

// children visits the schemas below a keyword.
func (w *subsetWalk) children(
	node map[string]any, keyword, path string, levels int, optional bool,
) {
	below := path + "/" + keyword
	switch value := node[keyword]; keyword {
	case "items":
		w.schema(value, below, levels, optional)
	case "additionalProperties":
		if _, ok := value.(bool); !ok {
			w.schema(value, below, levels, true)
		}
	case "anyOf", "allOf", "oneOf", "prefixItems":
		list, _ := value.([]any)
		for i, item := range list {
			w.schema(item, fmt.Sprintf("%s/%d", below, i), levels, optional)
		}
	case "properties":
		required := requiredBy(node)
		properties, _ := value.(map[string]any)
		w.properties += len(properties)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			w.characters += utf8.RuneCountInString(name)
			if !required[name] {
				w.optional++
			}
			if property, _ := properties[name].(map[string]any); property["anyOf"] != nil ||
				len(typesOf(property)) > 1 {
				w.unions++
			}
			w.schema(properties[name], below+"/"+escapePointer.Replace(name), levels, optional ||
				!required[name])
		}
	case "$defs", "definitions":
		w.definitions(value, keyword, path)
	}
}

var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

func (w *subsetWalk) definitions(value any, keyword, path string) {
	if path != "" {
		return // see keyword
	}
	definitions, _ := value.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(definitions)) {
		w.characters += utf8.RuneCountInString(name)
		w.at = "#/" + keyword + "/" + name
		w.schema(definitions[name], "/"+keyword+"/"+escapePointer.Replace(name), 0, false)
	}
	w.at = "#"
}

// keyword checks the value of a keyword.
func (w *subsetWalk) keyword(node map[string]any, keyword, path string, levels int, optional bool) {
	if fitting := keywordTypes[keyword]; fitting != nil &&
		!slices.ContainsFunc(typesOf(node),
			func(t string) bool { return slices.Contains(fitting, t) }) {
		w.fail(constrained, path, "has %q, which its type does not have", keyword)
	}
	text, _ := node[keyword].(string)
	number, isNumber := node[keyword].(json.Number)
	switch keyword {
	case "$schema", "$defs", "definitions":
		if path != "" {
			w.fail(constrained, path, "has %q below the root", keyword)
		}
	case "$ref":
		w.ref(node, text, path, levels, optional)
	case "allOf":
		list, _ := node[keyword].([]any)
		for _, item := range list {
			if part, _ := item.(map[string]any); part["$ref"] != nil {
				w.fail(outputs, path, "has \"$ref\" in allOf")
			}
		}
	case "format":
		w.fail(everyone&^schemaFormats[text], path, "has the format %q", text)
	case "pattern":
		// What Go refuses looks around or back, which no provider's constrained decoding
		// can do, or is spelled unusually.
		if _, err := regexp.Compile(text); err != nil {
			w.fail(constrained, path, "has the pattern %q", text)
		}
		if anthropicPatternBad.MatchString(text) {
			w.fail(outputs, path, "has the pattern %q", text)
		}
	case "minItems":
		if number != "0" && number != "1" {
			w.fail(outputs, path, "has minItems %s", number)
		}
	case "exclusiveMinimum", "exclusiveMaximum":
		if !isNumber { // a boolean in draft 4
			w.fail(strictModes, path, "has %q without a number", keyword)
		}
	case "enum":
		list, _ := node[keyword].([]any)
		w.enumValues += len(list)
		w.values(list, typesOf(node), path)
	case "const":
		w.values([]any{node[keyword]}, typesOf(node), path)
	}
}

// values checks the values of enum or const.
func (w *subsetWalk) values(list []any, types []string, path string) {
	kind, texts, characters := "", 0, 0
	if len(list) == 0 {
		w.fail(constrained, path, "has no values to choose from")
	}
	seen := make(map[any]bool, len(list))
	for _, value := range list {
		is := typeOfValue(value)
		typed := slices.Contains(types, is)
		key := value // 1 and 1.0 are equal
		switch is {
		case "string":
			texts++
			characters += utf8.RuneCountInString(value.(string))
		case "number":
			f, err := value.(json.Number).Float64()
			key = f
			typed = typed || slices.Contains(types, "integer") && err == nil && f == math.Trunc(f)
		case "object", "array":
			w.fail(everyone, path, "has an %s among its values", is)
			continue
		default:
			w.fail(geminiEnforced, path, "has the value %v", value)
		}
		if seen[key] {
			w.fail(constrained, path, "has the value %v twice", value)
		}
		seen[key] = true
		if !typed {
			w.fail(strictModes, path, "has the value %v, which is not of its type", value)
		}
		if is != "null" {
			if kind != "" && kind != is {
				w.fail(strictModes, path, "has values of several types")
			}
			kind = is
		}
	}
	w.characters += characters
	if texts > openAILongEnumMin && characters > openAILongEnumTextMax {
		w.fail(strictModes, path, "has %d characters in one enum, more than %d", characters,
			openAILongEnumTextMax)
	}
}

// ref checks a reference: to the root or one of its definitions, and alone.
func (w *subsetWalk) ref(node map[string]any, ref, path string, levels int, optional bool) {
	for _, keyword := range slices.Sorted(maps.Keys(node)) {
		if !strings.HasPrefix(keyword, "$") {
			w.fail(refusing, path, "has %q beside \"$ref\"", keyword)
		}
	}
	place, name, _ := strings.Cut(strings.TrimPrefix(ref, "#/"), "/")
	definitions, _ := w.root[place].(map[string]any)
	found := (place == "$defs" || place == "definitions") && definitions[name] != nil &&
		!strings.ContainsAny(name, "/~%") // which would be escapes
	if ref != "#" && !found {
		w.fail(refusing, path, "refers to %q, which is not one of $defs", ref)
		return
	}
	if place == "definitions" { // which Gemini ignores
		w.fail(GeminiOutput, path, "refers to %q, which is not one of $defs", ref)
	}
	w.refs[w.at] = append(w.refs[w.at], schemaRef{
		to: ref, path: path, levels: levels, optional: optional,
	})
}

// cycle returns where a definition refers to itself through references that are followed,
// if one does.
func (w *subsetWalk) cycle(follow func(schemaRef) bool) (path string, found bool) {
	const visiting, visited = 1, 2
	state := make(map[string]int)
	var visit func(at string) bool
	visit = func(at string) bool {
		state[at] = visiting
		for _, ref := range w.refs[at] {
			if !follow(ref) {
				continue
			}
			if path = ref.path; state[ref.to] == visiting || state[ref.to] == 0 && visit(ref.to) {
				return true
			}
		}
		state[at] = visited
		return false
	}
	for _, at := range slices.Sorted(maps.Keys(w.refs)) {
		if state[at] == 0 && visit(at) {
			return path, true
		}
	}
	return "", false
}

// requiredBy returns the names that an object's schema requires.
func requiredBy(node map[string]any) map[string]bool {
	list, _ := node["required"].([]any)
	names := make(map[string]bool, len(list))
	for _, item := range list {
		if name, ok := item.(string); ok {
			names[name] = true
		}
	}
	return names
}

// typesOf returns the type or types of a schema.
func typesOf(node map[string]any) []string {
	list, ok := node["type"].([]any)
	if !ok {
		list = []any{node["type"]}
	}
	var types []string
	for _, item := range list {
		if name, ok := item.(string); ok {
			types = append(types, name)
		}
	}
	return types
}

func typeOfValue(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case json.Number:
		return "number"
	case []any:
		return "array"
	}
	return "object"
}
