package executor

import (
	"log/slog"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// rowLog logs each step of a row at debug, and failures at warn with their cause. It holds
// no text of rows: where a message quotes the row, that part is left out. The audit has it
// all. It is safe for concurrent use.
type rowLog struct {
	*slog.Logger
	debug bool // whether steps are logged, so that a log without them costs no allocation
}

// LogRowFailed is the message of the line that each failed row has in the log.
const LogRowFailed = "row failed"

// rowAttrs returns the attributes that identify the row of a log line.
func rowAttrs(row *consumer.Row, more ...any) []any {
	return append([]any{slog.Int("partition", row.Partition), slog.Uint64("sequence", row.Seq)}, more...)
}

// jobAttrs returns the log attributes of a job: the row's, and the element it is for.
func jobAttrs(j *job, more ...any) []any {
	if j.fan != nil {
		more = append([]any{slog.Int("item", j.index)}, more...)
	}
	return rowAttrs(j.row, more...)
}

// queued logs a row that waits to be rendered.
func (l *rowLog) queued(row *consumer.Row) {
	if l.debug {
		l.Debug("row queued", rowAttrs(row, slog.Int("bytes", len(row.Body)))...)
	}
}

// replaced logs that rows have a member that is not in their results. It is called once.
func (l *rowLog) replaced(field string) {
	l.Warn("rows have a member that is replaced in their results: rename it in the rows, or set STAGE_RESPONSE_FIELD to another name",
		slog.String("field", field))
}

// started logs a row whose first call is about to be made.
func (l *rowLog) started(j *job, a pool.Attempt) {
	if l.debug && a.Number == 1 {
		l.Debug("row started", jobAttrs(j, slog.Float64("waited_ms", terminal.Milliseconds(a.Dispatched.Sub(j.row.Taken))))...)
	}
}

// call logs an attempt that has ended. Only a transient error is worth a warning: some
// attempts without capacity are how the throttle finds its rate, and the summary counts
// them; other errors fail the row, which is logged. texts returns the texts that the call
// was made for, because the error may quote them.
func (l *rowLog) call(j *job, a pool.Attempt, c *auditlog.Call, failure *llm.Error, texts func() []string) {
	transient := failure != nil && failure.Class == llm.Transient
	if !l.debug && !transient {
		return
	}
	attrs := jobAttrs(j, slog.Int("attempt", a.Number), slog.String("provider", c.Provider), slog.String("model", c.Model),
		slog.String("status", string(c.Status)), slog.Int("status_code", c.StatusCode), slog.Float64("latency_ms", terminal.Milliseconds(c.Latency)),
		slog.Float64("dispatch_delay_ms", terminal.Milliseconds(a.DispatchDelay)))
	if failure != nil {
		attrs = append(attrs, slog.String("class", c.ErrorClass), slog.String("reason", string(failure.Reason)))
	}
	if transient {
		attrs = append(attrs, slog.String("error", excerpt.WithoutAll(failure.Error(), texts()...)))
	}
	if c.RetryAfter > 0 {
		attrs = append(attrs, slog.Float64("retry_after_ms", terminal.Milliseconds(c.RetryAfter)))
	}
	if transient {
		l.Warn("a call failed, its row is retried or fails", attrs...)
	} else {
		l.Debug("call", attrs...)
	}
}

// element logs an element that is answered or handed back; its row's failure is logged
// with the row.
func (l *rowLog) element(j *job, reply *consumer.Reply) {
	switch {
	case !l.debug:
	case reply.HandedBack:
		l.Debug("element handed back", jobAttrs(j)...)
	default:
		l.Debug("element finished", jobAttrs(j, slog.String("source", reply.Event.Source), slog.Int("attempts", reply.Event.Attempts),
			slog.String("reason", reply.Event.Reason), slog.Int("bytes", len(reply.Body)))...)
	}
}

// finished logs a row that is answered or handed back.
func (l *rowLog) finished(row *consumer.Row, reply *consumer.Reply) {
	failed := reply.Failed && !reply.HandedBack && reply.Event.Source != auditlog.SourceUpstream
	if !l.debug && !failed {
		return
	}
	switch {
	case reply.HandedBack:
		l.Debug("row handed back", rowAttrs(row)...)
		return
	case reply.Parked:
		l.Debug("row waits in the batch lane", rowAttrs(row)...)
		return
	}
	ev := &reply.Event
	attrs := rowAttrs(row, slog.String("source", ev.Source), slog.Int("attempts", ev.Attempts), slog.Int("capacity_retries", ev.CapacityRetries),
		slog.Float64("took_ms", terminal.Milliseconds(time.Since(row.Taken))), slog.Int("bytes", len(reply.Body)))
	if failed {
		l.Warn(LogRowFailed, append(attrs, slog.String("reason", ev.Reason), slog.String("error", causeOf(row, reply)))...)
	} else {
		l.Debug("row finished", attrs...)
	}
}

// causeOf returns why a row failed, without text of the row. It is empty if the row's event
// does not say why, for example if the row was passed on.
func causeOf(row *consumer.Row, reply *consumer.Reply) string {
	errors := reply.Event.Errors
	if len(errors) == 0 {
		return ""
	}
	_, body := readBroken(row) // its problem is not text of the row
	return excerpt.Without(errors[len(errors)-1].Error, body)
}
