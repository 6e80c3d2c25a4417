package rowfile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// FormatError ends a file whose format is neither given nor recognised, or whose first
// byte contradicts it.
type FormatError struct {
	Problem string // with the flag to give
}

// Error returns the problem.
func (e *FormatError) Error() string { return e.Problem }

var (
	errNotRows = &FormatError{Problem: "the first lines are not JSON, nor CSV of two columns or more: give --format csv, with --delimiter " +
		"where columns are not separated by commas, or --format jsonl to have lines that are not JSON answered as bad rows"}
	errSpread = &FormatError{Problem: "the first object does not end on its line: write one object a line, as jq -c does, or an array of objects"}
)

// recordBufferBytes is the size of reads from a text that is in memory, to recognise it.
const recordBufferBytes = 4 << 10

// whiteSpace is the white space of JSON.
const whiteSpace = " \t\r\n"

// recognise finds out how the rows lie in the file by its first lines. It waits for no
// more of them than it needs: a row of JSONL is known by its first byte, so that the rows
// of a pipe are taken as they are written.
func (r *Reader) recognise() error {
	text, _ := r.in.Peek(r.in.Buffered())
	for ended := false; ; {
		layout, err := r.layout.decide(bytes.TrimLeft(text, whiteSpace), ended)
		if layout.Format != "" || err != nil {
			r.maySpread = layout.Format == FormatJSONL
			r.layout = layout
			return err
		}
		_, err = r.in.Peek(min(r.in.Buffered()+1, rowBufferBytes))
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		text, _ = r.in.Peek(r.in.Buffered()) // all that came with that byte
		ended = err != nil || len(text) == rowBufferBytes
	}
}

// decide returns the layout of a file that begins with text. The layout has no format if
// more of the file is needed. ended says that there is no more, or that text is as long as
// it may be. A file named .json may have an object on each line instead of an array.
func (l Layout) decide(text []byte, ended bool) (Layout, error) {
	called := l.Format
	l.Format = ""
	switch {
	case len(text) == 0 && ended, len(text) > 0 && text[0] == '{':
		l.Format = FormatJSONL
	case len(text) == 0:
	case text[0] == '[' && called == FormatJSON:
		l.Format = FormatJSON
	case text[0] == '[':
		switch inside := bytes.TrimLeft(text[1:], whiteSpace); {
		case len(inside) == 0 && !ended:
		case len(inside) == 0, inside[0] == '{', inside[0] == ']':
			l.Format = FormatJSON
		default:
			l.Format = FormatJSONL // whose first row is bad
		}
	case called == FormatJSON:
		return l, &FormatError{Problem: fmt.Sprintf("the input is read as JSON, but begins with %q instead of [ or {: give another --format", text[:1])}
	default:
		return l.decideText(text, ended)
	}
	return l, nil
}

// decideText is decide for a file that begins with neither an object nor an array. It is
// CSV if the first line sets a delimiter, or if its first two records have the same number
// of columns, two at least, and those of the first look like names. It is JSONL whose first
// row is bad if the first line is JSON, there is no second one, or a later one begins as
// JSON does.
func (l Layout) decideText(text []byte, ended bool) (Layout, error) {
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	second, _, whole := bytes.Cut(bytes.TrimLeft(rest, whiteSpace), []byte("\n"))
	switch {
	case !whole && !ended:
		return l, nil
	case len(second) == 0 && isTable(first):
		return l, errNotRows
	case len(second) == 0, second[0] == '{', second[0] == '[', jsonbytes.Valid(first):
		l.Format = FormatJSONL
		return l, nil
	}
	if delimiter, size, _ := csvSetting(text); size > 0 {
		l.Format, l.Delimiter = FormatCSV, delimiter
		return l, nil
	}
	open := false
	for _, delimiter := range []byte(",\t;|") {
		header, record, err := firstRecords(text, delimiter)
		_, unclosed := errors.AsType[*Error](err)
		open = open || unclosed
		if err == nil && len(header) > 1 && len(header) == len(record) && areNames(header) {
			l.Format, l.Delimiter = FormatCSV, delimiter
			return l, nil
		}
	}
	switch {
	case open && !ended: // a quote may be closed on a later line
		return l, nil
	case bytes.Contains(text, []byte("\n{")):
		l.Format = FormatJSONL
		return l, nil
	}
	return l, errNotRows
}

// isTable reports whether the only line of a file is a header of CSV without rows, or CSV
// whose lines end in CR alone.
func isTable(line []byte) bool {
	line = bytes.TrimSpace(line)
	for _, delimiter := range []byte(",\t;|") {
		header, _, err := firstRecords(line, delimiter)
		if errors.Is(err, io.EOF) && len(header) > 1 && (areNames(header) || bytes.IndexByte(line, '\r') >= 0) {
			return true
		}
	}
	return false
}

func firstRecords(text []byte, delimiter byte) (header, record []string, err error) {
	in := &Reader{
		in: bufio.NewReaderSize(bytes.NewReader(text), recordBufferBytes), layout: Layout{Delimiter: delimiter}, bytesMax: len(text) + 1, line: 1,
	}
	first, err := in.readRecord()
	if err != nil {
		return nil, nil, err
	}
	header = first.fields() // which the next read overwrites
	second, err := in.readRecord()
	if err != nil {
		return header, nil, err
	}
	return header, second.fields(), nil
}

// areNames reports whether the fields of a record look like the names of columns.
func areNames(fields []string) bool {
	seen := make(map[string]bool, len(fields))
	for _, f := range fields {
		if f == "" || seen[f] || f != strings.TrimSpace(f) || !utf8.ValidString(f) || strings.ContainsFunc(f, unicode.IsControl) {
			return false
		}
		seen[f] = true
	}
	return true
}

// isSpread reports whether a line is the first of an object that has more lines: it ends
// in {, [, a comma or a colon, and is not JSON by itself.
func isSpread(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && bytes.IndexByte([]byte("{[,:"), line[len(line)-1]) >= 0 && !jsonbytes.Valid(line)
}
