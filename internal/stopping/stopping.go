// Package stopping keeps a process that stops from waiting: it bounds what is done at the end, and gives up reads and
// writes that nobody serves.
package stopping

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// outputPatience is how long an interrupted command waits for the reader of its output.
const outputPatience = 2 * time.Second

// After calls f when ctx has ended and then d has passed, unless stop is called before.
func After(ctx context.Context, d time.Duration, f func()) (stop func()) {
	over, stop := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, f)
		context.AfterFunc(over, func() { timer.Stop() })
	})
	return stop
}

// Within returns a context for what is done at the end of a process: it lasts for patience, but once hard has ended only
// for short. The caller must call cancel.
func Within(hard context.Context, patience, short time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithTimeout(context.WithoutCancel(hard), patience)
	stop := After(hard, short, end)
	return ctx, func() {
		stop()
		end()
	}
}

// Reader returns a reader of r whose reads end with the cause of ctx when ctx does. A read of a terminal or a pipe
// can't be cancelled: the one under way goes on by itself, and what it brings is lost.
func Reader(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	go func() { // ends with the read that is under way
		_, err := io.Copy(in, r)
		_ = in.CloseWithError(err) // nil: the end
	}()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) })
	return out
}

// Writer passes writes on until ctx has ended for outputPatience. Then the one under way (to a pipe that
// nobody reads) is abandoned: it fails, as do all later ones. Not safe for concurrent use.
type Writer struct {
	to        io.Writer
	giveUp    <-chan struct{}
	abandoned func() error
}

func NewWriter(ctx context.Context, to io.Writer) *Writer {
	giveUp := make(chan struct{})
	After(ctx, outputPatience, func() { close(giveUp) })
	return &Writer{to: to, giveUp: giveUp, abandoned: func() error {
		return fmt.Errorf("%w, and nobody reads the output", context.Cause(ctx))
	}}
}

// Write implements [io.Writer]. A write that was abandoned still uses p.
func (w *Writer) Write(p []byte) (int, error) {
	select {
	case <-w.giveUp:
		return 0, w.abandoned()
	default:
	}
	type outcome struct {
		n   int
		err error
	}
	written := make(chan outcome, 1)
	go func() {
		n, err := w.to.Write(p)
		written <- outcome{n, err}
	}()
	select {
	case o := <-written:
		return o.n, o.err
	case <-w.giveUp:
		return 0, w.abandoned()
	}
}

// InterruptError is the cause with which a signal cancels the contexts of [app.Env.Contexts].
type InterruptError struct {
	Signal os.Signal
}

// Error names the signal.
func (e *InterruptError) Error() string { return "stopped by signal: " + e.Signal.String() }
