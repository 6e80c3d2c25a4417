package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// erasedEvents is what erasures have left of events in the audit. Each copy stands behind
// all events of its time, so it is read before the others: of a call that served several
// rows, those that stay need it when their results are checked.
type erasedEvents struct {
	// doubled has the originals that are still there, by sequence: the erasure was
	// interrupted, and the copy does not count.
	doubled map[uint64]bool
	shared  map[uint64][]leftCall // by row of the input
}

// leftCall is a call that served several rows, one of which was erased.
type leftCall struct {
	event *auditlog.Event
	hash  proof.Hash // as recorded
}

// readErased reads what erasures have left, and takes what they have removed out of what
// the audit has lost. Whatever they left was stored behind the first tombstone.
func (v *verification) readErased(ctx context.Context) error {
	var since time.Time
	for _, of := range v.stones {
		for _, s := range of {
			if since.IsZero() || s.result.Stored.Before(since) {
				since = s.result.Stored
			}
		}
	}
	l := &v.auditLoss
	if since.IsZero() || l.info == nil {
		return nil
	}
	removed, err := v.removedFromAudit(ctx)
	if err != nil {
		return err
	}
	v.erased = erasedEvents{doubled: make(map[uint64]bool), shared: make(map[uint64][]leftCall)}
	counted := make(map[uint64]bool)
	err = stored.EachAudit(ctx, v.js, v.cfg, stored.ReadOptions{Since: since.Add(-auditSlack), Until: max(1, l.info.State.LastSeq)}, []auditlog.Kind{auditlog.KindCall, auditlog.KindRow}, func(m stored.AuditMessage) error {
		if len(m.Header[streams.HeaderErased]) == 0 || m.Event == nil || counted[m.Original] {
			return nil
		}
		counted[m.Original] = true
		switch {
		case m.Original < l.info.State.FirstSeq:
			l.front -= min(l.front, 1)
		case removed[m.Original]:
			l.inside = max(0, l.inside-1)
		default:
			v.erased.doubled[m.Original] = true
		}
		if c := m.Event.Call; c != nil && len(c.Rows) > 0 {
			hash, _ := proof.ParseHash(m.Header.Get(proof.HeaderRecorded)) // a wrong one is that of no event
			v.erased.addShared(m.Event, hash)
		}
		return nil
	})
	l.gone = l.goneOf(l.inside > 0)
	return err
}

func (e *erasedEvents) addShared(event *auditlog.Event, hash proof.Hash) {
	for c := range event.Call.EachRow() {
		one := *event
		one.Call = c
		e.shared[c.Sequence] = append(e.shared[c.Sequence], leftCall{&one, hash})
	}
}

// removedFromAudit returns which messages are gone from the middle of the audit stream.
func (v *verification) removedFromAudit(ctx context.Context) (map[uint64]bool, error) {
	removed := make(map[uint64]bool, v.auditLoss.inside)
	if v.auditLoss.inside == 0 {
		return removed, nil
	}
	s, err := v.js.Stream(ctx, v.cfg.Audit.Stream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", v.cfg.Audit.Stream, err)
	}
	info, err := s.Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", v.cfg.Audit.Stream, err)
	}
	for _, seq := range info.State.Deleted {
		removed[seq] = true
	}
	return removed, nil
}

// copies reports whether a message only copies an event that is still there.
func (e *erasedEvents) copies(m *jetstream.RawStreamMsg) bool {
	return e.doubled[stored.Original(m)] && len(m.Header[streams.HeaderErased]) > 0
}

// addErased gives the head the calls that it shared with a row that was erased.
func (v *partitionVerifier) addErased() {
	for _, c := range v.erased.shared[v.head.Seq] {
		if term, key := v.rowOf(c.event); key == v.head.key && int(c.event.Partition) == v.stats.Partition {
			v.window.add(key, true).add(c.event, term, c.hash)
		}
	}
}
