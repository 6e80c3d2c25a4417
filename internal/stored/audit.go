package stored

import (
	"context"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

// AuditQuery selects the audit events to read.
type AuditQuery struct {
	// Kinds are those wanted; empty: all.
	Kinds []auditlog.Kind
	// Since is when to begin; zero: with the first event stored.
	Since time.Time
	// NewOnly begins with the events that are stored from now on.
	NewOnly bool
	// Follow waits for more events after the last one stored, until ctx ends.
	Follow bool
}

// ReadAudit calls f with each event of the stage, in the order of the stream, as stored and decoded. A message that is
// no event of this version has a nil event. An error of f ends the reading and is returned.
func ReadAudit(ctx context.Context, js jetstream.JetStream, cfg *config.Config, q AuditQuery, f func(raw []byte, e *auditlog.Event) error) error {
	o := ReadOptions{Stream: cfg.Audit.Stream, Since: q.Since, NewOnly: q.NewOnly, Follow: q.Follow}
	for _, kind := range q.Kinds {
		o.Filters = append(o.Filters, cfg.Audit.Subject+"."+cfg.Name+".*."+string(kind))
	}
	if len(q.Kinds) == 0 {
		o.Filters = []string{cfg.Audit.Subject + "." + cfg.Name + ".>"}
	}
	r, err := Open(ctx, js, o)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		m, _, err := r.Next(ctx)
		if err != nil || m == nil {
			return err
		}
		e, err := auditlog.Decode(m.Data())
		if err != nil {
			e = nil
		}
		if err := f(m.Data(), e); err != nil {
			return err
		}
	}
}
