package app

import (
	"context"
	"errors"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

// auditQuery says which audit events to read.
type auditQuery struct {
	// Kinds are those wanted; empty: all.
	Kinds []auditlog.Kind
	// Since is when to begin; zero: with the first event stored.
	Since time.Time
	// NewOnly begins with the events that are stored from now on.
	NewOnly bool
	// Follow goes on with the events that come, until ctx ends.
	Follow bool
}

// errStopReading ends [readAudit] without an error.
var errStopReading = errors.New("read enough")

// readAudit hands each event of the stage to f, in the order of the stream, as stored and decoded. A message that is no
// event of this version has a nil event.
func readAudit(ctx context.Context, js jetstream.JetStream, cfg *config.Config, q auditQuery, f func(raw []byte, e *auditlog.Event) error) error {
	o := readOptions{stream: cfg.Audit.Stream, since: q.Since, newOnly: q.NewOnly, follow: q.Follow}
	for _, kind := range q.Kinds {
		o.filters = append(o.filters, cfg.Audit.Subject+"."+cfg.Name+".*."+string(kind))
	}
	if len(q.Kinds) == 0 {
		o.filters = []string{cfg.Audit.Subject + "." + cfg.Name + ".>"}
	}
	r, err := openStream(ctx, js, o)
	if err != nil {
		return err
	}
	defer r.close()
	for {
		m, _, err := r.next(ctx)
		if err != nil || m == nil {
			return err
		}
		e, err := auditlog.Decode(m.Data())
		if err != nil {
			e = nil
		}
		err = f(m.Data(), e)
		if errors.Is(err, errStopReading) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
