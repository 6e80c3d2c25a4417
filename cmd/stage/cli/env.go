package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/terminal"
)

// gcPercent is the garbage that the heap may hold for each 100 bytes in use, within the
// memory limit. Few bytes are in use where rows are small and calls are fast, so with Go's
// default of 100 the collector runs a dozen times a second there. With 400 a row of an
// instant LLM takes .94 of the CPU that it takes with 200, and the process 40 MiB more.
const gcPercent = 400

// Env is the process as a command sees it: arguments, environment, streams and signals. A
// test creates its own, and runs commands without touching the test's process. It is
// read-only once a command runs.
type Env struct {
	Args    []string          // arguments after the program's name
	Environ map[string]string // environment variables
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer

	// LimitMemory sets how many bytes the process needs at most, for the garbage
	// collector. Within them it lets the heap grow to five times the memory in use,
	// rather than to twice: with 20 MB in use, to 100 MB. If it is nil, there is no
	// limit.
	LimitMemory func(bytes int64)

	// Exit ends the process immediately, even if parts still run, when the second signal
	// has not ended it (see [Env.Contexts]). If it is nil, nothing ends it.
	Exit func(code int)

	// Executable is the path of this program, for a command that starts it again. It is
	// empty if the path is unknown.
	Executable string

	// Setenv sets a variable for the libraries that read the environment of the process.
	// It may be nil.
	Setenv func(name, value string)

	// HangupEnds is set where SIGHUP means that the terminal of the process has closed.
	// Then SIGHUP ends run and demo, as SIGTERM does. If it is not set, SIGHUP asks run to
	// read its secrets again.
	HangupEnds bool

	// secrets are those of the configuration that was loaded. Main sets it, and removes
	// them from the error that the command ends with.
	secrets *config.Secrets

	// Notify relays signals to c, as os/signal.Notify does, until stop is called. If it
	// is nil, there are no signals.
	Notify func(c chan<- os.Signal, signals ...os.Signal) (stop func())
}

// OSEnv returns the environment of this process.
func OSEnv() *Env {
	environ := make(map[string]string)
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		environ[name] = value
	}
	executable, _ := os.Executable() // the one command that needs it reports that it is unknown
	return &Env{
		Args: os.Args[1:], Executable: executable, Environ: environ, Stdin: os.Stdin,
		Stdout: os.Stdout, Stderr: os.Stderr,
		LimitMemory: func(bytes int64) {
			if environ["GOMEMLIMIT"] == "" {
				debug.SetMemoryLimit(bytes)
			}
			if environ["GOGC"] == "" {
				debug.SetGCPercent(gcPercent)
			}
		},
		Exit:       os.Exit,
		HangupEnds: endsOnHangup(),
		// The name was read as that of a variable, so it is a valid one.
		Setenv: func(name, value string) { _ = os.Setenv(name, value) },
		Notify: func(c chan<- os.Signal, signals ...os.Signal) func() {
			signal.Notify(c, signals...)
			return func() { signal.Stop(c) }
		},
	}
}

// endsOnHangup reports whether this process has a controlling terminal and must end with
// it. nohup makes a process ignore SIGHUP, so that it outlives its terminal.
func endsOnHangup() bool {
	if signal.Ignored(syscall.SIGHUP) {
		return false
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	return tty.Close() == nil
}

// readInput reads a file, or standard input if the name is "-", until ctx ends.
func (e *Env) readInput(ctx context.Context, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stopping.Reader(ctx, e.Stdin))
	}
	return os.ReadFile(name)
}

// canAsk returns an error where standard input is no terminal: a script must not hang at
// a question that nobody sees. instead names the flags to give in place of an answer.
func (e *Env) canAsk(instead string) error {
	if terminal.Is(e.Stdin) {
		return nil
	}
	return config.Invalid(errors.New("there is no terminal to ask on: " + instead))
}

// ask asks a question on standard error, and returns declined unless the answer is yes. The
// caller has called canAsk.
func (e *Env) ask(question string, declined error) error {
	fmt.Fprint(e.Stderr, question+" [y/N] ") //nolint:errcheck // nowhere left to report it
	answer, err := bufio.NewReader(e.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return declined
	}
	return nil
}

// signalEcho is how long after the first signal another one counts as the same:
// timeout(1) and some shells signal the process and then its group.
const signalEcho = 200 * time.Millisecond

// Contexts returns the two contexts of a command that stops in two steps:
//
//	signal                                  soft   hard   the process
//	first SIGINT, SIGTERM or one of also    ends          finishes its work
//	second one, 200 ms later or more        ends   ends   stops immediately
//	4.5 s after the second                                is ended by Env.Exit
//	third one                                             is ended by the signal itself
//
// SIGHUP never counts as the second signal, since shell and system both send it when a
// terminal closes. hard is the parent of soft, and the cause of both is a
// [*stopping.InterruptError]. The last two steps are for code that can't be cancelled,
// such as a write to a pipe that nobody reads. Both contexts end with parent. The caller
// must call stop when the command is done; it waits until the signals are released.
func (e *Env) Contexts(
	parent context.Context, also ...os.Signal,
) (soft, hard context.Context, stop func()) {
	hard, cancelHard := context.WithCancelCause(parent)
	soft, cancelSoft := context.WithCancelCause(hard)
	signals, release := e.subscribe(append([]os.Signal{os.Interrupt, syscall.SIGTERM}, also...)...)
	var relay sync.WaitGroup
	relay.Go(func() {
		defer release()
		var first time.Time
		for hard.Err() == nil {
			select {
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					cancelSoft(&stopping.InterruptError{Signal: s})
				case s != syscall.SIGHUP && time.Since(first) >= signalEcho:
					cancelHard(&stopping.InterruptError{Signal: s})
					e.exitSoon()
				}
			case <-hard.Done():
			}
		}
	})
	return soft, hard, func() {
		cancelHard(nil)
		relay.Wait()
		cancelSoft(nil)
	}
}

const (
	// exitAfter is how long after the second signal a process that still runs is ended.
	// exitReport bounds how long the report of that may take. Together they are less than
	// the 5 s that users are promised.
	exitAfter  = 4500 * time.Millisecond
	exitReport = 250 * time.Millisecond
)

// exitSoon ends the process after exitAfter if it still runs. It is the last resort: code
// that takes a context ends sooner. It is needed for system calls that don't return (a
// write to a pipe without a reader, a disk that does not respond) and for libraries that
// can't be cancelled (the embedded server's shutdown, the C library's resolver).
func (e *Env) exitSoon() {
	if e.Exit == nil {
		return
	}
	time.AfterFunc(exitAfter, func() {
		reported := make(chan struct{})

		go func() { // standard error itself may be stuck
			defer close(reported)
			terminal.PrintLine(e.Stderr,
				"stage: not ended %v after the second signal, exiting; still in %s", exitAfter,
				strings.Join(stillIn(), ", "))
		}()
		select {
		case <-reported:
		case <-time.After(exitReport):
		}
		e.Exit(exitInterrupted)
	})
}

// stillIn lists the functions of this program in which goroutines are, for the report of
// exitSoon. Without it, nobody could find out what was stuck.
func stillIn() []string {
	const module = "github.com/llm-stage/stage/"
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var names []string
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		_, name, found := strings.Cut(stack, "\n"+module) // the innermost call of the program
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

// Reloads returns a channel that gets a value at each SIGHUP, which asks for secrets to
// be read again. Signals that arrive while one waits may be merged. With HangupEnds the
// channel is nil, which never has a value. The caller must call stop when it no longer
// reads the channel.
func (e *Env) Reloads() (reloads <-chan os.Signal, stop func()) {
	if e.HangupEnds {
		return nil, func() {}
	}
	return e.subscribe(syscall.SIGHUP)
}

// subscribe relays signals to a channel until stop is called.
func (e *Env) subscribe(signals ...os.Signal) (c chan os.Signal, stop func()) {
	c = make(chan os.Signal, 2) // room for the second that follows the first at once
	if e.Notify == nil {
		return c, func() {}
	}
	return c, e.Notify(c, signals...)
}
