package yamldoc

import (
	"encoding/json"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"go.yaml.in/yaml/v4"
)

// JSON returns a document as JSON of at most so many bytes. Unlike [Value] it keeps the
// order of the members, which a model may read. Aliases are written out, and a merge (<<)
// is an error. The error is an [*Error].
func JSON(n *yaml.Node, most int) ([]byte, error) {
	if _, err := Value(n); err != nil { // no alias stands inside of its own anchor
		return nil, err
	}
	return appendJSON(nil, n, most)
}

func appendJSON(dst []byte, n *yaml.Node, most int) (_ []byte, err error) {
	if len(dst) > most { // a few aliases of aliases may stand for gigabytes
		return nil, errorAt(n, "more than %d bytes", most)
	}
	switch n.Kind { //nolint:exhaustive // the others are scalars
	case yaml.AliasNode:
		return appendJSON(dst, n.Alias, most)
	case yaml.SequenceNode:
		dst = append(dst, '[')
		for i, part := range n.Content {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendJSON(dst, part, most); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case yaml.MappingNode:
		return appendMapping(dst, n, most)
	}
	value, err := scalar(n)
	if err != nil {
		return nil, err
	}
	if text, ok := value.(string); ok {
		return jsonbytes.AppendString(dst, text), nil
	}
	number, err := json.Marshal(value)
	if err != nil {
		return nil, errorAt(n, "%s has no value in JSON", n.Value)
	}
	return append(dst, number...), nil
}

func appendMapping(dst []byte, n *yaml.Node, most int) (_ []byte, err error) {
	dst = append(dst, '{')
	for i := 0; i+1 < len(n.Content); i += 2 {
		if isMerge(n.Content[i]) {
			return nil, errorAt(n.Content[i], "a merge is not supported here: write the members out")
		}
		name, err := Key(n.Content[i])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsonbytes.AppendString(dst, name), ':')
		if dst, err = appendJSON(dst, n.Content[i+1], most); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}
