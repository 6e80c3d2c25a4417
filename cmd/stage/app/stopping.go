package app

import (
	"context"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

const (
	// exitAfter is when the second signal ends a process that has not ended by itself; exitReport is how long it then takes at
	// most to say so. Together they are less than the 5 s that are promised.
	exitAfter  = 4500 * time.Millisecond
	exitReport = 250 * time.Millisecond
)

// outputPatience is how long an interrupted command waits for the reader of its output.
const outputPatience = 2 * time.Second

// after calls f when ctx has ended and then d has passed, unless stop is called before.
func after(ctx context.Context, d time.Duration, f func()) (stop func()) {
	over, stop := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, f)
		context.AfterFunc(over, func() { timer.Stop() })
	})
	return stop
}

// within returns a context for what is done at the end of a process: it lasts for patience, but once hard has ended only
// for short. The caller must call cancel.
func within(hard context.Context, patience, short time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithTimeout(context.WithoutCancel(hard), patience)
	stop := after(hard, short, end)
	return ctx, func() {
		stop()
		end()
	}
}

// interruptible returns a reader of r whose reads end with the cause of ctx when ctx does. A read of a terminal or a pipe
// can't be cancelled: the one under way goes on by itself, and what it brings is lost.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	go func() { // ends with the read that is under way
		_, err := io.Copy(in, r)
		_ = in.CloseWithError(err) // nil: the end
	}()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) })
	return out
}

// interruptibleWriter passes writes on until ctx has ended for outputPatience. Then the one under way (to a pipe that
// nobody reads) is abandoned: it fails, as do all later ones. Not safe for concurrent use.
type interruptibleWriter struct {
	to        io.Writer
	giveUp    <-chan struct{}
	abandoned func() error
}

func newInterruptibleWriter(ctx context.Context, to io.Writer) *interruptibleWriter {
	giveUp := make(chan struct{})
	after(ctx, outputPatience, func() { close(giveUp) })
	return &interruptibleWriter{to: to, giveUp: giveUp, abandoned: func() error {
		return fmt.Errorf("%w, and nobody reads the output", context.Cause(ctx))
	}}
}

// Write implements [io.Writer]. A write that was abandoned still uses p.
func (w *interruptibleWriter) Write(p []byte) (int, error) {
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

// exitSoon ends the process in a moment, if it has not ended by then. It is the last resort: everything that takes a
// context ends sooner by itself. What is left are system calls that don't return (a write to a pipe that nobody reads, a
// disk that does not answer) and libraries without a way to cancel them (the embedded server's shutdown, the C library's
// resolver).
func (e *Env) exitSoon() {
	if e.Exit == nil {
		return
	}
	time.AfterFunc(exitAfter, func() {
		said := make(chan struct{})
		go func() { // standard error may be what is stuck
			defer close(said)
			say(e.Stderr, "stage: not ended %v after the second signal, exiting; still in %s", exitAfter, strings.Join(stillIn(), ", "))
		}()
		select {
		case <-said:
		case <-time.After(exitReport):
		}
		e.Exit(exitInterrupted)
	})
}

// stillIn names the functions of this program that goroutines are in.
func stillIn() []string {
	const module = "github.com/llm-stage/stage/"
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var names []string
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		_, name, found := strings.Cut(stack, "\n"+module) // of the innermost call
		if !found {
			continue
		}
		name, _, _ = strings.Cut(name, "\n")
		if i := strings.LastIndexByte(name, '('); i > 0 { // its arguments
			name = name[:i]
		}
		names = append(names, path.Base(name))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
