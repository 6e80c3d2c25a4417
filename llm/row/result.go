package row

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
)

// Format writes the bodies of a stage's results: the row's own object, its bytes kept,
// followed by the fields that the stage adds. It is safe for concurrent use. Its zero
// value is of no use: see [NewFormat].
//
// A row that is a result of another stage ([Row.KeepAs]) may have the fields of that one,
// by the same names. It keeps them in success and error alike, in their places and with
// the bytes of their values: F, F_usage, … become STAGE_F, STAGE_F_usage, …, or
// STAGE_F_2, STAGE_F_2_usage, … where one of those names is taken, and so on.
//
// Parts of the reply that are kept beside the answer, such as F_reasoning, follow F_model,
// and replace members of the row as the other fields do. A row's own F_id stays where ids
// are not kept. Members with the names of parts are another stage's if the result has parts
// itself, or if they follow the F_model of that stage.
type Format struct {
	// Keep is the parts that each result has beside the answer. It is set before the first
	// use.
	Keep llm.Keep
	// Replaced is called with the name of a member of a row that is left out of its
	// result. It is set before the first use and must be safe for concurrent use. It may be
	// nil.
	Replaced func(name string)

	field string
	// The parts that are the same in all results, written once: `"F":`, `,"F_usage":`, …
	answer, usage, templateHash, variablesHash, provenance, failure []byte
	parts                                                           map[string][]byte // by name
}

// Provenance is where the prompts of a stage come from: the SHA-256 of the template and
// of the lookup, and their paths as configured. A string that is empty is null in the
// result.
type Provenance struct {
	TemplateHash, TemplateSource string
	LookupHash, LookupSource     string
}

// NewFormat prepares the fields of a stage whose reply goes into field (F in what
// follows) and whose prompts have the provenance from. It fails when field is empty or
// not UTF-8.
func NewFormat(field string, from Provenance) (*Format, error) {
	if field == "" || !utf8.ValidString(field) {
		return nil, fmt.Errorf("response field %q: must be a name in UTF-8", field)
	}
	key := func(suffix string) []byte {
		return append(jsonbytes.AppendString(nil, field+suffix), ':')
	}
	member := func(suffix string, value []byte) []byte {
		return append(append([]byte{','}, key(suffix)...), value...)
	}
	parts := make(map[string][]byte)
	for _, part := range llm.KeepNames() {
		parts[part] = member("_"+part, nil)
	}
	return &Format{
		field:  field,
		parts:  parts,
		answer: key(""),
		usage:  member("_usage", nil),
		templateHash: member("_template_hash",
			jsonbytes.AppendStringOrNull(nil, from.TemplateHash)),
		variablesHash: member("_variables_hash", nil),
		provenance: slices.Concat(
			member("_template_source", jsonbytes.AppendStringOrNull(nil, from.TemplateSource)),
			member("_lookup_hash", jsonbytes.AppendStringOrNull(nil, from.LookupHash)),
			member("_lookup_source", jsonbytes.AppendStringOrNull(nil, from.LookupSource)),
			member("_model", nil)),
		failure: key(errorSuffix),
	}, nil
}

// Field returns F, the name of the field that the reply goes into.
func (f *Format) Field() string { return f.field }

// Overhead returns how many bytes a success adds to its row besides the reply, its usage,
// the variables' hash, the model and the parts that are kept.
func (f *Format) Overhead() int {
	n := len(f.answer) + len(f.usage) + len(f.templateHash) + len(f.variablesHash) +
		len(f.provenance)
	for part := range f.Keep.Names() {
		n += len(f.parts[part])
	}
	return n
}

// Answer is what a successful call adds to its row.
type Answer struct {
	// Text is the reply.
	Text string
	// Value is the reply as validated JSON. It goes into the result instead of Text, unless
	// it is empty.
	Value json.RawMessage
	// Usage is null in the result when nil.
	Usage *llm.Usage
	// VariablesHash is [Row.VariablesHash], Model the model that answered. An empty one is null.
	VariablesHash, Model string
	// Keep is the parts that the result has beside those of [Format.Keep].
	Keep llm.Keep
	// Kept holds the values of parts by their names, see [llm.Reply.Values]. A part that it
	// lacks is null.
	Kept map[string]json.RawMessage
}

// KeptBytes returns how many bytes the values of the parts have.
func (a *Answer) KeptBytes() (n int) {
	for _, value := range a.Kept {
		n += len(value)
	}
	return n
}

// AppendSuccess appends the body of a successful result: the row's own object and then,
// in this order, F, F_usage, F_template_hash, F_variables_hash, F_template_source,
// F_lookup_hash, F_lookup_source, F_model and the parts that are kept. Members of the row
// with these names are replaced, wherever they are and however their names are escaped,
// and an F_error of an earlier run is taken out.
func (f *Format) AppendSuccess(dst []byte, row *Row, a *Answer) []byte {
	const fixed = 600 // keys and hashes, roughly
	keep := f.Keep | a.Keep
	reply := len(a.Value)
	if reply == 0 {
		reply = len(a.Text) + len(a.Text)/16 // some characters are escaped
	}
	dst = slices.Grow(dst, len(row.body)+reply+a.KeptBytes()+fixed)
	dst = f.appendRow(dst, row, keep, replacedBySuccess(keep))
	dst = append(dst, f.answer...)
	dst = append(a.appendReply(dst), f.usage...)
	dst = a.Usage.AppendJSON(dst)
	dst = append(dst, f.templateHash...)
	dst = append(dst, f.variablesHash...)
	dst = jsonbytes.AppendStringOrNull(dst, a.VariablesHash)
	dst = append(dst, f.provenance...)
	dst = jsonbytes.AppendStringOrNull(dst, a.Model)
	for part := range keep.Names() {
		dst = a.appendPart(append(dst, f.parts[part]...), part)
	}
	return append(dst, '}')
}

// appendPart appends the value of a part that is kept.
func (a *Answer) appendPart(dst []byte, part string) []byte {
	if value := a.Kept[part]; len(value) > 0 {
		return append(dst, value...)
	}
	return append(dst, "null"...)
}

// appendReply appends what goes into F.
func (a *Answer) appendReply(dst []byte) []byte {
	if len(a.Value) > 0 {
		return append(dst, a.Value...)
	}
	return jsonbytes.AppendString(dst, a.Text)
}

// Adds reports whether a stage whose response field is field adds one of that name to its
// results: F, F_usage, …, F_error, and the parts that it keeps.
func Adds(field, name string, keep llm.Keep) bool {
	suffix, ok := strings.CutPrefix(name, field)
	return ok && replacedBySuccess(keep)([]byte(suffix))
}

// replacedBySuccess returns which fields F+suffix a success adds or removes that keeps
// these parts.
func replacedBySuccess(keep llm.Keep) func(suffix []byte) bool {
	if keep == 0 {
		return ofEach
	}
	return func(suffix []byte) bool { return ofEach(suffix) || keep.Has(partOf(suffix)) }
}

// ofEach reports whether every success adds or removes the field F+suffix, and ofAny
// whether one may that keeps parts.
func ofEach(suffix []byte) bool {
	return slices.Contains(answerSuffixes[:], string(suffix)) || string(suffix) == errorSuffix
}

func ofAny(suffix []byte) bool { return ofEach(suffix) || ofPart(suffix) }

func ofPart(suffix []byte) bool { return partOf(suffix) != 0 }

// partOf returns the part of the reply that the field F+suffix is for, or 0.
func partOf(suffix []byte) llm.Keep {
	if len(suffix) == 0 || suffix[0] != '_' {
		return 0
	}
	part, _ := llm.ParseKeep(string(suffix[1:]))
	return part
}

// keptUpstream reports whether the stage whose result a row is has kept parts of its
// reply under the field F: they follow its F_model.
func (f *Format) keptUpstream(row *Row) bool {
	answered := false
	for i := range row.members {
		suffix, ok := f.suffix(row, &row.members[i])
		if ok && answered && ofPart(suffix) {
			return true
		}
		answered = answered || ok && string(suffix) == answerSuffixes[len(answerSuffixes)-1]
	}
	return false
}

// appendRow appends the row without its closing brace, so that a member can follow, and
// without the members F+suffix for which replaced is true. Members that an earlier stage
// has added are kept under other names. keep is the parts that the result has.
func (f *Format) appendRow(
	dst []byte, row *Row, keep llm.Keep, replaced func(suffix []byte) bool,
) []byte {
	upstream := ofEach // what an earlier stage has added
	if row.upstream != "" && (keep != 0 || f.keptUpstream(row)) {
		upstream = ofAny
	}
	start := len(dst)
	dst = append(dst, '{')
	comma := func() {
		if len(dst) > start+1 {
			dst = append(dst, ',')
		}
	}
	kept := 0 // first member of the run to be copied next
	flush := func(end int) {
		if kept < end {
			comma()
			dst = append(dst, row.body[row.members[kept].Start:row.members[end-1].End]...)
		}
		kept = end + 1
	}
	base := "" // what F becomes, once that is needed
	for i := range row.members {
		m := &row.members[i]
		suffix, ok := f.suffix(row, m)
		switch {
		case !ok:
		case row.upstream != "" && upstream(suffix):
			if base == "" {
				base = f.freeName(row, upstream)
			}
			flush(i)
			comma()
			dst = append(jsonbytes.AppendString(dst, base+string(suffix)), ':')
			dst = append(dst, row.body[m.Value:m.End]...)
		case replaced(suffix):
			flush(i)
			if f.Replaced != nil {
				f.Replaced(f.field + string(suffix))
			}
		}
	}
	flush(len(row.members))
	comma()
	return dst
}

// freeName returns the first of STAGE_F, STAGE_F_2, STAGE_F_3, … that makes no name that
// the row or the result has. ours says which fields F+suffix it is for.
func (f *Format) freeName(row *Row, ours func(suffix []byte) bool) string {
	first := row.upstream + "_" + f.field
	var taken map[int]bool
	note := func(name []byte) {
		if len(name) < len(first) || string(name[:len(first)]) != first {
			return
		}
		if taken == nil {
			taken = make(map[int]bool)
		}
		rest := name[len(first):]
		if ours(rest) {
			taken[1] = true
		}
		number, suffix, more := strings.Cut(strings.TrimPrefix(string(rest), "_"), "_")
		if more {
			suffix = "_" + suffix
		}
		if n, err := strconv.Atoi(number); err == nil && ours([]byte(suffix)) {
			taken[n] = true
		}
	}
	for i := range row.members {
		note(row.name(&row.members[i]))
	}
	if strings.HasPrefix(f.field, row.upstream) || strings.HasPrefix(row.upstream, f.field) {
		// Only then can a field of the result begin so.
		for _, suffix := range answerSuffixes {
			note([]byte(f.field + suffix))
		}
		note([]byte(f.field + errorSuffix))
	}
	n := 1
	for taken[n] {
		n++
	}
	if n == 1 {
		return first
	}
	return first + "_" + strconv.Itoa(n)
}

// suffix returns what follows F in the name of a member that begins with F.
func (f *Format) suffix(row *Row, m *jsonbytes.Member) (suffix []byte, ok bool) {
	key := row.name(m)
	if len(key) < len(f.field) || string(key[:len(f.field)]) != f.field {
		return nil, false
	}
	return key[len(f.field):], true
}

// answerSuffixes end the names of the fields that a success adds, in the order in which
// [Format.AppendSuccess] writes them.
var answerSuffixes = [...]string{
	"", "_usage", "_template_hash", "_variables_hash", "_template_source", "_lookup_hash",
	"_lookup_source", "_model",
}

// ReadAnswer reads the body of a successful result back: Text, or Value where it was
// validated, Usage, Model, and the parts that were kept. The field that the reply went
// into need not be known, and no member of the row can be taken for it: a success ends
// with its eight fields in one order, and the parts. The answer points into body. ok is
// false for any other body.
func ReadAnswer(body []byte, validated bool) (a *Answer, ok bool) {
	r, err := Parse(body)
	if err != nil {
		return nil, false
	}
	tail, parts := r.answer()
	if tail == nil {
		return nil, false
	}
	value := func(m *jsonbytes.Member) []byte { return r.body[m.Value:m.End] }
	a = &Answer{}
	switch text := value(&tail[0]); {
	case validated:
		a.Value = text
	case text[0] == '"':
		a.Text = jsonbytes.Text(text)
	default:
		return nil, false
	}
	if model := value(&tail[len(tail)-1]); model[0] == '"' {
		a.Model = jsonbytes.Text(model)
	}
	if json.Unmarshal(value(&tail[1]), &a.Usage) != nil {
		return nil, false
	}
	if len(parts) > 0 {
		a.Kept = make(map[string]json.RawMessage, len(parts))
	}
	prefix := string(r.name(&tail[0])) + "_"
	for i := range parts {
		name := strings.TrimPrefix(string(r.name(&parts[i])), prefix)
		a.Keep |= partOf([]byte("_" + name))
		a.Kept[name] = value(&parts[i])
	}
	return a, true
}

// answer returns the members that a success has added to its row: the eight that each
// has, and behind them the parts that were kept. Both are nil if the row is no success.
func (r *Row) answer() (tail, parts []jsonbytes.Member) {
	for n := range 1 + len(llm.KeepNames()) {
		start := len(r.members) - n - len(answerSuffixes)
		if start < 0 {
			break
		}
		tail, parts = r.members[start:start+len(answerSuffixes)],
			r.members[start+len(answerSuffixes):]
		field := r.name(&tail[0])
		if r.haveSuffixes(tail, field,
			func(i int, suffix []byte) bool { return string(suffix) == answerSuffixes[i] }) &&
			r.haveSuffixes(parts, field,
				func(_ int, suffix []byte) bool { return ofPart(suffix) }) {
			return tail, parts
		}
	}
	return nil, nil
}

// haveSuffixes reports whether the names of members are the field and a suffix that is
// right in its place.
func (r *Row) haveSuffixes(
	members []jsonbytes.Member, field []byte, right func(i int, suffix []byte) bool,
) bool {
	for i := range members {
		suffix, found := bytes.CutPrefix(r.name(&members[i]), field)
		if !found || !right(i, suffix) {
			return false
		}
	}
	return true
}
