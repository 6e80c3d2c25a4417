// Package stopping bounds what a process waits for when it stops: work at the end, and
// reads and writes that may block.
package stopping

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// outputPatience bounds how long an interrupted command waits for the reader of its output.
const outputPatience = 2 * time.Second

// Background runs each function in a goroutine, with a context that outlasts ctx. stop
// ends that context and waits for them.
func Background(ctx context.Context, functions ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, f := range functions {
		running.Go(func() { f(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// After calls f once d has passed after the end of ctx, unless stop is called before. f
// runs in its own goroutine.
func After(ctx context.Context, d time.Duration, f func()) (stop func()) {
	over, stop := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, f)
		context.AfterFunc(over, func() { timer.Stop() })
	})
	return stop
}

// Within returns a context for work at the end of a process: it lasts for patience, but
// ends no later than short after the end of hard. The caller must call cancel.
func Within(hard context.Context, patience, short time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithTimeout(context.WithoutCancel(hard), patience)
	stop := After(hard, short, end)
	return ctx, func() {
		stop()
		end()
	}
}

// Reader returns a reader of r whose reads end with the cause of ctx when ctx ends. A
// read of a terminal or a pipe can't be cancelled: the one under way continues in the
// background, and what it reads is lost.
func Reader(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	go func() { // ends with the read under way
		_, err := io.Copy(in, r)
		_ = in.CloseWithError(err) // nil: the end
	}()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) })
	return out
}

// Writer passes writes on until two seconds after the end of a context. Then the write
// under way (to a pipe without a reader) is abandoned: it fails, as do all later ones.
// Create it with [NewWriter]. Not safe for concurrent use.
type Writer struct {
	to        io.Writer
	giveUp    <-chan struct{}
	abandoned func() error
}

// NewWriter returns a writer to another one, until ctx ends.
func NewWriter(ctx context.Context, to io.Writer) *Writer {
	giveUp := make(chan struct{})
	After(ctx, outputPatience, func() { close(giveUp) })
	return &Writer{to: to, giveUp: giveUp, abandoned: func() error {
		return fmt.Errorf("%w, and the output is not read", context.Cause(ctx))
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

// InterruptError is the cause of a context that a signal has cancelled.
type InterruptError struct{ Signal os.Signal }

// Error names the signal.
func (e *InterruptError) Error() string { return "stopped by signal: " + e.Signal.String() }
