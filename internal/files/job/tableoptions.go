package job

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/schema"
)

// byteOrderMark is the mark of UTF-8, by which Excel knows the encoding of CSV.
const byteOrderMark = "\xef\xbb\xbf"

// TableOptions are the options of results as CSV. The zero value takes delimiter and mark
// over from a CSV input.
type TableOptions struct {
	// Delimiter is between the columns. 0 means the delimiter of a CSV input; without
	// such an input it is a comma or a tab, by the name of the file.
	Delimiter byte
	// Mark says whether the file begins with the byte order mark of UTF-8. If it is nil,
	// the file does if a CSV input does.
	Mark *bool
	// Flatten gives each member of the reply's object a column, by the response schema.
	Flatten bool

	keep llm.Keep // the parts of replies that results may have
}

// IsTable reports whether a file for results is CSV, by its name.
func IsTable(out string) bool { return tableName(out) != 0 }

// tableName returns the delimiter of a file for results by its name alone, or 0 if it is
// JSONL.
func tableName(out string) byte {
	switch strings.ToLower(filepath.Ext(out)) {
	case ".csv":
		return ','
	case ".tsv", ".tab":
		return '\t'
	}
	return 0
}

// delimiter returns the delimiter of the file of that name. Tabs belong to files called
// .tsv, so an input with tabs is converted to commas where the results are called .csv.
func (o *TableOptions) delimiter(out string, in rowfile.Layout) byte {
	named := tableName(out)
	switch {
	case o.Delimiter != 0:
		return o.Delimiter
	case named == ',' && in.Format == rowfile.FormatCSV && in.Delimiter != '\t' &&
		in.Delimiter != 0:
		return in.Delimiter
	}
	return named
}

// fields returns the members of the reply that have columns of their own in a file of
// that name: the members of the object that the response schema describes, in its order.
// fansOut says that a reply is an array of replies. The error names the option that can't
// be used.
func (o *TableOptions) fields(out string, response *schema.Schema, fansOut bool) ([]string, error) {
	if !IsTable(out) {
		switch {
		case o.Flatten:
			return nil, errors.New("--flatten is for results as CSV: give -o FILE.csv")
		case o.Mark != nil && *o.Mark:
			return nil, errors.New("--bom is for results as CSV: give -o FILE.csv")
		case o.Delimiter != 0:
			return nil, errors.New("--out-delimiter is for results as CSV: give -o FILE.csv")
		}
	}
	switch {
	case !o.Flatten:
		return nil, nil
	case fansOut:
		return nil, errors.New("--flatten: with STAGE_FOREACH the reply of a row is an array, " +
			"which has one column: leave --flatten out")
	case response == nil:
		return nil, errors.New("--flatten: the columns are those of the response schema: " +
			"set STAGE_RESPONSE_SCHEMA_FILE")
	}
	names := propertiesOf([]byte(response.Source()))
	if len(names) == 0 {
		return nil, errors.New("--flatten: the response schema names no properties: " +
			"set STAGE_RESPONSE_SCHEMA_FILE to the schema of an object with properties")
	}
	return names, nil
}

// propertiesOf returns the names of the members of the object that a schema describes, in
// their order. For example, they are category and reason for
//
//	{"type":"object","properties":{"category":{…},"reason":{…}}}
func propertiesOf(root []byte) (names []string) {
	properties := findIn(root, "properties")
	// A recursive model of pydantic refers to a definition, in place of properties.
	if ref := findIn(root, "$ref"); properties == nil && len(ref) > 0 && ref[0] == '"' {
		properties = findIn(definition(root, jsonbytes.Text(ref)), "properties")
	}
	if len(properties) == 0 || properties[0] != '{' {
		return nil
	}
	for key := range jsonbytes.Members(properties) {
		if !slices.Contains(names, string(key)) {
			names = append(names, string(key))
		}
	}
	return names
}

// definition returns the part of a schema to which a reference such as #/$defs/Ticket
// leads, or nil if it leads out of the schema. In a reference, ~1 stands for / and ~0 for
// ~.
func definition(root []byte, ref string) []byte {
	path, local := strings.CutPrefix(ref, "#/")
	if !local {
		return nil
	}
	for name := range strings.SplitSeq(path, "/") {
		root = findIn(root, strings.NewReplacer("~1", "/", "~0", "~").Replace(name))
	}
	return root
}
