package row

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Variables returns the row as templates see it. Nothing is decoded until it is used.
func (r *Row) Variables() Variables { return Variables{row: r} }

// Variables are the values of a row: objects as map[string]any, arrays as []any, integers
// as int64 or, beyond it, as [json.Number], which keeps their digits, all other numbers
// as float64. They are decoded no further than the caller asks, so a template that needs
// one member does not pay for the others. The values must not be changed. Variables are
// not safe for concurrent use.
type Variables struct {
	row     *Row
	members []any          // decoded, in their places; nil means not yet, or null
	all     map[string]any // nil until it is needed
}

// rowMembersMax is how many members a row may have to be searched for each name that is
// asked for; one with more is decoded whole.
const rowMembersMax = 64

// All returns all members. Strings share the memory of one copy of the row.
func (v *Variables) All() map[string]any {
	if v.all == nil {
		d := newDecoder(v.row.body)
		d.space()
		v.all = d.object()
	}
	return v.all
}

// Member returns the value of the last member with this name.
func (v *Variables) Member(name string) (value any, ok bool) {
	if v.all != nil || len(v.row.members) > rowMembersMax {
		value, ok = v.All()[name]
		return value, ok
	}
	for i, m := range slices.Backward(v.row.members) {
		if !v.row.named(&m, name) {
			continue
		}
		if v.members == nil {
			v.members = make([]any, len(v.row.members))
		}
		if v.members[i] == nil {
			v.members[i] = valueOfJSON(v.row.body[m.Value:m.End])
		}
		return v.members[i], true
	}
	return nil, false
}

// valueOfJSON decodes one value.
func valueOfJSON(raw []byte) any {
	if raw[0] == '"' {
		return jsonbytes.Text(raw) // one copy less
	}
	d := newDecoder(raw)
	return d.value()
}

// Decode decodes valid JSON to the values that [Variables] has. repeated reports whether
// some object in it has a key twice; the last one counts.
func Decode(text []byte) (value any, repeated bool) {
	d := newDecoder(text)
	d.space()
	value = d.value()
	return value, d.repeated
}

// decoder decodes valid JSON.
type decoder struct {
	raw  []byte
	text string // a copy of raw, whose memory the decoded strings share
	pos  int
	// repeated: some object has a key twice.
	repeated bool
}

func newDecoder(raw []byte) decoder { return decoder{raw: raw, text: string(raw)} }

func (d *decoder) space() { d.pos = jsonbytes.SkipSpace(d.raw, d.pos) }

// value decodes the value at pos and moves past it.
func (d *decoder) value() any {
	switch d.text[d.pos] {
	case '{':
		return d.object()
	case '[':
		return d.list()
	case '"':
		return d.str()
	case 't':
		d.pos += len("true")
		return true
	case 'f':
		d.pos += len("false")
		return false
	case 'n':
		d.pos += len("null")
		return nil
	}
	return d.number()
}

func (d *decoder) object() map[string]any {
	object := map[string]any{}
	d.pos++
	for d.space(); d.text[d.pos] != '}'; d.space() {
		if d.text[d.pos] == ',' {
			d.pos++
			d.space()
		}
		key := d.str()
		d.space()
		d.pos++ // the colon
		d.space()
		if _, ok := object[key]; ok {
			d.repeated = true
		}
		object[key] = d.value()
	}
	d.pos++
	return object
}

func (d *decoder) list() []any {
	list := []any{}
	d.pos++
	for d.space(); d.text[d.pos] != ']'; d.space() {
		if d.text[d.pos] == ',' {
			d.pos++
			d.space()
		}
		list = append(list, d.value())
	}
	d.pos++
	return list
}

func (d *decoder) str() string {
	start := d.pos
	d.pos = jsonbytes.SkipString(d.raw, start)
	if text := d.text[start+1 : d.pos-1]; strings.IndexByte(text, '\\') < 0 {
		return text
	}
	return jsonbytes.Text(d.raw[start:d.pos])
}

func (d *decoder) number() any {
	start := d.pos
	d.pos = jsonbytes.SkipScalar(d.raw, start)
	raw := d.text[start:d.pos]
	if strings.ContainsAny(raw, ".eE") {
		f, _ := strconv.ParseFloat(raw, 64) // out of range: ±Inf, as Python has it
		return f
	}
	n, err := strconv.ParseInt(raw, 10, 64)
	if err != nil {
		return json.Number(raw)
	}
	return n
}
