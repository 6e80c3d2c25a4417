// Package tail prints audit events as text, and tells the story of one row.
package tail

import (
	"bufio"
	"context"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// Options are the flags of tail.
type Options struct {
	Kinds  []auditlog.Kind
	Row    uint64
	Failed bool
	Since  time.Time
	JSON   bool
	Follow bool // what comes, too
	Colour bool
}

// Print prints events: those that come, from now or o.since on, or without follow all that are stored. In a store
// that this process has opened itself no event can come.
func Print(ctx context.Context, js jetstream.JetStream, cfg *config.Config, out *bufio.Writer, o Options) error {
	q := stored.AuditQuery{Kinds: o.Kinds, Since: o.Since, NewOnly: o.Follow && o.Since.IsZero(), Follow: o.Follow}
	return stored.ReadAudit(ctx, js, cfg, q, func(raw []byte, e *auditlog.Event) error {
		if e == nil || o.Failed && !didFail(e) { // nil: of a later version
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
