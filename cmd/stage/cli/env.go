package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stopping"
)

// Env is all that a command sees of the process that it runs in: its arguments, environment, streams and signals. A
// test makes one of its own and runs commands without touching the process. It is not changed while commands run.
type Env struct {
	Args    []string          // arguments after the program's name
	Environ map[string]string // environment variables
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer

	// LimitMemory tells the garbage collector how many bytes the process needs at most. Within them it may let the heap
	// grow to three times what is in use, where it would collect at twice. Nil: it is not told.
	LimitMemory func(bytes int64)

	// Exit ends the process at once, whatever still runs, when the second signal has not ended it (see [Env.Contexts]). Nil:
	// nothing does.
	Exit func(code int)

	secrets *config.Secrets // of the configuration that was loaded, for the error that the command ends with

	// Notify relays signals to c, as os/signal.Notify does, until stop is called. Nil: there are no signals.
	Notify func(c chan<- os.Signal, signals ...os.Signal) (stop func())
}

// OSEnv returns the environment of this process.
func OSEnv() *Env {
	environ := make(map[string]string)
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		environ[name] = value
	}
	return &Env{
		Args: os.Args[1:], Environ: environ, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		LimitMemory: func(bytes int64) {
			if environ["GOMEMLIMIT"] == "" {
				debug.SetMemoryLimit(bytes)
			}
			if environ["GOGC"] == "" {
				debug.SetGCPercent(200)
			}
		},
		Exit: os.Exit,
		Notify: func(c chan<- os.Signal, signals ...os.Signal) func() {
			signal.Notify(c, signals...)
			return func() { signal.Stop(c) }
		},
	}
}

// signalEcho is how long after the first signal another one is taken for the same: timeout(1) and some shells signal the
// process and then its group.
const signalEcho = 200 * time.Millisecond

// Contexts returns the two contexts of a command that stops in two steps. The first SIGINT or SIGTERM cancels soft:
// take no new work, finish what is begun. The second cancels hard, from which soft descends: stop at once. The cause
// of both is an [*stopping.InterruptError]; a third signal ends the process, as it would have without this. So does the second, by
// Env.Exit, if what can't be cancelled keeps it from ending within 5 s. Both end with parent. The caller calls stop when
// the command is done; it waits until the signals are released.
func (e *Env) Contexts(parent context.Context) (soft, hard context.Context, stop func()) {
	hard, cancelHard := context.WithCancelCause(parent)
	soft, cancelSoft := context.WithCancelCause(hard)
	signals, release := e.subscribe(os.Interrupt, syscall.SIGTERM)
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
				case time.Since(first) >= signalEcho:
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

// Reloads returns a channel that gets a value when SIGHUP asks for secrets to be read again. Signals that come while
// one waits are one. The caller calls stop when it has done with the channel.
func (e *Env) Reloads() (reloads <-chan os.Signal, stop func()) {
	return e.subscribe(syscall.SIGHUP)
}

func (e *Env) subscribe(signals ...os.Signal) (c chan os.Signal, stop func()) {
	c = make(chan os.Signal, 2) // room for the second that follows the first at once
	if e.Notify == nil {
		return c, func() {}
	}
	return c, e.Notify(c, signals...)
}
