package llmtest

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Answer is what the server answers to a prompt, at all times, unless the request brings
// a schema.
func Answer(prompt string) string {
	const most = 60
	start := strings.Join(strings.Fields(prompt), " ")
	if len(start) > most {
		cut := most
		for !utf8.RuneStart(start[cut]) {
			cut--
		}
		start = start[:cut] + "..."
	}
	return fmt.Sprintf("Answer %08x to: %s", uint32(hash(prompt)), start)
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum64()
}

func answer(c *call) string {
	if schema, ok := c.schema.(map[string]any); ok {
		g := generator{root: schema, state: hash(c.Prompt + c.saw)}
		return string(encode(g.value(schema, 0)))
	}
	if c.saw != "" {
		return Answer(c.Prompt) + " | saw " + c.saw
	}
	return Answer(c.Prompt)
}

func (c *call) id(prefix string) string {
	return fmt.Sprintf("%s-%08x", prefix, uint32(hash(c.Prompt+c.saw)))
}

// tokens counts four bytes a token, as a rule of thumb has it.
func tokens(c *call, text string) (prompt, completion int) {
	return (len(c.System)+c.earlier+len(c.Prompt))/4 + 4, len(text)/4 + 1
}

// generator makes a value that satisfies a schema, as far as it goes: types,
// enum, const, anyOf, local references, the least length and the least number.
type generator struct {
	root  map[string]any
	state uint64
}

// draw returns a number below n, the next of a fixed sequence.
func (g *generator) draw(n int) int {
	g.state = g.state*6364136223846793005 + 1442695040888963407
	return int((g.state >> 33) % uint64(n))
}

func (g *generator) value(schema any, depth int) any {
	s, ok := schema.(map[string]any)
	if !ok || depth > 20 {
		return nil
	}
	if ref, ok := s["$ref"].(string); ok {
		return g.value(g.resolve(ref), depth+1)
	}
	if c, ok := s["const"]; ok {
		return c
	}
	for _, list := range [...]any{s["enum"], s["examples"]} {
		if values, _ := list.([]any); len(values) > 0 {
			return values[g.draw(len(values))]
		}
	}
	for _, name := range [...]string{"anyOf", "oneOf", "allOf"} {
		if options, _ := s[name].([]any); len(options) > 0 {
			return g.value(options[0], depth+1)
		}
	}
	kind, _ := s["type"].(string)
	if kinds, _ := s["type"].([]any); len(kinds) > 0 {
		kind, _ = kinds[0].(string)
	}
	switch kind {
	case "boolean":
		return g.draw(2) == 0
	case "integer", "number":
		low, _ := s["minimum"].(float64)
		high, ok := s["maximum"].(float64)
		if !ok || high < low {
			high = low + 9
		}
		return int(low) + g.draw(min(int(high-low), 1<<20)+1)
	case "string":
		text := fmt.Sprintf("text %04x", g.draw(1<<16))
		if least, _ := s["minLength"].(float64); int(least) > len(text) {
			text += strings.Repeat(".", min(int(least)-len(text), 1<<16))
		}
		return text
	case "array":
		least, _ := s["minItems"].(float64)
		items := []any{}
		for range max(1, min(int(least), 100)) {
			items = append(items, g.value(s["items"], depth+1))
		}
		return items
	case "null":
		return nil
	}
	properties, _ := s["properties"].(map[string]any)
	object := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		object[name] = g.value(properties[name], depth+1)
	}
	return object
}

func (g *generator) resolve(ref string) any {
	var node any = g.root
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil
	}
	for name := range strings.SplitSeq(path, "/") {
		object, _ := node.(map[string]any)
		node = object[name]
	}
	return node
}
