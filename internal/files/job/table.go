package job

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/ops/stored"
)

// table writes results as CSV: the members of the row, then the members that the stage
// adds. For example, rows with the members id and text get these columns:
//
//	id,text,llm_response,llm_response_usage_prompt_tokens,…,llm_response_error
//
// An object or an array is written as its JSON text; null and a missing member are empty.
// A value is written unchanged, even if a spreadsheet would take it for a formula:
// changing it would break every other reader. One goroutine uses it.
type table struct {
	field  string // name of the reply's member
	o      TableOptions
	path   string          // path of the file, whose ending says which delimiter it has
	fields []string        // members of the reply that have columns of their own
	own    []string        // columns of the rows' own members, or nil before they are known
	places map[string]int  // index of each column in own, by name
	marked bool            // the file begins with the byte order mark of UTF-8
	stage  map[string]bool // members and columns that the stage adds to a row, or replaces
	// other adds a column for all members that the first row of a pipe did not have: the
	// header is written before later rows are known.
	other bool
	text  bytes.Buffer // one line
	out   *csv.Writer  // writes to text
}

var (
	// usageColumns are the members of the usage that have a column of their own.
	usageColumns = []string{"prompt_tokens", "completion_tokens", "total_tokens", "cost"}
	// provenance are the members that a table leaves out: they are equal in all results,
	// or of no use in a table.
	provenance = []string{
		"_usage", "_template_hash", "_variables_hash", "_template_source",
		"_lookup_hash", "_lookup_source",
	}
)

// newTable returns the table for a file of results, or nil if the file is JSONL. If the
// input can be read twice, it reads all of it for the columns. fields are the members of
// the reply that have columns of their own.
func newTable(
	ctx context.Context, out string, in *load.Source, field string, fields []string, o TableOptions,
) (*table, error) {
	if !IsTable(out) {
		return nil, nil //nolint:nilnil // no table
	}
	t := &table{field: field, fields: fields, o: o, path: out}
	t.out = csv.NewWriter(&t.text)
	t.setLayout(rowfile.Layout{}, false)
	if in.Sum == "" {
		return t, nil
	}
	columns, err := in.AllColumns(ctx)
	if err != nil {
		return nil, err
	}
	t.setLayout(in.Layout, in.Marked)
	return t, t.setColumns(columns)
}

// setLayout sets the delimiter and the mark by the options or, without one, by the layout
// of the input.
func (t *table) setLayout(in rowfile.Layout, marked bool) {
	t.out.Comma = rune(t.o.delimiter(t.path, in))
	t.marked = in.Format == rowfile.FormatCSV && marked
	if t.o.Mark != nil {
		t.marked = *t.o.Mark
	}
}

// setColumns sets the columns of the rows' own members: all but those that the stage
// replaces. A column that happens to have the name of a flattened member is an error, or
// somebody's data would be gone without a word. But if the input also has the column of
// the whole reply, it is a table of an earlier run: then these columns are an earlier
// reply, and are replaced with it.
func (t *table) setColumns(names []string) error {
	if !slices.Contains(names, t.field) {
		for _, member := range t.fields {
			if name := t.field + "." + member; slices.Contains(names, name) {
				return config.Invalid(fmt.Errorf("--flatten: the input has a column %s, "+
					"where the member %q of the reply would be written: "+
					"rename the column, or the field of replies with STAGE_RESPONSE_FIELD",
					name, member))
			}
		}
	}

	t.own, t.places, t.stage = []string{}, make(map[string]int), make(map[string]bool)
	for _, name := range t.added() {
		t.stage[name] = true
	}
	for _, suffix := range provenance {
		t.stage[t.field+suffix] = true
	}
	for _, name := range names {
		if !t.stage[name] {
			t.places[name] = len(t.own)
			t.own = append(t.own, name)
		}
	}
	return nil
}

// added returns the columns that follow the columns of the row.
func (t *table) added() []string {
	names := []string{t.field}
	for _, name := range t.fields {
		names = append(names, t.field+"."+name)
	}
	for part := range t.o.keep.Names() {
		names = append(names, t.field+"_"+part)
	}
	return append(names, lastColumns(t.field)...)
}

// lastColumns returns the columns that end a line with any options. Their names depend on
// the field of the replies.
func lastColumns(field string) (names []string) {
	for _, name := range usageColumns {
		names = append(names, field+"_usage_"+name)
	}
	return append(names, field+"_model", field+"_error_reason", field+"_error")
}

// writeHeader writes the names of the columns. The columns of a pipe are known once its
// first row is read.
func (t *table) writeHeader(ctx context.Context, w io.Writer, rows *load.FileRows) error {
	if t.own == nil {
		names, all, err := rows.FirstColumns(ctx)
		if err != nil {
			return err
		}
		layout, marked, err := rows.FirstLayout(ctx)
		if err != nil {
			return err
		}
		t.setLayout(layout, marked)
		t.other = !all
		if err := t.setColumns(names); err != nil {
			return err
		}
	}
	if t.marked {
		if _, err := io.WriteString(w, byteOrderMark); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
	}
	header := slices.Clone(t.own)
	if t.other {
		header = append(header, t.field+"_other")
	}
	if err := t.writeRecord(w, append(header, t.added()...)); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// write writes one result. Its members may have any order; the columns have that of the
// header.
func (t *table) write(w io.Writer, r stored.Result) error {
	if _, err := jsonbytes.ReadObject(nil, r.Body); err != nil {
		return fmt.Errorf("result of row %d: %w", r.Seq, err)
	}
	record := make([]string, len(t.own))
	added := make(map[string][]byte)
	var other []byte
	for key, value := range jsonbytes.Members(r.Body) {
		place, own := t.places[string(key)]
		switch {
		case own:
			record[place] = cell(value)

		case t.stage[string(key)]:
			added[string(key)] = value
		case t.other:
			other = append(append(jsonbytes.AppendString(append(other, ','), key), ':'), value...)
		default:
			return fmt.Errorf("result of row %d has the member %q, which no row of the input has: "+
				"was the input changed meanwhile?", r.Seq, key)
		}
	}
	if t.other && other != nil {
		other[0] = '{'
		other = append(other, '}')
	}
	if t.other {
		record = append(record, string(other))
	}
	return t.writeRecord(w, t.appendAdded(record, hasNoReply(r), added))
}

// appendAdded appends the values of the columns of added. A row that has failed may still
// have the reply of an earlier run as a member: it is left out, or a reader would take it
// for the present answer.
func (t *table) appendAdded(record []string, failed bool, added map[string][]byte) []string {
	var fault, usage []byte
	if failed {
		fault = added[t.field+"_error"]
		added = nil
	} else {
		usage = added[t.field+"_usage"]
	}
	reply := added[t.field]
	record = append(record, cell(reply))
	for _, name := range t.fields {
		record = append(record, cell(findIn(reply, name)))
	}
	for part := range t.o.keep.Names() {
		record = append(record, cell(added[t.field+"_"+part]))
	}
	for _, name := range usageColumns {
		record = append(record, cell(findIn(usage, name)))
	}
	return append(record, cell(added[t.field+"_model"]), cell(findIn(fault, "reason")),
		cell(findIn(fault, "error")))
}

// findIn returns a member of a value that may be anything, or nil if the value is no
// object or has no such member.
func findIn(value []byte, name string) []byte {
	if len(value) == 0 || value[0] != '{' {
		return nil
	}
	return jsonbytes.Find(value, name)
}

func (t *table) writeRecord(w io.Writer, record []string) error {
	t.text.Reset()
	err := t.out.Write(record)
	t.out.Flush()
	if err = errors.Join(err, t.out.Error()); err != nil {
		return err
	}
	_, err = w.Write(t.text.Bytes())
	return err
}

// cell returns the text of a JSON value in a table.
func cell(value []byte) string {
	switch {
	case len(value) == 0 || string(value) == "null":
		return ""
	case value[0] == '"':
		return jsonbytes.Text(value)
	}
	return string(value)
}
