// Package logging is the logger of the process: leveled, without secrets, and with repeated warnings sampled.
package logging

import (
	"io"
	"log/slog"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/terminal"
)

// NewConfigured returns the logger of the process by its configuration. No line that it writes holds a secret, whoever put
// it there: an error of the server, of a library, a panic.
func NewConfigured(c *config.Config, w io.Writer) *slog.Logger {
	format := c.Process.LogFormat
	if format == "" && terminal.Is(w) {
		format = "text"
	}
	return New(config.RedactingWriter{To: w, Secrets: c.Secrets()}, c.Process.LogLevel, format)
}

// New returns the logger of the process, which writes to w. level and format are those of [config.ProcessConfig]; an
// empty format is text on a terminal and json elsewhere. Keys are snake_case, messages constant, and neither payloads
// nor secrets are logged: a [config.Secret] says only whether it is set. Storms of warnings are kept out (see [sampler]), so
// whoever has a logger that many lines may go to calls [Flush] at the end.
func New(w io.Writer, level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	switch level {
	case "debug":
		options.Level = slog.LevelDebug
	case "warn":
		options.Level = slog.LevelWarn
	case "error":
		options.Level = slog.LevelError
	}
	var handler slog.Handler = slog.NewJSONHandler(w, options)
	if format == "text" {
		handler = slog.NewTextHandler(w, options)
	}
	return slog.New(newSampler(handler))
}
