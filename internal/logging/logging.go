// Package logging is the logger of the process: leveled, without secrets, and with
// repeated warnings sampled.
package logging

import (
	"io"
	"log/slog"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/terminal"
)

// NewConfigured returns the logger of the process by its configuration, writing to w. No
// line holds a secret of the configuration, wherever it comes from: an error of the
// server, of a library, a panic. See [New].
func NewConfigured(c *config.Config, w io.Writer) *slog.Logger {
	format := c.Process.LogFormat
	if format == "" && terminal.Is(w) {
		format = "text"
	}
	if format != "text" {
		w = terminal.JSON(w)
	}
	return New(config.RedactingWriter{To: w, Secrets: c.Secrets()}, c.Process.LogLevel, format)
}

// New returns a logger that writes to w. level and format are those of
// [config.ProcessConfig]; an unknown level is info, an empty format json. Keys are
// snake_case, messages constant, and neither rows nor secrets are logged: a
// [config.Secret] shows only whether it is set. Repeated warnings and errors are sampled
// (see [sampler]), so the end of the work must call [Flush].
func New(w io.Writer, level, format string) *slog.Logger {
	lowest := slog.LevelInfo
	_ = lowest.UnmarshalText([]byte(level))
	options := &slog.HandlerOptions{Level: lowest}
	var handler slog.Handler = slog.NewJSONHandler(w, options)
	if format == "text" {
		handler = slog.NewTextHandler(w, options)
	}
	return slog.New(newSampler(handler))
}
