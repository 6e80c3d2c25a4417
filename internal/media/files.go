package media

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm"
)

// Files are the files below a directory. A path that leaves it is an error, whether by
// "..", because it is absolute, or by a symbolic link: rows may come from somebody who may
// not read the rest of the disk.
type Files struct{ root *os.Root }

// OpenFiles opens the directory at a path.
func OpenFiles(path string) (*Files, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Files{root}, nil
}

// Close closes the directory. Nil has none.
func (f *Files) Close() error {
	if f == nil {
		return nil
	}
	return f.root.Close()
}

// describe reads a file to its end.
func (f *Files) describe(path string, limit int64) (*llm.Content, error) {
	file, err := f.open(path)
	if err != nil {
		return nil, err
	}
	c, err := llm.ReadContent(file, limit)
	if err != nil {
		return nil, fmt.Errorf("the file %q: %w", excerpt.Of(path), err)
	}
	c.Open = func(context.Context) (io.ReadCloser, error) {
		file, err := f.open(path)
		if err != nil {
			return nil, err
		}
		return file, nil
	}
	return c, nil
}

// open opens a regular file. The error is an [*llm.Error] of an invalid row, or an
// [*llm.AwayError] where this process has no descriptor left.
func (f *Files) open(path string) (*os.File, error) {
	info, err := f.root.Stat(path) // before it is opened: the open of a pipe waits for a writer
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("is no regular file")
	}
	var file *os.File
	if err == nil {
		file, err = f.root.Open(path)
	}
	switch {
	case err == nil:
		return file, nil
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return nil, &llm.AwayError{Source: path, Err: err}
	case errors.Is(err, fs.ErrNotExist):
		err = errors.New("there is no such file below the directory of the input")
	}
	if problem, is := errors.AsType[*fs.PathError](err); is { // it repeats the path
		err = problem.Err
	}
	return nil, llm.InvalidMedia(fmt.Errorf("the file %q: %w", excerpt.Of(path), err))
}
