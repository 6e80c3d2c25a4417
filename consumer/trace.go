package consumer

import (
	"time"

	"github.com/nats-io/nats.go"
)

// Tracer follows rows on their way through the stage, for distributed traces. Its methods must not block.
type Tracer interface {
	// RowTaken is called once for each row that this process takes, before the executor gets it, from the goroutine of
	// [Consumer.Run]. Nil: this row is not followed.
	RowTaken(row *Row) Trace
}

// Trace follows one row. Exactly one of Emitted and Abandoned ends it, on the goroutine of [Consumer.Run].
type Trace interface {
	// Header holds what the row's result carries in place of the row's own headers of these names, so that the
	// consumer of the result continues this trace. It returns the same headers at each call; they must not be changed.
	Header() nats.Header
	// Emitted is called when the row's result was stored.
	Emitted(reply *Reply, at time.Time)
	// Abandoned is called when this process gives up the row, which then is, or will be, emitted by another term of
	// ownership. Calls for the row may still be in flight.
	Abandoned(at time.Time)
}

// Trace is what follows the row; nil: nothing does.
func (r *Row) Trace() Trace { return r.trace }

// traceHeader holds the headers that the row's trace puts on its result.
func (r *Row) traceHeader() nats.Header {
	if r.trace == nil {
		return nil
	}
	return r.trace.Header()
}

// abandon ends the trace of a row that is not emitted here.
func (r *Row) abandon() {
	if r.trace != nil {
		r.trace.Abandoned(time.Now())
	}
}
