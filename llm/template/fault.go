package template

import "errors"

// fault is an error in a template or in one rendering.
type fault struct {
	line int // counted from 1
	err  error
	hint string // what to write instead
}

func (f *fault) Error() string { return f.err.Error() }

func (f *fault) Unwrap() error { return f.err }

// at adds line to err, unless it has a line or is nil.
func at(line int, err error) error {
	if _, ok := errors.AsType[*fault](err); ok || err == nil {
		return err
	}
	return &fault{line: line, err: err}
}
