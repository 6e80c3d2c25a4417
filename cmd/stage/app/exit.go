package app

import (
	"errors"
	"os"
)

// Exit codes of the program.
const (
	exitDone        = 0   // done; rows that failed are results, not a failure of the command
	exitFailed      = 1   // failed while running
	exitUsage       = 2   // bad usage or configuration
	exitFatal       = 3   // ended by a fatal provider error
	exitInterrupted = 130 // interrupted before the end, or by a second interrupt
)

// exitError gives the error of a command an exit code other than 1.
type exitError struct {
	code int
	err  error
}

// exitWith returns err with the exit code that the program ends with; nil for nil.
func exitWith(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

// InterruptError is the cause with which a signal cancels the contexts of [Env.Contexts].
type InterruptError struct {
	Signal os.Signal
}

// Error names the signal.
func (e *InterruptError) Error() string { return "stopped by signal: " + e.Signal.String() }

// exitCode is the code with which the program ends when a command returned err.
func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[*InterruptError](err); ok {
		return exitInterrupted
	}
	return exitFailed
}
