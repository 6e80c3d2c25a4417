package load

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/rowfile"
)

// ID returns a hash of what the rows of the source depend on, in hex, or "" if the source
// can be read only once. It is Sum where an earlier version, which read quotes as a strict
// layout does, would have read the same rows. Otherwise it depends on the layout, too.
func (s *Source) ID() string {
	layout := s.Layout.String()
	if s.StrayQuotes && !s.Layout.Strict {
		layout += " quotes=text"
	}
	switch {
	case s.Sum == "", layout == "jsonl", layout == "csv":
		return s.Sum
	default:
		sum := sha256.Sum256([]byte(s.Sum + " " + layout))
		return hex.EncodeToString(sum[:])
	}
}

// AllColumns reads the source another time and returns the columns for a table of its
// rows: the columns of a CSV file, or the members of all rows in the order in which they
// first appear. The source must be a file that can be read twice: its Sum is not empty. A
// [config.Error] says that there are too many.
func (s *Source) AllColumns(ctx context.Context) ([]string, error) {
	rows := rowfile.NewReader(s.content(), s.Layout, RowBytesMax)
	var all rowfile.Columns
	for ctx.Err() == nil {
		row, err := rows.Next()
		switch {
		case rows.Columns() != nil:
			return rows.Columns(), nil
		case errors.Is(err, io.EOF):
			return all.Names, nil
		case err == nil && row.Fault == nil:
			_, err = all.Add(row.Body)
		}
		if err != nil {
			return nil, config.Invalid(fmt.Errorf("%s: %w", s.Name, err))
		}
	}
	return nil, context.Cause(ctx)
}

// firstColumns are the columns of the first row that has any. They are complete once
// known is closed.
type firstColumns struct {
	known   chan struct{}
	columns rowfile.Columns
	all     bool  // no row has others
	err     error // says that there are too many, or is nil
	layout  rowfile.Layout
	marked  bool // the text begins with the byte order mark of UTF-8
	looked  bool // known is closed; only the reader of the rows uses it
}

// look looks at a row, or at the end of the file.
func (c *firstColumns) look(rows *rowfile.Reader, row rowfile.Row, err error) {
	switch names := rows.Columns(); {
	case names != nil:
		c.columns.Names, c.all, c.looked = names, true, true
	case err != nil:
		c.looked = true
	case row.Fault == nil:
		c.looked, c.err = c.columns.Add(row.Body)
		c.err = config.Invalid(c.err)
	}
	if c.looked {
		c.layout, c.marked = rows.Layout(), rows.Marked()
		close(c.known)
	}
}

// FirstColumns waits for the first row that has members, or for the end, and returns the
// names of its columns. all reports that no row has others, as in CSV. It is for a source
// that can be read only once. Safe for concurrent use with the other methods.
func (f *FileRows) FirstColumns(ctx context.Context) (names []string, all bool, err error) {
	select {
	case <-f.first.known:
		return f.first.columns.Names, f.first.all, f.first.err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

// FirstLayout waits as FirstColumns does, and returns how the rows lie in the file and
// whether its text begins with the byte order mark of UTF-8. Safe for concurrent use with
// the other methods.
func (f *FileRows) FirstLayout(ctx context.Context) (layout rowfile.Layout, marked bool, err error) {
	if _, _, err := f.FirstColumns(ctx); err != nil {
		return rowfile.Layout{}, false, err
	}
	return f.first.layout, f.first.marked, nil
}
