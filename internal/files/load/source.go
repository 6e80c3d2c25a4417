package load

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/media"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
)

// RowBytesMax is the largest message in bytes of the server that process embeds: rows of
// documents exceed the default of 1 MiB, and 8 MiB is the most that NATS recommends.
const RowBytesMax = 8 << 20

// MessageOverhead is how many bytes of a message are left for the headers of a row.
const MessageOverhead = 8 << 10

// LogBadRow is the message of the line that each bad row of a file has in the log.
const LogBadRow = "bad row"

// Source is a file of rows, or standard input.
type Source struct {
	Name   string // - is standard input
	File   io.ReadCloser
	Layout rowfile.Layout
	Sum    string // SHA-256 of the content in hex, or "" if it can be read only once
	Bytes  int64  // length of the content that Sum is of; what follows later is not read
	Rows   int64  // -1 if it can be read only once

	// These are false for a source that can be read only once, which nobody has read yet.
	Compressed  bool // by gzip
	Marked      bool // with the byte order mark of UTF-8
	StrayQuotes bool // a record of CSV has a quote where RFC 4180 allows none

	file   *os.File // nil if it can be read only once
	unsaid bool     // neither a flag nor the name says what the format is
}

// Beside returns the files in the directory of the input and below, which rows may name as
// pictures, documents and sounds. It is nil for standard input, which has none.
func (s *Source) Beside() *media.Files {
	if s.Name == "-" {
		return nil
	}
	files, err := media.OpenFiles(filepath.Dir(s.Name))
	if err != nil { // it was readable a moment ago
		return nil
	}
	return files
}

// OpenSource opens the input and, if it can be read twice, counts its rows and hashes its
// content. When ctx ends, so do reads of an input that may never end. A file that grows
// meanwhile is read to its end at the time, and to the end of a line that was half there.
// An input that cannot be used is a [config.Error]. The caller must close File.
func OpenSource(ctx context.Context, stdin io.Reader, name string, spec rowfile.Spec) (*Source, error) {
	layout, err := spec.Layout(name)
	if err != nil {
		return nil, config.Invalid(err)
	}
	s := &Source{Name: name, Layout: layout, Rows: -1, unsaid: layout.Format == ""}
	if name == "-" {
		s.File = io.NopCloser(stopping.Reader(ctx, stdin))
		return s, nil
	}
	file, err := openFile(ctx, name)
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		return nil, config.Invalid(err)
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory: name a JSONL, CSV or JSON file", name)
	}
	if err != nil {
		return nil, config.Invalid(errors.Join(err, file.Close()))
	}
	if !info.Mode().IsRegular() {
		s.File = struct {
			io.Reader
			io.Closer
		}{stopping.Reader(ctx, file), file}
		return s, nil
	}
	s.File, s.file = file, file
	size := info.Size()
	if size == 0 { // or a file system that does not know it
		size = math.MaxInt64
	}
	if err := s.countLines(ctx, layout, size); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return s, nil
}

// Spool copies an input that can be read only once, to its end, into a temporary file, and
// counts and hashes that. After that the source can be read twice. For a file Spool does
// nothing. An input that cannot be used is a [config.Error].
func (s *Source) Spool(ctx context.Context) error {
	if s.file != nil {
		return nil
	}
	file, err := os.CreateTemp("", "stage-rows-*")
	if err != nil {
		return fmt.Errorf("keep %s until its end: %w", rowfile.InputName(s.Name), err)
	}
	once := s.File
	s.file, s.File = file, spooled{file, once}
	size, err := io.Copy(file, once)
	if err != nil {
		return fmt.Errorf("keep %s until its end: %w", rowfile.InputName(s.Name), err)
	}
	return s.count(ctx, s.Layout, size)
}

// spooled is the copy of an input.
type spooled struct {
	*os.File
	once io.Closer
}

// Close closes the input and the copy, and removes the copy.
func (s spooled) Close() error {
	return errors.Join(s.once.Close(), s.File.Close(), os.Remove(s.Name()))
}

// countLines is count, but it also reads the rest of a last line that was only half written
// when size was found, if that line has its end by now.
func (s *Source) countLines(ctx context.Context, layout rowfile.Layout, size int64) error {
	err := s.count(ctx, layout, size)
	if ctx.Err() != nil || err == nil && (s.Compressed || s.Layout.Format == rowfile.FormatJSON) {
		return err
	}
	if end, endErr := lineEnd(s.file, size); endErr != nil || end > size {
		return errors.Join(endErr, s.count(ctx, layout, end))
	}
	return err
}

// count reads the first bytes of the file, size at most, to count and hash them.
func (s *Source) count(ctx context.Context, layout rowfile.Layout, size int64) error {
	sum, read := sha256.New(), &byteCounter{}
	rows := rowfile.NewReader(io.TeeReader(io.NewSectionReader(s.file, 0, size), io.MultiWriter(sum, read)), layout, RowBytesMax)
	for s.Rows = 0; ; s.Rows++ {
		row, err := rows.Next()
		switch {
		case err == nil && row.Fault != nil && row.Fault.Twice: // while nothing is paid yet
			return config.Invalid(fmt.Errorf("%s: %w", rowfile.InputName(s.Name), row.Fault))
		case errors.Is(err, io.EOF):
			s.Layout, s.Sum, s.Bytes = rows.Layout(), hex.EncodeToString(sum.Sum(nil)), read.n
			s.Compressed, s.Marked, s.StrayQuotes = rows.Compressed(), rows.Marked(), rows.StrayQuotes()
			return nil
		case err != nil:
			return config.Invalid(fmt.Errorf("%s: %w", rowfile.InputName(s.Name), err))
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

// byteCounter counts the bytes that are written to it.
type byteCounter struct{ n int64 }

// Write implements [io.Writer].
func (c *byteCounter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// content returns a reader of the source from its beginning.
func (s *Source) content() io.Reader {
	if s.file == nil {
		return s.File
	}
	return io.NewSectionReader(s.file, 0, s.Bytes)
}

// openFile opens a file to read it. A named pipe blocks until it has a writer, or ctx ends.
func openFile(ctx context.Context, name string) (*os.File, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		file, err := os.Open(name)
		done <- opened{file, err}
	}()
	select {
	case o := <-done:
		return o.file, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// FileRows makes messages of the rows of a file. Not safe for concurrent use, except for
// FirstColumns.
type FileRows struct {
	Strict bool // Read returns an error for a row that no message can hold
	Raise  bool // that error says to raise the limit of the user's own server

	name   string // of the input, for messages
	rows   *rowfile.Reader
	limit  int          // largest row that a message holds, in bytes
	log    *slog.Logger // for bad rows, and for how the file is read
	unsaid bool         // see [Source]; false once the recognised format is logged
	first  firstColumns
}

// Reader returns the rows of the source, each of at most limit bytes. It may be called
// once.
func (s *Source) Reader(log *slog.Logger, limit int) *FileRows {
	return &FileRows{
		name: rowfile.InputName(s.Name), rows: rowfile.NewReader(s.content(), s.Layout, limit), limit: limit, log: log, unsaid: s.unsaid,
		first: firstColumns{known: make(chan struct{})},
	}
}

// ErrAnotherInput says that an input is not the one from which an earlier run has loaded
// rows.
var ErrAnotherInput = errors.New("it is another input")

// Skip skips the rows that an earlier run has loaded. It returns [ErrAnotherInput] if there
// are fewer.
func (f *FileRows) Skip(loaded int64) error { return f.SkipSame(loaded, nil) }

// SkipSame is Skip for rows without a known hash. It compares each row with the next one
// that stored returns, unless that is nil, and returns [ErrAnotherInput] if they differ.
func (f *FileRows) SkipSame(loaded int64, stored func() ([]byte, error)) error {
	for i := range loaded {
		row, err := f.next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: the job has loaded %d rows of it, and now it has %d: %w", f.name, loaded, i, ErrAnotherInput)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if stored == nil {
			continue
		}
		body, err := stored()
		if err != nil {
			return fmt.Errorf("%s: compare row %d with the one that the job has loaded: %w", f.name, i+1, err)
		}
		if body != nil && !isSame(row, body) {
			return fmt.Errorf("%s: row %d is not the one that the job has loaded: %w", f.name, i+1, ErrAnotherInput)
		}
	}
	return nil
}

// isSame reports whether body is what was stored for a row. For a bad row, that ends with
// the row's beginning.
func isSame(row rowfile.Row, body []byte) bool {
	if row.Fault != nil {
		return bytes.HasSuffix(body, row.Fault.Head)
	}
	return bytes.Equal(body, row.Body)
}

func (f *FileRows) next() (rowfile.Row, error) {
	row, err := f.rows.Next()
	if !f.first.looked {
		f.first.look(f.rows, row, err)
		f.describe()
	}
	return row, err
}

// describe logs a format that was recognised, and warns of a delimiter that seems wrong.
func (f *FileRows) describe() {
	layout := f.rows.Layout()
	if f.unsaid && layout.Format != rowfile.FormatJSONL && layout.Format != "" {
		f.unsaid = false
		f.log.Info("recognised the format of the input: give --format if it is another", slog.String("input", f.name), slog.String("format", layout.String()))
	}
	others := strings.ReplaceAll(",;|\t", string(rune(layout.Delimiter)), "")
	if columns := f.rows.Columns(); len(columns) == 1 && strings.ContainsAny(columns[0], others) {
		f.log.Warn("the header has one column: give --delimiter if another character separates the columns",
			slog.String("input", f.name), slog.String("column", columns[0]), slog.String("delimiter", layout.DelimiterName()))
	}
}

// Read returns the next row, or [io.EOF] after the last. A row that no message can hold
// is replaced by its beginning and the reason.
func (f *FileRows) Read() (*nats.Msg, error) {
	row, err := f.next()
	if _, ok := errors.AsType[*rowfile.FormatError](err); ok {
		return nil, config.Invalid(fmt.Errorf("%s: %w", f.name, err))
	}
	if err != nil {
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s: %w", f.name, err)
		}
		return nil, err
	}
	if row.Fault == nil {
		return Message(row, f.limit), nil
	}
	if f.Strict && row.Fault.TooLarge {
		advice := "remove the row, or split it"
		if f.Raise {
			advice = "raise the server's max_payload, or remove the row"
		}
		return nil, fmt.Errorf("%s: %w: %s", f.name, row.Fault, advice)
	}
	f.log.Warn(LogBadRow, slog.String("input", f.name), slog.Int64("line", row.Line), slog.String("problem", row.Fault.Problem))
	return Message(row, f.limit), nil
}

// Message makes the message of a row. limit is the largest row that a message holds, in
// bytes. A bad row is replaced by its beginning, and headers say why.
func Message(row rowfile.Row, limit int) *nats.Msg {
	m := &nats.Msg{Data: row.Body}
	switch {
	case row.Fault == nil:
	case row.Fault.TooLarge:
		m.Data = row.Fault.Head
		m.Header = nats.Header{
			streams.HeaderRowError: {string(llm.ReasonRowTooLarge)},
			streams.HeaderRowSize:  {strconv.FormatInt(row.Fault.Size, 10)},
			streams.HeaderRowLimit: {strconv.Itoa(limit)},
		}
	default:
		m.Header = nats.Header{streams.HeaderRowProblem: {row.Fault.Error()}}
	}
	return m
}

// Rows are the rows of a job, always the same in the same order.
type Rows interface {
	// Skip skips the first loaded rows, which are in the stream. It is called once, before
	// Read.
	Skip(loaded int64) error
	// Read returns the next row, or io.EOF after the last.
	Read() (*nats.Msg, error)
}
