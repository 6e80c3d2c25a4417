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
	// exitAfter is how long after the second signal a process that still runs is ended; exitReport bounds how long
	// reporting it may take. Together they are less than the 5 s that [Env.Contexts] promises.
	exitAfter  = 4500 * time.Millisecond
	exitReport = 250 * time.Millisecond
)

// exitSoon ends the process after exitAfter if it still runs. It is the last resort: whatever takes a context ends
// sooner. What remains are system calls that don't return (a write to a pipe without a reader, a disk that does not
// respond) and libraries that can't be cancelled (the embedded server's shutdown, the C library's resolver).
func (e *Env) exitSoon() {
	if e.Exit == nil {
		return
	}
	time.AfterFunc(exitAfter, func() {
		reported := make(chan struct{})
		go func() { // standard error may be what is stuck
			defer close(reported)
			terminal.PrintLine(e.Stderr, "stage: not ended %v after the second signal, exiting; still in %s", exitAfter, strings.Join(stillIn(), ", "))
		}()
		select {
		case <-reported:
		case <-time.After(exitReport):
		}
		e.Exit(exitInterrupted)
	})
}

// stillIn lists the functions of this program that goroutines are in.
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
