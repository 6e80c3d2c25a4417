package app

import (
	"bufio"
	"context"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// tailOptions are the flags of tail.
type tailOptions struct {
	kinds  []auditlog.Kind
	row    uint64
	failed bool
	since  time.Time
	json   bool
	follow bool // what comes, too
	colour bool
}

// printAudit prints events: those that come, from now or o.since on, or without follow all that are stored. In a store
// that this process has opened itself no event can come.
func printAudit(ctx context.Context, js jetstream.JetStream, cfg *config.Config, out *bufio.Writer, o tailOptions) error {
	q := stored.AuditQuery{Kinds: o.kinds, Since: o.since, NewOnly: o.follow && o.since.IsZero(), Follow: o.follow}
	return stored.ReadAudit(ctx, js, cfg, q, func(raw []byte, e *auditlog.Event) error {
		if e == nil || o.failed && !didFail(e) { // nil: of a later version
			return nil
		}
		if o.json {
			if err := stored.WriteLine(out, raw); err != nil {
				return err
			}
		} else {
			printLine(out, eventLine(e), toneOf(e), o.colour)
		}
		return out.Flush() // a person waits for it
	})
}
