package cli

import (
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/internal/terminal"
)

const (
	// exitAfter is when the second signal ends a process that has not ended by itself; exitReport is how long it then takes at
	// most to say so. Together they are less than the 5 s that are promised.
	exitAfter  = 4500 * time.Millisecond
	exitReport = 250 * time.Millisecond
)

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
			terminal.PrintLine(e.Stderr, "stage: not ended %v after the second signal, exiting; still in %s", exitAfter, strings.Join(stillIn(), ", "))
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
