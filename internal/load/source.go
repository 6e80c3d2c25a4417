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

// RowBytesMax is the largest message of the server that process embeds: rows of documents are larger than the
// 1 MiB that servers take by default, and 8 MiB is what the server's makers advise at most.
const RowBytesMax = 8 << 20

// MessageOverhead is left for the headers of a row's message.
const MessageOverhead = 8 << 10

// Source is the input of a job.
type Source struct {
	Name   string
	File   io.ReadCloser
	Format rowfile.Format
	Sum    string // of the content; empty for standard input
	Rows   int64  // -1: not known
}

// OpenSource opens the input and, where it can be read twice, counts its rows and sums up its content. When ctx ends, so
// do reads of an input that may never end.
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
		s.File = readCloser{stopping.Reader(ctx, file), file}
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

// readCloser reads from one and closes another.
type readCloser struct {
	io.Reader
	io.Closer
}

// openFile opens a file to read it. That of a named pipe waits for somebody who writes to it, and ctx ends the wait.
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

// FileRows makes messages of the rows of a file.
type FileRows struct {
	Name  string
	Rows  *rowfile.Reader
	limit int // largest row that a message holds
	// Strict makes a row that no message can hold an error.
	Strict bool
	Log    *slog.Logger
}

// Reader reads the source from the beginning.
func (s *Source) Reader(log *slog.Logger, limit int) *FileRows {
	return &FileRows{Name: s.Name, Rows: rowfile.NewReader(s.File, s.Format, limit), limit: limit, Log: log}
}

// Skip passes over the rows that an earlier run has loaded.
func (f *FileRows) Skip(loaded int64) error {
	for i := range loaded {
		if _, err := f.Rows.Next(); err != nil {
			return fmt.Errorf("%s: the job has loaded %d rows of it, and now it has %d (%w): it is another input", f.Name, loaded, i, err)
		}
	}
	return nil
}

// Read returns the next row. One that no message can hold is replaced by its beginning and the reason.
func (f *FileRows) Read() (*nats.Msg, error) {
	row, err := f.Rows.Next()
	if err != nil {
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s: %w", f.Name, err)
		}
		return nil, err
	}
	m := &nats.Msg{Data: row.Body}
	if row.Fault == nil {
		return m, nil
	}
	if f.Strict && row.Fault.TooLarge {
		return nil, fmt.Errorf("%s: %w: raise the server's max_payload, or take the row out", f.Name, row.Fault)
	}
	f.Log.Warn("bad row", slog.String("input", f.Name), slog.Int64("line", row.Line), slog.String("problem", row.Fault.Problem))
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

// Rows gives the rows of a job, always the same in the same order.
type Rows interface {
	// Skip passes over the first rows, which the stream holds already. It is called once, before read.
	Skip(loaded int64) error
	// Read returns the next row, or io.EOF.
	Read() (*nats.Msg, error)
}
