package job

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stored"
)

// checkOut reports why results can't go to a file, before anything is started. Opening the file empties it, which must
// wait until this process alone has the job.
func checkOut(path, input string) error {
	if path == "" || path == "-" {
		return nil
	}
	if dir, err := os.Stat(filepath.Dir(path)); err != nil {
		return err
	} else if !dir.IsDir() {
		return fmt.Errorf("%s is not a directory", filepath.Dir(path))
	}
	out, err := os.Stat(path)
	if err != nil {
		return nil //nolint:nilerr // it will be created
	}
	in, err := os.Stat(input)
	switch {
	case out.IsDir():
		return errors.New("that is a directory: name a file")
	case err == nil && out.Mode().IsRegular() && os.SameFile(in, out):
		return errors.New("that is the input, whose rows would be lost: name another file")
	}
	return nil
}

// OpenOut creates or empties the file for the results; "" and "-" are stdout. The caller must call closeOut.
func OpenOut(stdout io.Writer, path string) (out io.Writer, closeOut func() error, err error) {
	if path == "" || path == "-" {
		return stdout, func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, config.Invalid(err)
	}
	return f, f.Close, nil
}

// WriteResult writes a result as one line of JSON.
func WriteResult(w io.Writer, r stored.Result) error { return stored.WriteLine(w, r.Body) }
