// Package tail prints audit events (tail.go, line.go), and the history of one row, as text
// (history.go). For a page it has that history as a [Story] (story.go, contents.go), and the
// rows that failed (failures.go). locate.go finds the part of the audit where a row's events
// are.
package tail

import (
	"bufio"
	"context"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// Options are the flags of the command tail.
type Options struct {
	Kinds []auditlog.Kind // of events to print, or none for all
	Row   uint64          // of the history, by its sequence in the input stream; Print ignores it
	// Item is an element of that row, from 0, for the calls for this element alone. Nil is
	// for all. Print ignores it.
	Item   *int
	Failed bool // only events of what did not succeed
	// Reason leaves out all but the rows that failed for one of these reasons, if there are
	// any. History ignores it.
	Reason []string
	Since  time.Time // only later events; Print and History say what a zero time means
	JSON   bool      // events as they are stored, one a line
	Follow bool      // wait for new events; History ignores it
	Colour bool      // for a terminal
	// Now returns the calls in flight of the row, and what it waits for, in one line or "".
	// History shows both while the row has no result. It is nil if nobody knows.
	Now func(ctx context.Context) (calls []InFlight, waits string)
}

// Print prints events. With o.Follow it prints new events until ctx ends, and before them
// the stored events since o.Since if that is set. Without o.Follow it prints the stored
// events, and then returns. It returns what ended it, and flushes out after each event.
func Print(ctx context.Context, js jetstream.JetStream, cfg *config.Config, out *bufio.Writer, o Options) error {
	read := stored.ReadOptions{Since: o.Since, NewOnly: o.Follow && o.Since.IsZero(), Follow: o.Follow}
	return stored.ReadAudit(ctx, js, cfg, read, o.Kinds, func(raw []byte, e *auditlog.Event) error {
		if e == nil || !o.wants(e) { // an event of a newer version is nil
			return nil
		}
		if o.JSON {
			if err := stored.WriteLine(out, raw); err != nil {
				return err
			}
		} else {
			printLine(out, eventLine(e), toneOf(e), o.Colour)
		}
		return out.Flush() // a person waits for it
	})
}

// wants reports whether an event must be printed.
func (o *Options) wants(e *auditlog.Event) bool {
	if len(o.Reason) > 0 && (e.Row == nil || !slices.Contains(o.Reason, e.Row.Reason)) {
		return false
	}
	return !o.Failed || didFail(e)
}
