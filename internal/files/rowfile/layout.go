package rowfile

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Format is the format of a file of rows.
type Format string

// Formats of files. A JSONL file has one JSON object a line. A CSV file is as in RFC 4180
// with a header line, but with any delimiter. A JSON file is one array of objects. A file of
// OpenAI's Batch API is JSONL, too: each line is a request with a name, which no other line
// has. With the zero value the first lines decide. A batch file looks like any JSONL, so
// only a flag says that it is one.
const (
	FormatJSONL Format = "jsonl"
	FormatCSV   Format = "csv"
	FormatJSON  Format = "json"
	FormatBatch Format = "openai-batch"
)

// formatTSV is what users call CSV with tabs.
const formatTSV = "tsv"

// Spec is what a user says about the format of a file. The zero value leaves it to the
// file's name and first lines.
type Spec struct {
	// Format is jsonl, csv, tsv, json or openai-batch. If it is empty, the file's name
	// decides; then, whether an option of CSV is set; then the first lines.
	Format    string
	Delimiter string // between the columns of CSV: one character, or tab; "" is the format's own
	CSVTypes  string // string or auto, or "" for string
	CSVStrict bool   // see [Layout.Strict]
}

// Layout is how rows lie in a file.
type Layout struct {
	Format    Format // "" if the first lines decide
	Delimiter byte   // between the columns of CSV, or 0 for a comma
	Typed     bool   // values of CSV have the types that they look like, or else are strings
	Strict    bool   // a quote where RFC 4180 allows none makes a bad row, or else is text
}

// Layout returns the layout of the file of that name; "-" is standard input. The error
// names the flag that is wrong.
func (s Spec) Layout(name string) (Layout, error) {
	l := Layout{Delimiter: ',', Strict: s.CSVStrict}
	format := s.Format
	if format == "" {
		format = formatOf(name)
	}
	ofCSV := "" // a flag that says it is CSV
	if s.Delimiter != "" {
		ofCSV = "--delimiter " + s.Delimiter
	}
	switch s.CSVTypes {
	case "", "string":
	case "auto":
		l.Typed, ofCSV = true, "--csv-types auto"
	default:
		return l, fmt.Errorf("--csv-types %q: choose auto or string", s.CSVTypes)
	}
	if s.CSVStrict {
		ofCSV = "--csv-strict"
	}
	if format == "" && ofCSV != "" {
		format = string(FormatCSV)
	}
	switch format {
	case "", string(FormatJSONL), string(FormatJSON), string(FormatBatch):
		if l.Format = Format(format); ofCSV != "" {
			return l, fmt.Errorf("%s is for CSV, and %s is read as %s: give --format csv if it is CSV",
				ofCSV, InputName(name), format)
		}
	case string(FormatCSV):
		l.Format = FormatCSV
	case formatTSV:
		l.Format, l.Delimiter = FormatCSV, '\t'
	default:
		return l, fmt.Errorf("--format %q is unknown: choose jsonl, csv, tsv, json or openai-batch", format)
	}
	if s.Delimiter == "" {
		return l, nil
	}
	var err error
	l.Delimiter, err = ParseDelimiter("--delimiter", s.Delimiter)
	return l, err
}

// InputName returns what messages call an input: "-" is standard input.
func InputName(name string) string {
	if name == "-" {
		return "standard input"
	}
	return name
}

// formatOf returns the format that the extension of a file means, before .gz, or "" if it
// means none.
func formatOf(name string) string {
	name = strings.TrimSuffix(strings.ToLower(name), ".gz")
	switch filepath.Ext(name) {
	case ".jsonl", ".ndjson":
		return string(FormatJSONL)
	case ".csv":
		return string(FormatCSV)
	case ".tsv", ".tab":
		return formatTSV
	case ".json":
		return string(FormatJSON)
	}
	return ""
}

// IsJSON reports whether a file is JSONL or JSON by a flag or its name, and so has no
// delimiter.
func (s Spec) IsJSON(name string) bool {
	switch Format(cmp.Or(s.Format, formatOf(name))) {
	case FormatJSONL, FormatJSON, FormatBatch:
		return true
	case FormatCSV:
	}
	return false
}

// ParseDelimiter returns the byte between columns that a user means with the value of a
// flag, which an error names.
func ParseDelimiter(flag, text string) (byte, error) {
	switch {
	case text == "tab" || text == `\t`:
		return '\t', nil
	case len(text) != 1 || text[0] >= utf8.RuneSelf:
		return 0, fmt.Errorf(`%s %q: give one ASCII character such as ; or |, or tab`, flag, text)
	case !separates(text[0]):
		return 0, fmt.Errorf("%s %q has a meaning of its own in CSV: give another character", flag, text)
	}
	return text[0], nil
}

// DelimiterName returns what separates the columns of CSV, for people.
func (l Layout) DelimiterName() string {
	if l.Delimiter == '\t' {
		return "tab"
	}
	return string(rune(l.Delimiter))
}

// String describes the layout. Two layouts have different descriptions if one file could
// have different rows by them, but for Strict: whether that matters depends on the file,
// see [Reader.StrayQuotes].
func (l Layout) String() string {
	text := string(l.Format)
	if l.Format != FormatCSV {
		return text
	}
	if l.Delimiter != ',' {
		text += " delimiter=" + l.DelimiterName()
	}
	if l.Typed {
		text += " types=auto"
	}
	return text
}
