package cli

import (
	"errors"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/job"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/internal/verify"
)

// Exit codes of the program.
const (
	exitDone        = 0   // done; rows that failed are results, not a failure of the command, unless --fail-on-error is given
	exitFailed      = 1   // failed while running
	exitUsage       = 2   // bad usage or configuration
	exitFatal       = 3   // ended by a fatal provider error
	exitFailedRows  = 4   // done, but more rows failed than --fail-on-error allows
	exitInterrupted = 130 // interrupted before the end, or by a second interrupt
)

// exitCode returns the code that the program ends with when a command has returned err.
func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if config.IsInvalid(err) {
		return exitUsage
	}
	if _, ok := errors.AsType[*verify.UnprovenError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*stage.FatalError](err); ok {
		return exitFatal
	}
	if _, ok := errors.AsType[*job.FailedRowsError](err); ok {
		return exitFailedRows
	}
	if _, ok := errors.AsType[*stopping.InterruptError](err); ok {
		return exitInterrupted
	}
	return exitFailed
}
