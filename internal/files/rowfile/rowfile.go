// Package rowfile reads the rows of a file one at a time, in bounded memory. The file is
// JSONL, CSV, a JSON array or a file of OpenAI's Batch API, and may be compressed by gzip.
//
// A [Spec] is what a user says about the format, and [Spec.Layout] makes a [Layout] of it
// and the name of the file. What both leave open, the first lines decide (recognise.go). A
// [Reader] then returns row by row. A bad row has a [Fault], and the rows after it are still
// read. An [Error] ends the file.
package rowfile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Row is one row of a file.
type Row struct {
	// Line is where the row begins, from 1.
	Line int64
	// Body is the row as it is sent to the stage. The caller may keep it. With a Fault it
	// is the problem and the beginning of the row: never a JSON object, so that a stage
	// answers it with invalid_row.
	Body []byte
	// Fault is what is wrong with a bad row, or nil. It does not end the file.
	Fault *Fault
}

// Fault describes the problem of one row of a file.
type Fault struct {
	Line     int64  // where the row begins
	TooLarge bool   // the row is larger than the reader's bound
	Twice    bool   // the row has the name of an earlier one, in a batch file
	Size     int64  // bytes of a row that is too large, in the file or as JSON
	Head     []byte // the first bytes of the row in the file, at most 500
	Problem  string // for people, without the line
}

// Error names the line.
func (f *Fault) Error() string { return fmt.Sprintf("line %d: %s", f.Line, f.Problem) }

// Error ends a file: the rest of it cannot be split into rows.
type Error struct {
	Line    int64  // from 1
	Problem string // for people, without the line
}

// Error names the line.
func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Problem) }

// faultHeadBytes is how much of a bad row is kept: an error result shows as much.
const faultHeadBytes = 500

// rowBufferBytes is the size of reads from the file.
const rowBufferBytes = 64 << 10

// Reader reads the rows of a file one at a time. It keeps one row in memory, of at most its
// bound: a longer row is read to its end and reported, without being kept. Not safe for
// concurrent use.
type Reader struct {
	in       *bufio.Reader // the text, decompressed
	file     *inflater
	layout   Layout
	bytesMax int   // of a row
	begun    bool  // the first bytes were looked at
	marked   bool  // they are the byte order mark of UTF-8
	line     int64 // line that is being read, from 1
	err      error // what ended the file, or nil

	raw       []byte     // of JSONL and JSON: the row that is being read
	ids       batchIDs   // of a batch file
	maySpread bool       // of JSONL that was recognised: its first line is not read yet
	place     arrayPlace // of JSON: where in the array the next byte is
	columns   []string   // of CSV
	// keys has what precedes the value of each column of CSV in a row: `{"a":`, then
	// `,"b":`. It is nil before the header is read.
	keys   [][]byte
	record csvRecord // of CSV: the record that is being read
	stray  bool      // of CSV: a record so far has a quote where RFC 4180 allows none
}

// NewReader returns a reader of the rows in r, which may be compressed by gzip. A row of
// more than bytesMax bytes has a [Fault]; bytesMax is at least 1.
func NewReader(r io.Reader, layout Layout, bytesMax int) *Reader {
	if layout.Delimiter == 0 {
		layout.Delimiter = ','
	}
	text := &inflater{file: bufio.NewReaderSize(r, rowBufferBytes)}
	return &Reader{in: bufio.NewReaderSize(text, rowBufferBytes), file: text, layout: layout, bytesMax: max(bytesMax, 1), line: 1}
}

// Layout returns how the rows lie in the file, once Next was called: its first call
// recognises an unknown format.
func (r *Reader) Layout() Layout { return r.layout }

// Compressed reports whether the file is compressed, once Next was called.
func (r *Reader) Compressed() bool { return r.file.zip != nil }

// Marked reports whether the text begins with the byte order mark of UTF-8, once Next was
// called.
func (r *Reader) Marked() bool { return r.marked }

// StrayQuotes reports whether a record of CSV so far has a quote where RFC 4180 allows
// none, so that a strict layout has other rows.
func (r *Reader) StrayQuotes() bool { return r.stray }

// Columns returns the names of the columns of a CSV file, once Next was called. It is nil
// for a file of another format.
func (r *Reader) Columns() []string { return r.columns }

// Next returns the next row, or [io.EOF] after the last. A bad row has a Fault. An error
// ends the file and names the line: an [*Error], or the error of the file's reader. A
// [*FormatError] means that the user must give the format.
func (r *Reader) Next() (Row, error) {
	if r.err != nil {
		return Row{}, r.err
	}
	row, err := r.next()
	if err != nil {
		_, located := errors.AsType[*Error](err)
		_, first := errors.AsType[*FormatError](err)
		if !located && !first && !errors.Is(err, io.EOF) {
			err = fmt.Errorf("line %d: %w", r.line, err)
		}
		r.err = err
		return Row{}, err
	}
	return row, nil
}

// next returns the next row in the format of the file.
func (r *Reader) next() (Row, error) {
	if !r.begun {
		r.begun = true
		if err := r.begin(); err != nil {
			return Row{}, err
		}
	}
	switch r.layout.Format {
	case FormatCSV:
		return r.nextCSV()
	case FormatJSON:
		return r.nextElement()
	case FormatBatch:
		row, err := r.nextLine()
		if err == nil && row.Fault == nil {
			row = r.checkBatch(row)
		}
		return row, err
	case FormatJSONL:
	}
	return r.nextLine()
}

// begin looks at the first bytes: it skips the byte order mark of UTF-8, refuses input
// that is not text, and recognises the format unless it is known.
func (r *Reader) begin() error {
	start, err := r.in.Peek(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, a := range archives {
		if !bytes.HasPrefix(start, []byte(a.magic[:min(3, len(a.magic))])) {
			continue
		}
		whole, _ := r.in.Peek(len(a.magic)) // not earlier: a pipe may have a short row only
		if string(whole) == a.magic {
			return &Error{Line: 1, Problem: a.problem}
		}
	}
	if problem := r.foreignEncoding(start); problem != "" {
		return &Error{Line: 1, Problem: problem}
	}
	if r.marked = bytes.HasPrefix(start, []byte("\xef\xbb\xbf")); r.marked {
		if _, err := r.in.Discard(len(start)); err != nil {
			return err
		}
	}
	if f := r.layout.Format; f == FormatJSONL || f == FormatCSV || f == FormatBatch {
		return nil
	}
	return r.recognise()
}

// chunk returns the next piece of the current line, at most one buffer long and valid
// until the next call. The last piece of a line ends in a newline, or is the last of the
// file.
func (r *Reader) chunk() ([]byte, error) {
	piece, err := r.in.ReadSlice('\n')
	if len(piece) > 0 && (errors.Is(err, bufio.ErrBufferFull) || errors.Is(err, io.EOF)) {
		err = nil
	}
	return piece, err
}

// nextLine returns the next line that is not blank.
func (r *Reader) nextLine() (Row, error) {
	for {
		line, size, blank, err := r.readLine()
		if err != nil {
			return Row{}, err
		}
		start := r.line
		r.line++
		if blank {
			continue
		}
		if r.maySpread && isSpread(line) {
			return Row{}, errSpread
		}
		r.maySpread = false
		if size > int64(r.bytesMax) {
			return r.tooLarge(start, size, line), nil
		}
		return Row{Line: start, Body: bytes.Clone(line)}, nil
	}
}

// readLine reads a line to its end. It returns the line without its end, as much of it as
// the bound admits, its full size, and whether it holds nothing but space.
func (r *Reader) readLine() (line []byte, size int64, blank bool, err error) {
	blank = true
	r.raw = r.raw[:0]
	var buf [4]byte
	end := buf[:0] // the last two bytes of the line
	for !bytes.HasSuffix(end, []byte("\n")) {
		piece, err := r.chunk()
		if errors.Is(err, io.EOF) && size > 0 {
			break
		}
		if err != nil {
			return nil, 0, false, err
		}
		blank = blank && len(bytes.TrimLeft(piece, " \t\r\n\v\f")) == 0
		size += int64(len(piece))
		// The end of a line that just fits is kept, too, and cut off below.
		room := r.bytesMax + len("\r\n") - len(r.raw)
		r.raw = append(r.raw, piece[:min(room, len(piece))]...)
		end = append(end, piece[max(0, len(piece)-2):]...)
		end = append(buf[:0], end[max(0, len(end)-2):]...)
	}
	size -= int64(len(end) - len(bytes.TrimSuffix(bytes.TrimSuffix(end, []byte("\n")), []byte("\r"))))
	return r.raw[:min(size, int64(len(r.raw)))], size, blank, nil
}

// tooLarge returns the row that stands for one above the bound.
func (r *Reader) tooLarge(line, size int64, head []byte) Row {
	return faultyRow(&Fault{
		Line: line, TooLarge: true, Size: size,
		Problem: fmt.Sprintf("a row of %d bytes, at most %d can be sent", size, r.bytesMax),
	}, head)
}

// faultyRow returns the row that stands for a bad one.
func faultyRow(fault *Fault, head []byte) Row {
	fault.Head = bytes.Clone(head[:min(len(head), faultHeadBytes)])
	body := append([]byte(fault.Error()), ": "...)
	return Row{Line: fault.Line, Body: append(body, fault.Head...), Fault: fault}
}
