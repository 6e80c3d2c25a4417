package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/auditlog"
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
// event of this version has a nil event. It holds a few hundred events at most.
func readAudit(ctx context.Context, js jetstream.JetStream, cfg *Config, q auditQuery, f func(raw []byte, e *auditlog.Event) error) error {
	oc := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy}
	for _, kind := range q.Kinds {
		oc.FilterSubjects = append(oc.FilterSubjects, cfg.Audit.Subject+"."+cfg.Name+".*."+string(kind))
	}
	if len(q.Kinds) == 0 {
		oc.FilterSubjects = []string{cfg.Audit.Subject + "." + cfg.Name + ".>"}
	}
	switch {
	case q.NewOnly:
		oc.DeliverPolicy = jetstream.DeliverNewPolicy
	case !q.Since.IsZero():
		oc.DeliverPolicy, oc.OptStartTime = jetstream.DeliverByStartTimePolicy, &q.Since
	}
	events, err := js.OrderedConsumer(ctx, cfg.Audit.Stream, oc)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", cfg.Audit.Stream, err)
	}
	for ctx.Err() == nil {
		n, err := readEvents(ctx, events, f)
		switch {
		case errors.Is(err, errStopReading):
			return nil
		case err != nil:
			return err
		case n == 0 && !q.Follow:
			return nil
		}
	}
	return context.Cause(ctx)
}

// readEvents hands on what comes within a second, and returns how many events that were.
func readEvents(ctx context.Context, events jetstream.Consumer, f func([]byte, *auditlog.Event) error) (n int, err error) {
	batch, err := events.Fetch(500, jetstream.FetchMaxWait(time.Second))
	if err != nil {
		return 0, fmt.Errorf("read the audit: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return n, context.Cause(ctx)
		case m, ok := <-batch.Messages():
			if !ok {
				if err := batch.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
					return n, fmt.Errorf("read the audit: %w", err)
				}
				return n, nil
			}
			n++
			e, err := auditlog.Decode(m.Data())
			if err != nil {
				e = nil
			}
			if err := f(m.Data(), e); err != nil {
				return n, err
			}
		}
	}
}
