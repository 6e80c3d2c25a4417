package yamldoc

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Value returns what a node holds: nil, bool, string, int64, float64, [json.Number]
// (whole numbers above int64), []any or map[string]any. Aliases share the value of their
// anchor, so aliases of aliases cost nothing.
//
// A scalar without quotes is null (null, Null, NULL, ~ or nothing), a boolean (true,
// True, TRUE, false …), a whole number (7, +7, 0x1F, 0o17, 017, 0b101, 1_000), a number
// with a point (1.5, .5, 1.0e3), .inf or .nan; any other is a text, also yes and no, 1e3,
// a date, and a whole number that does not fit into 64 bits.
//
// Of a merge (<<) and the other keys of its mapping the later counts.
func Value(n *yaml.Node) (any, error) {
	v := valuer{anchored: make(map[*yaml.Node]shared)}
	is, err := v.value(n)
	if err != nil {
		return nil, err
	}
	return is.value, nil
}

// shared is a value, and how deep it is nested.
type shared struct {
	value any
	depth int
}

// valuer makes the values of one document.
type valuer struct {
	// anchored has the values of nodes with an anchor. An entry without a depth is of a
	// node that is being read, whose alias stands inside of it.
	anchored map[*yaml.Node]shared
	merged   int // members that merges have copied
}

// mergedMax bounds the members that the merges of a document copy. Aliases share the
// value of their anchor, but a merge copies it: 25,000 merges of a mapping with 40,000
// members fit into a megabyte of text, and would take 100 GB.
const mergedMax = 1_000_000

func (v *valuer) value(n *yaml.Node) (is shared, err error) {
	if n.Kind == yaml.AliasNode {
		is, known := v.anchored[n.Alias]
		switch {
		case !known:
			return is, errorAt(n, "the alias %q stands before its anchor", n.Value)
		case is.depth == 0:
			return is, errorAt(n, "the alias %q stands inside of its own anchor", n.Value)
		}
		return is, nil
	}
	if n.Anchor != "" {
		v.anchored[n] = shared{}
		defer func() { v.anchored[n] = is }()
	}
	is.depth = 1
	switch tag := n.ShortTag(); {
	case n.Kind == yaml.SequenceNode && isOf(tag, "!!seq", "!!omap", "!!pairs"):
		is, err = v.list(n)
	case n.Kind == yaml.MappingNode && isOf(tag, "!!map", "!!set"):
		is, err = v.mapping(n)
	case n.Kind != yaml.ScalarNode:
		err = errorAt(n, "not of the type %s", tag)
	default:
		is.value, err = scalar(n)
	}
	if err == nil && is.depth > DepthMax {
		err = errorAt(n, "nested deeper than %d", DepthMax)
	}
	return is, err
}

// isOf reports whether a tag is one of these, or of the file's own, which means nothing
// here.
func isOf(tag string, known ...string) bool {
	return !strings.HasPrefix(tag, "!!") || slices.Contains(known, tag)
}

func (v *valuer) list(n *yaml.Node) (shared, error) {
	items, depth := make([]any, len(n.Content)), 0
	for i, part := range n.Content {
		item, err := v.value(part)
		if err != nil {
			return shared{}, err
		}
		items[i], depth = item.value, max(depth, item.depth)
	}
	return shared{items, depth + 1}, nil
}

func (v *valuer) mapping(n *yaml.Node) (shared, error) {
	members, depth := make(map[string]any, len(n.Content)/2), 0
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, part := n.Content[i], n.Content[i+1]
		if _, err := v.value(key); err != nil { // it may have an anchor
			return shared{}, err
		}
		member, err := v.value(part)
		if err != nil {
			return shared{}, err
		}
		depth = max(depth, member.depth)
		if isMerge(key) {
			if err := v.merge(members, member.value, part); err != nil {
				return shared{}, err
			}
			continue
		}
		name, err := Key(key)
		if err != nil {
			return shared{}, err
		}
		members[name] = member.value
	}
	return shared{members, depth + 1}, nil
}

// isMerge reports whether a key merges another mapping into its own.
func isMerge(key *yaml.Node) bool { return key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" }

// merge adds the members of a mapping, or of a list of mappings. n is where it stands.
func (v *valuer) merge(members map[string]any, value any, n *yaml.Node) error {
	list, isList := value.([]any)
	if !isList {
		list = []any{value}
	}
	for _, one := range list {
		from, ok := one.(map[string]any)
		if !ok {
			return errorAt(n, "<< takes a mapping, or a list of mappings")
		}
		if v.merged += len(from); v.merged > mergedMax {
			return errorAt(n, "the merges (<<) of the file copy more than %d members: write a large table as JSON", mergedMax)
		}
		maps.Copy(members, from)
	}
	return nil
}

// Key returns the name of a key of a mapping: its text, for a number its digits in
// decimal, else null, true or false.
func Key(n *yaml.Node) (string, error) {
	at := n
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode {
		return "", errorAt(at, "found an invalid key: only texts, numbers, booleans and null can be keys")
	}
	value, err := scalar(n)
	if err != nil {
		return "", err
	}
	if value == nil {
		return "null", nil
	}
	return fmt.Sprint(value), nil
}

// scalar returns the value of a scalar.
func scalar(n *yaml.Node) (any, error) {
	if !IsTagged(n) {
		if !IsPlain(n) {
			return n.Value, nil
		}
		return resolve(n.Value), nil
	}
	var fits bool
	value := resolve(n.Value)
	switch n.ShortTag() {
	case "!!str", "!":
		return n.Value, nil
	case "!!null":
		return nil, nil //nolint:nilnil // null is a value
	case "!!bool":
		_, fits = value.(bool)
	case "!!int":
		fits = isWhole(value)
	case "!!float":
		if f, err := strconv.ParseFloat(n.Value, 64); err == nil { // 1 and 1e3, too
			return f, nil
		}
		_, fits = value.(float64)
	case "!!timestamp", "!!binary":
		return nil, errorAt(n, "a value of the type %s is not supported: write it as a string, in quotes", n.ShortTag())
	default: // a tag of the file's own, which means nothing here
		return n.Value, nil
	}
	if !fits {
		return nil, errorAt(n, "not of the type %s", n.ShortTag())
	}
	return value, nil
}

// IsNull reports whether a node is a null without quotes: null, ~ or nothing.
func IsNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && IsPlain(n) && resolve(n.Value) == nil
}

func isWhole(value any) bool {
	switch value.(type) {
	case int64, json.Number:
		return true
	}
	return false
}

// words are the scalars without quotes that are no texts and no numbers.
var words = map[string]any{
	"": nil, "~": nil, "null": nil, "Null": nil, "NULL": nil,
	"true": true, "True": true, "TRUE": true, "false": false, "False": false, "FALSE": false,
	".inf": math.Inf(1), ".Inf": math.Inf(1), ".INF": math.Inf(1),
	"-.inf": math.Inf(-1), "-.Inf": math.Inf(-1), "-.INF": math.Inf(-1),
	".nan": math.NaN(), ".NaN": math.NaN(), ".NAN": math.NaN(),
}

// resolve returns the value of a scalar without quotes.
func resolve(text string) any {
	if value, ok := words[text]; ok {
		return value
	}
	if value, ok := number(text); ok {
		return value
	}
	return text
}

// bases are the prefixes of whole numbers that are not decimal.
var bases = [...]struct {
	prefix string
	base   int
}{{"0x", 16}, {"0o", 8}, {"0b", 2}}

// number reads a whole number of 64 bits, or a number with a point.
func number(text string) (value any, ok bool) {
	if text == "" || strings.HasPrefix(text, "_") || strings.Count(text, ".") > 1 {
		return nil, false
	}
	sign := ""
	if text[0] == '-' {
		sign = "-"
	}
	digits := strings.TrimPrefix(strings.TrimPrefix(text, "+"), "-")
	digits = strings.ReplaceAll(digits, "_", "")
	for _, b := range bases {
		if rest, found := strings.CutPrefix(digits, b.prefix); found {
			return whole(sign, rest, b.base)
		}
	}
	switch {
	case strings.Contains(digits, "."):
		f, err := strconv.ParseFloat(sign+digits, 64)
		return f, err == nil
	case strings.HasPrefix(digits, "0") && len(digits) > 1:
		return whole(sign, digits, 8)
	}
	return whole(sign, digits, 10)
}

// whole reads a whole number of 64 bits. digits has no sign of its own.
func whole(sign, digits string, base int) (value any, ok bool) {
	if strings.HasPrefix(digits, "+") || strings.HasPrefix(digits, "-") {
		return nil, false
	}
	if n, err := strconv.ParseInt(sign+digits, base, 64); err == nil {
		return n, true
	}
	n, err := strconv.ParseUint(sign+digits, base, 64)
	return json.Number(strconv.FormatUint(n, 10)), err == nil
}
