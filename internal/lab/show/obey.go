package show

import (
	"bufio"
	"context"
	"errors"
	"io"
)

// errTold is why a replica ends.
var errTold = errors.New("the demo that has started this replica ends it")

// Obey returns the contexts of a replica, which stops when it is told to: softly at the
// first byte of in, at once when in ends. ended is called then.
func Obey(ctx context.Context, in io.Reader, ended func()) (soft, hard context.Context) {
	hard, endHard := context.WithCancelCause(ctx)
	soft, endSoft := context.WithCancelCause(hard)
	go func() { // ends with in
		r := bufio.NewReader(in)
		if _, err := r.ReadByte(); err == nil {
			endSoft(errTold)
			_, _ = io.Copy(io.Discard, r)
		}
		endHard(errTold)
		ended()
	}()
	return soft, hard
}
