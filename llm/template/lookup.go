package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/yamldoc"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// Bounds of a lookup, in bytes. A YAML file becomes nodes before it becomes values, so it
// takes some hundred times its size while it is read.
const (
	maxLookupJSON = 64 << 20
	maxLookupYAML = 1 << 20
)

// Lookup is a table that templates see as lookup. It is immutable and safe for concurrent
// use.
type Lookup struct {
	value  any // map[string]any or []any
	hash   string
	source string
}

// LoadLookup reads a lookup from a file, whose path becomes its source. See [ParseLookup].
func LoadLookup(path string) (*Lookup, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("lookup: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	content, err := io.ReadAll(io.LimitReader(f, maxLookupJSON+1))
	if err != nil {
		return nil, fmt.Errorf("lookup: %w", err)
	}
	return ParseLookup(content, path)
}

// ParseLookup parses content, a mapping or list in JSON (at most 64 MiB) or YAML (at most
// 1 MiB). source is the path as configured, or empty. YAML keys that are not strings
// become strings, as written.
//
// It fails on duplicate keys, on more than one YAML document, on values that a tag makes
// dates or binary data, which have no JSON value, and on invalid UTF-8. Errors of YAML
// name line and column. Aliases cost nothing: they share the value of their anchor. A
// byte order mark is ignored.
func ParseLookup(content []byte, source string) (*Lookup, error) {
	l := &Lookup{hash: llm.Hash(content), source: source}
	var err error
	if l.value, err = decodeLookup(content); err == nil {
		switch l.value.(type) {
		case map[string]any, []any:
			return l, nil
		}
		err = errors.New("neither a mapping nor a list")
	}
	if source == "" {
		return nil, fmt.Errorf("lookup: %w", err)
	}
	return nil, fmt.Errorf("lookup %s: %w", source, err)
}

// Hash returns the SHA-256 of the lookup's bytes in hexadecimal.
func (l *Lookup) Hash() string { return l.hash }

// Source returns the path as configured, or "".
func (l *Lookup) Source() string { return l.source }

func decodeLookup(content []byte) (any, error) {
	content = jsonbytes.TrimBOM(content)
	switch {
	case len(content) > maxLookupJSON:
		return nil, fmt.Errorf("more than %d bytes", maxLookupJSON)
	case !utf8.Valid(content):
		return nil, fmt.Errorf("invalid UTF-8 at byte %d", jsonbytes.InvalidUTF8(content))
	case json.Valid(content):
		v, repeated := row.Decode(content)
		if repeated {
			return nil, errors.New("an object has a duplicate key")
		}
		return v, nil
	case len(content) > maxLookupYAML:
		return nil, fmt.Errorf("not JSON, and %d bytes are more than the %d allowed for YAML: convert it to JSON", len(content), maxLookupYAML)
	}
	root, err := yamldoc.Parse(content)
	if err != nil || root == nil {
		return nil, err
	}
	return yamldoc.Value(root)
}
