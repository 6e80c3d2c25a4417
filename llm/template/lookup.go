package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// Bounds of a lookup, in bytes. Parsing YAML takes time that grows with the square of
// the number of keys: some ten seconds at the bound. JSON of that size takes milliseconds.
const (
	maxLookupJSON = 64 << 20
	maxLookupYAML = 1 << 20
)

// Lookup is a table that templates see as lookup. It is immutable and safe for concurrent use.
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

// ParseLookup parses content, a mapping or list in JSON (at most 64 MiB) or YAML (at most 1 MiB). source is the path as
// configured, or empty. YAML keys that are not strings become strings, as written.
//
// It fails on duplicate keys, on more than one YAML document, on dates and binary data, which have no JSON value, and
// on invalid UTF-8. Aliases cost nothing: they share the value of their anchor.
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
	d := yaml.NewDecoder(bytes.NewReader(content))
	var v, second any
	if err := d.Decode(&v); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(yaml.FormatError(err, false, false))
	}
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document")
	}
	c := yamlConverter{done: map[uintptr]struct{}{}}
	return c.convert(v)
}

// yamlConverter converts the values of the YAML decoder, in place, to those of templates. An anchor's value is converted
// once, so aliases of aliases cannot multiply the work.
type yamlConverter struct{ done map[uintptr]struct{} }

func (c *yamlConverter) convert(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, string, float64, int64:
		return v, nil
	case int:
		return int64(v), nil
	case uint64:
		if v <= 1<<63-1 {
			return int64(v), nil
		}
		return json.Number(strconv.FormatUint(v, 10)), nil
	case map[string]any:
		if !c.first(v) {
			break
		}
		for k, member := range v {
			converted, err := c.convert(member)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			v[k] = converted
		}
	case []any:
		if len(v) == 0 || !c.first(v) {
			break
		}
		for i, item := range v {
			var err error
			if v[i], err = c.convert(item); err != nil {
				return nil, err
			}
		}
	default:
		return nil, fmt.Errorf("a value of the type %T is not supported: write it as a string, in quotes", v)
	}
	return v, nil
}

// first reports whether container has not been converted yet.
func (c *yamlConverter) first(container any) bool {
	n := len(c.done)
	c.done[reflect.ValueOf(container).Pointer()] = struct{}{}
	return len(c.done) > n
}
