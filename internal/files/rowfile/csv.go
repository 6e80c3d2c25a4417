package rowfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// csvState is where in a record the next byte is.
type csvState uint8

const (
	csvFieldStart csvState = iota
	csvPlain               // in a field without quotes
	csvQuoted              // between quotes
	csvQuoteSeen           // after a quote that closes the field, or is the first of two
	csvSkip                // in a record that strict reading refuses, which ends with the line
)

// csvRecord is one record of the file. Its memory is bounded, and is used again for the
// next record.
type csvRecord struct {
	bytesMax  int // bounds data and the number of fields together
	delimiter byte
	strict    bool // wrong quotes are a problem

	state    csvState
	carriage bool // the last byte was a CR, which may belong to the end of the line
	bareCR   bool // a CR outside of quotes was not followed by LF, and so is text

	line     int64  // where it begins
	quote    int64  // line of the last opening quote
	size     int64  // bytes in the file
	head     []byte // its first bytes in the file
	data     []byte // its fields without quotes, one after the other
	ends     []int  // end of each field in data
	overflow bool   // the record is larger than bytesMax, and was cut
	stray    bool   // it has a quote where RFC 4180 allows none
	problem  string // how it breaks the rules of CSV, or ""
}

// nextCSV returns the next record as a JSON object. A record with another number of
// columns than the header or bytes that are not UTF-8 is a bad row, and in a strict
// layout so is one with a quote where RFC 4180 allows none.
func (r *Reader) nextCSV() (Row, error) {
	if r.keys == nil {
		if err := r.skipSetting(); err != nil {
			return Row{}, err
		}
		if err := r.readHeader(); err != nil {
			return Row{}, err
		}
	}
	rec, err := r.readRecord()
	if err != nil {
		return Row{}, err
	}
	if rec.overflow {
		return r.tooLarge(rec.line, rec.size, rec.head), nil
	}
	if problem := rec.check(len(r.keys)); problem != "" {
		return faultyRow(&Fault{Line: rec.line, Problem: problem}, rec.head), nil
	}
	size, start := len(rec.data)+1, 0
	for _, key := range r.keys {
		size += len(key) + 2
	}
	body := make([]byte, 0, size)
	for i, end := range rec.ends {
		body = r.layout.appendValue(append(body, r.keys[i]...), rec.data[start:end])
		start = end
	}
	body = append(body, '}')
	if len(body) > r.bytesMax {
		return r.tooLarge(rec.line, int64(len(body)), rec.head), nil
	}
	return Row{Line: rec.line, Body: body}, nil
}

// readHeader reads the names of the columns. Each problem of them ends the file.
func (r *Reader) readHeader() error {
	rec, err := r.readRecord()
	for err == nil && len(rec.ends) == 1 && len(bytes.Trim(rec.data, whiteSpace)) == 0 && !rec.overflow {
		rec, err = r.readRecord() // a line of spaces names no column
	}
	if errors.Is(err, io.EOF) {
		return &Error{Line: 1, Problem: "the file is empty: a CSV file begins with a line that names its columns"}
	}
	if err != nil {
		return err
	}
	problem := rec.check(len(rec.ends))
	switch {
	case rec.bareCR: // else all rows would be one header
		problem = `lines end in CR alone: convert them, as tr '\r' '\n' does`
	case rec.overflow:
		problem = fmt.Sprintf("larger than %d bytes", r.bytesMax)
	}
	if problem != "" {
		return &Error{Line: rec.line, Problem: "header: " + problem}
	}
	var names []string
	var keys [][]byte
	seen := make(map[string]bool, len(rec.ends))
	start := 0
	for i, end := range rec.ends {
		name := string(rec.data[start:end])
		if seen[name] {
			return &Error{Line: rec.line, Problem: fmt.Sprintf("header: two columns are called %q", name)}
		}
		seen[name] = true
		names = append(names, name)
		key := []byte{','}
		if i == 0 {
			key[0] = '{'
		}
		keys = append(keys, append(jsonbytes.AppendString(key, rec.data[start:end]), ':'))
		start = end
	}
	r.columns, r.keys = names, keys
	return nil
}

// check describes the problem of a record that should have that many columns, or returns
// "".
func (rec *csvRecord) check(columns int) string {
	if rec.problem != "" {
		return rec.problem
	}
	if len(rec.ends) != columns {
		if len(rec.ends) == 1 {
			return fmt.Sprintf("1 column, the header has %d", columns)
		}
		return fmt.Sprintf("%d columns, the header has %d", len(rec.ends), columns)
	}
	start := 0
	for i, end := range rec.ends {
		if !utf8.Valid(rec.data[start:end]) {
			return fmt.Sprintf("column %d is not UTF-8: convert the file with iconv", i+1)
		}
		start = end
	}
	return ""
}

// readRecord reads one record to its end, after any blank lines. It is valid until the
// next call. The error comes from the file, or is an [*Error] for a quote that is never
// closed.
func (r *Reader) readRecord() (*csvRecord, error) {
	rec := &r.record
	rec.bytesMax, rec.delimiter, rec.strict = r.bytesMax, r.layout.Delimiter, r.layout.Strict
	rec.begin(r.line)
	defer func() { r.stray = r.stray || rec.stray }()
	for {
		piece, err := r.chunk()
		switch {
		case errors.Is(err, io.EOF) && rec.state == csvQuoted:
			return nil, &Error{Line: rec.quote, Problem: "the quote opened here is never closed"}
		case errors.Is(err, io.EOF) && !rec.blank():
			rec.endField()
			return rec, nil
		case err != nil:
			return nil, err
		}
		rec.size += int64(len(piece))
		rec.head = append(rec.head, piece[:min(len(piece), faultHeadBytes-len(rec.head))]...)
		if r.takePiece(rec, piece) {
			return rec, nil
		}
	}
}

// takePiece adds a piece of a line to the record, and reports whether the record ends
// with it.
func (r *Reader) takePiece(rec *csvRecord, piece []byte) (ends bool) {
	for len(piece) > 0 {
		if n := rec.textRun(piece); n > 0 && !rec.carriage {
			rec.put(piece[:n])
			if piece[n-1] == '\n' {
				r.line++
			}
			if rec.state == csvFieldStart {
				rec.state = csvPlain
			}
			piece = piece[n:]
			continue
		}
		b := piece[0]
		piece = piece[1:]
		if b == '\n' { // it ends the piece, too; between quotes, textRun has taken it
			r.line++
			if rec.blank() {
				rec.begin(r.line)
				return false
			}
			rec.endField()
			return true
		}
		if rec.carriage { // an ordinary character after all
			rec.bareCR = true
			rec.step('\r', r.line)
		}
		if rec.carriage = b == '\r'; !rec.carriage {
			rec.step(b, r.line)
		}
	}
	return false
}

// textRun returns the number of bytes at the start of the piece that are text of the
// field and nothing else.
func (rec *csvRecord) textRun(piece []byte) int {
	switch rec.state {
	case csvQuoted:
		if n := bytes.IndexByte(piece, '"'); n >= 0 {
			return n
		}
		return len(piece)
	case csvFieldStart, csvPlain:
		for i, b := range piece {
			if b == rec.delimiter || b == '"' || b == '\r' || b == '\n' {
				return i // a quote within the field is text, too, and is noted
			}
		}
		return len(piece)
	case csvQuoteSeen, csvSkip:
		return 0
	}
	return 0
}

// begin empties the record, which then begins in the line.
func (rec *csvRecord) begin(line int64) {
	*rec = csvRecord{bytesMax: rec.bytesMax, delimiter: rec.delimiter, strict: rec.strict, line: line, head: rec.head[:0], data: rec.data[:0], ends: rec.ends[:0]}
}

// step takes one byte that does not end the record. A quote in a field that does not
// begin with one is text, and so is what follows the quote that closes a field, as
// Python's csv and spreadsheets read it: TV 24" is itself, "x"y is xy.
func (rec *csvRecord) step(b byte, line int64) {
	switch state := rec.state; {
	case state == csvSkip:
	case state == csvQuoted && b == '"':
		rec.state = csvQuoteSeen
	case state == csvQuoteSeen && b == '"':
		rec.put([]byte{b})
		rec.state = csvQuoted
	case state == csvFieldStart && b == '"':
		rec.quote, rec.state = line, csvQuoted
	case state != csvQuoted && b == rec.delimiter:
		rec.endField()
		rec.state = csvFieldStart
	case state == csvQuoteSeen:
		rec.strayQuote("text after the quote that closes column %d", b)
	case state == csvPlain && b == '"':
		rec.strayQuote("a quote within column %d, which does not begin with one", b)
	default:
		if state == csvFieldStart {
			rec.state = csvPlain
		}
		rec.put([]byte{b})
	}
}

// strayQuote takes a byte that shows that a quote is where RFC 4180 allows none.
func (rec *csvRecord) strayQuote(problem string, b byte) {
	rec.stray = true
	if rec.strict {
		rec.problem, rec.state = fmt.Sprintf(problem, len(rec.ends)+1), csvSkip
		return
	}
	rec.state = csvPlain
	rec.put([]byte{b})
}

func (rec *csvRecord) put(text []byte) {
	if len(rec.data)+len(rec.ends)+len(text) > rec.bytesMax {
		rec.overflow = true
		return
	}
	rec.data = append(rec.data, text...)
}

// endField ends the field. It counts as one byte against the bound: a record of empty
// fields needs memory, too.
func (rec *csvRecord) endField() {
	if rec.state == csvSkip {
		return
	}
	if len(rec.data)+len(rec.ends) >= rec.bytesMax {
		rec.overflow = true
		return
	}
	rec.ends = append(rec.ends, len(rec.data))
}

func (rec *csvRecord) fields() []string {
	texts, start := make([]string, 0, len(rec.ends)), 0
	for _, end := range rec.ends {
		texts = append(texts, string(rec.data[start:end]))
		start = end
	}
	return texts
}

// blank reports whether nothing was read but the end of a line.
func (rec *csvRecord) blank() bool {
	return rec.state == csvFieldStart && len(rec.ends) == 0
}
