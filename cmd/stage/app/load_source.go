package app

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

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/rowfile"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
)

// processPayloadBytes is the largest message of the server that process embeds: rows of documents are larger than the
// 1 MiB that servers take by default, and 8 MiB is what the server's makers advise at most.
const processPayloadBytes = 8 << 20

// messageOverhead is left for the headers of a row's message.
const messageOverhead = 8 << 10

// source is the input of a job.
type source struct {
	name   string
	file   io.ReadCloser
	format rowfile.Format
	sum    string // of the content; empty for standard input
	rows   int64  // -1: not known
}

// openSource opens the input and, where it can be read twice, counts its rows and sums up its content. When ctx ends, so
// do reads of an input that may never end.
func openSource(ctx context.Context, stdin io.Reader, name, format string) (*source, error) {
	f, err := rowfile.FormatOf(name, format)
	if err != nil {
		return nil, config.Invalid(err)
	}
	s := &source{name: name, format: f, rows: -1}
	if name == "-" {
		s.file = io.NopCloser(stopping.Reader(ctx, stdin))
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
		s.file = readCloser{stopping.Reader(ctx, file), file}
		return s, nil
	}
	s.file = file
	sum := sha256.New()
	reader := rowfile.NewReader(io.TeeReader(file, sum), f, processPayloadBytes)
	for s.rows = 0; ; s.rows++ {
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
	s.sum = hex.EncodeToString(sum.Sum(nil))
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

// fileRows makes messages of the rows of a file.
type fileRows struct {
	name  string
	rows  *rowfile.Reader
	limit int // largest row that a message holds
	// strict makes a row that no message can hold an error.
	strict bool
	log    *slog.Logger
}

// reader reads the source from the beginning.
func (s *source) reader(log *slog.Logger, limit int) *fileRows {
	return &fileRows{name: s.name, rows: rowfile.NewReader(s.file, s.format, limit), limit: limit, log: log}
}

// skip passes over the rows that an earlier run has loaded.
func (f *fileRows) skip(loaded int64) error {
	for i := range loaded {
		if _, err := f.rows.Next(); err != nil {
			return fmt.Errorf("%s: the job has loaded %d rows of it, and now it has %d (%w): it is another input", f.name, loaded, i, err)
		}
	}
	return nil
}

// read returns the next row. One that no message can hold is replaced by its beginning and the reason.
func (f *fileRows) read() (*nats.Msg, error) {
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
	if f.strict && row.Fault.TooLarge {
		return nil, fmt.Errorf("%s: %w: raise the server's max_payload, or take the row out", f.name, row.Fault)
	}
	f.log.Warn("bad row", slog.String("input", f.name), slog.Int64("line", row.Line), slog.String("problem", row.Fault.Problem))
	if row.Fault.TooLarge {
		m.Data = row.Fault.Head
		m.Header = nats.Header{
			headerRowError: {string(llm.ReasonRowTooLarge)},
			headerRowSize:  {strconv.FormatInt(row.Fault.Size, 10)},
			headerRowLimit: {strconv.Itoa(f.limit)},
		}
	}
	return m, nil
}

// rowSource gives the rows of a job, always the same in the same order.
type rowSource interface {
	// skip passes over the first rows, which the stream holds already. It is called once, before read.
	skip(loaded int64) error
	// read returns the next row, or io.EOF.
	read() (*nats.Msg, error)
}
