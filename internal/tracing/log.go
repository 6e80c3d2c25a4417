package tracing

import (
	"context"
	"log/slog"
)

// otelHandler logs the messages of OpenTelemetry's packages. They have verbosities in
// place of levels: 1 is a warning, 4 information, 8 for debugging, and slog has their
// negatives. The last two are many: both are logged at debug.
type otelHandler struct{ slog.Handler }

// otelLevel is the level of a message with a verbosity.
func otelLevel(verbosity slog.Level) slog.Level {
	switch {
	case verbosity >= slog.LevelInfo:
		return verbosity // an error
	case verbosity == -1:
		return slog.LevelWarn
	default:
		return slog.LevelDebug
	}
}

// Enabled implements [slog.Handler].
func (h otelHandler) Enabled(ctx context.Context, verbosity slog.Level) bool {
	return h.Handler.Enabled(ctx, otelLevel(verbosity))
}

// Handle implements [slog.Handler].
func (h otelHandler) Handle(ctx context.Context, r slog.Record) error {
	message := slog.NewRecord(r.Time, otelLevel(r.Level), "tracing", r.PC)
	message.AddAttrs(slog.String("message", r.Message))
	r.Attrs(func(a slog.Attr) bool {
		message.AddAttrs(a)
		return true
	})
	return h.Handler.Handle(ctx, message)
}

// WithAttrs implements [slog.Handler].
func (h otelHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return otelHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h otelHandler) WithGroup(name string) slog.Handler {
	return otelHandler{h.Handler.WithGroup(name)}
}
