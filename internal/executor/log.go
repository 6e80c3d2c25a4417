package executor

import (
	"log/slog"
	"time"

	"github.com/llm-stage/stage/internal/terminal"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// The log tells the way of each row at debug, and at warn what failed. It holds no text of rows, requests or replies,
// and no error text that may quote one: the audit has those.

// rowAttrs name the row of a line.
func rowAttrs(row *consumer.Row, more ...any) []any {
	return append([]any{slog.Int("partition", row.Partition), slog.Uint64("sequence", row.Seq)}, more...)
}

// logQueued is for a row that waits to be rendered and called for.
func (e *Executor) logQueued(row *consumer.Row) {
	if e.debug { // asked first, so that a log without it costs nothing
		e.log.Debug("row queued", rowAttrs(row, slog.Int("bytes", len(row.Body)))...)
	}
}

// logStarted is for a row whose first call is about to be made.
func (e *Executor) logStarted(row *consumer.Row, a pool.Attempt) {
	if e.debug && a.Number == 1 {
		e.log.Debug("row started", rowAttrs(row, slog.Float64("waited_ms", terminal.Milliseconds(a.Dispatched.Sub(row.Taken))))...)
	}
}

// logCall is for an attempt that has ended. One that met no capacity is no trouble: the throttle makes the stage meet
// some, and the summary counts them.
func (e *Executor) logCall(row *consumer.Row, a pool.Attempt, c *auditlog.Call, fault *llm.Error) {
	transient := fault != nil && fault.Class == llm.Transient
	if !e.debug && !transient {
		return
	}
	attrs := rowAttrs(row, slog.Int("attempt", a.Number), slog.String("provider", c.Provider), slog.String("model", c.Model),
		slog.String("status", string(c.Status)), slog.Int("status_code", c.StatusCode), slog.Float64("latency_ms", terminal.Milliseconds(c.Latency)),
		slog.Float64("dispatch_delay_ms", terminal.Milliseconds(a.DispatchDelay)))
	if fault != nil {
		attrs = append(attrs, slog.String("class", c.ErrorClass), slog.String("reason", string(fault.Reason)))
	}
	if c.RetryAfter > 0 {
		attrs = append(attrs, slog.Float64("retry_after_ms", terminal.Milliseconds(c.RetryAfter)))
	}
	if transient {
		e.log.Warn("a call failed, its row is asked again or fails", attrs...)
	} else {
		e.log.Debug("call", attrs...)
	}
}

// logFinished is for a row that was answered or handed back.
func (e *Executor) logFinished(row *consumer.Row, reply *consumer.Reply) {
	failed := reply.Failed && !reply.HandedBack && reply.Event.Source != auditlog.SourceUpstream
	if !e.debug && !failed {
		return
	}
	if reply.HandedBack {
		e.log.Debug("row handed back", rowAttrs(row)...)
		return
	}
	ev := &reply.Event
	attrs := rowAttrs(row, slog.String("source", ev.Source), slog.Int("attempts", ev.Attempts), slog.Int("capacity_retries", ev.CapacityRetries),
		slog.Float64("took_ms", terminal.Milliseconds(time.Since(row.Taken))), slog.Int("bytes", len(reply.Body)))
	if failed {
		e.log.Warn("row failed", append(attrs, slog.String("reason", ev.Reason))...)
	} else {
		e.log.Debug("row finished", attrs...)
	}
}
