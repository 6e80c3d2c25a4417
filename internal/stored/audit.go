package stored

import (
	"context"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

// ReadAudit calls f with the events of the stage, in the order of the stream, as stored and decoded: with those of kinds,
// or with all where that is empty. It reads the part of the stream that o selects; Stream and Filters are set here. A
// message that is no event of this version has a nil event. An error of f ends the reading and is returned.
func ReadAudit(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o ReadOptions, kinds []auditlog.Kind, f func(raw []byte, e *auditlog.Event) error) error {
	o.Stream, o.Filters = cfg.Audit.Stream, nil
	for _, kind := range kinds {
		o.Filters = append(o.Filters, cfg.Audit.Subject+"."+cfg.Name+".*."+string(kind))
	}
	if len(kinds) == 0 {
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
