package job

import (
	"context"
	"log/slog"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/terminal"
)

// withoutRows returns the logger of a job, without the lines of failed rows where a
// person sees them in a better way: on a terminal the bar counts them, and the first of
// each reason is printed above it. A log level below warn asks for all lines, and gets
// them.
func withoutRows(log *slog.Logger, w *terminal.Console, cfg *config.Config) *slog.Logger {
	if !terminal.Is(w) || cfg.Process.LogLevel != "warn" {
		return log
	}
	return slog.New(rowFilter{log.Handler()})
}

// rowFilter is a handler that drops the lines of failed rows.
type rowFilter struct{ slog.Handler }

// Handle implements [slog.Handler].
func (f rowFilter) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == executor.LogRowFailed || r.Message == load.LogBadRow {
		return nil
	}
	return f.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (f rowFilter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return rowFilter{f.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (f rowFilter) WithGroup(name string) slog.Handler {
	return rowFilter{f.Handler.WithGroup(name)}
}
