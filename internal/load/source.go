package load

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/rowfile"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
)

// RowBytesMax is the largest message in bytes of the server that process embeds: rows of documents exceed the default
// of 1 MiB, and 8 MiB is the most that NATS recommends.
const RowBytesMax = 8 << 20

// MessageOverhead is how many bytes of a message are left for the headers of a row.
const MessageOverhead = 8 << 10

// Source is a file of rows, or standard input.
type Source struct {
	Name   string // - is standard input
	File   io.ReadCloser
	Format rowfile.Format
	Sum    string // SHA-256 of the content in hex; empty where it can be read only once
	Rows   int64  // -1: unknown, as it can be read only once
}

// OpenSource opens the input and, where it can be read twice, counts its rows and hashes its content. When ctx ends,
// so do reads of an input that may never end. An input that cannot be used is a [config.Error]. The caller must close
// File.
func OpenSource(ctx context.Context, stdin io.Reader, name, format string) (*Source, error) {
	f, err := rowfile.FormatOf(name, format)
	if err != nil {
		return nil, config.Invalid(err)
	}
	s := &Source{Name: name, Format: f, Rows: -1}
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
		err = fmt.Errorf("%s is a directory: name a JSONL or CSV file", name)
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
	s.File = file
	sum := sha256.New()
	reader := rowfile.NewReader(io.TeeReader(file, sum), f, RowBytesMax)
	for s.Rows = 0; ; s.Rows++ {
		if _, err = reader.Next(); err != nil {
			break
		}
		if ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), file.Close())
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, config.Invalid(errors.Join(fmt.Errorf("%s: %w", name, err), file.Close()))
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.Sum = hex.EncodeToString(sum.Sum(nil))
	return s, nil
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

// FileRows makes messages of the rows of a file. Not safe for concurrent use.
type FileRows struct {
	Strict bool // a row that no message can hold is an error

	name  string // of the file, for errors
	rows  *rowfile.Reader
	limit int          // largest row that a message holds, in bytes
	log   *slog.Logger // bad rows are logged
}

// Reader returns the rows of the source, each of at most limit bytes. It may be called once.
func (s *Source) Reader(log *slog.Logger, limit int) *FileRows {
	return &FileRows{name: s.Name, rows: rowfile.NewReader(s.File, s.Format, limit), limit: limit, log: log}
}

// Skip skips the rows that an earlier run has loaded.
func (f *FileRows) Skip(loaded int64) error {
	for i := range loaded {
		if _, err := f.rows.Next(); err != nil {
			return fmt.Errorf("%s: the job has loaded %d rows of it, and now it has %d (%w): it is another input", f.name, loaded, i, err)
		}
	}
	return nil
}

// Read returns the next row, or [io.EOF] after the last. A row that no message can hold is replaced by its beginning
// and the reason.
func (f *FileRows) Read() (*nats.Msg, error) {
	row, err := f.rows.Next()
	if err != nil {
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s: %w", f.name, err)
		}
		return nil, err
	}
	m := &nats.Msg{Data: row.Body}
	if row.Fault == nil {
		return m, nil
	}
	if f.Strict && row.Fault.TooLarge {
		return nil, fmt.Errorf("%s: %w: raise the server's max_payload, or remove the row", f.name, row.Fault)
	}
	f.log.Warn("bad row", slog.String("input", f.name), slog.Int64("line", row.Line), slog.String("problem", row.Fault.Problem))
	if row.Fault.TooLarge {
		m.Data = row.Fault.Head
		m.Header = nats.Header{
			streams.HeaderRowError: {string(llm.ReasonRowTooLarge)},
			streams.HeaderRowSize:  {strconv.FormatInt(row.Fault.Size, 10)},
			streams.HeaderRowLimit: {strconv.Itoa(f.limit)},
		}
	}
	return m, nil
}

// Rows are the rows of a job, always the same in the same order.
type Rows interface {
	// Skip skips the first rows, which the stream holds already. It is called once, before Read.
	Skip(loaded int64) error
	// Read returns the next row, or io.EOF after the last.
	Read() (*nats.Msg, error)
}
