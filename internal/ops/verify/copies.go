package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// eventCopy is what is left of an event of an erased row: the copy at one place of the
// audit stands for the event that was at another, earlier one.
type eventCopy struct{ original, at uint64 }

// readCopies reads the copies in the audit, by the places of their originals, and takes
// these out of what the stream has lost. Only a stage that has tombstones has any, so no
// other one's audit is read for them.
func (v *verification) readCopies(ctx context.Context) error {
	lost := &v.auditLoss
	if lost.info == nil || !slices.ContainsFunc(v.stones, func(of []*stone) bool { return len(of) > 0 }) {
		return nil
	}
	r, err := stored.OpenReader(ctx, v.js, v.cfg.Audit.Stream, v.cfg.Audit.Subject+"."+v.cfg.Name+".>", lost.info.State.LastSeq, true)
	if err != nil {
		return err
	}
	defer r.Close()
	var copies []eventCopy
	for {
		m, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		if original := stored.Original(m); original < m.Sequence {
			copies = append(copies, eventCopy{original: original, at: m.Sequence})
		}
	}
	slices.SortStableFunc(copies, func(a, b eventCopy) int { return cmp.Compare(a.original, b.original) })
	v.copies = slices.CompactFunc(copies, func(a, b eventCopy) bool { return a.original == b.original })
	removed, err := v.removedFromAudit(ctx)
	if err != nil {
		return err
	}
	for _, c := range v.copies {
		switch {
		case c.original < lost.info.State.FirstSeq:
			lost.front -= min(lost.front, 1)
		case removed[c.original]:
			lost.inside = max(0, lost.inside-1)
		}
	}
	lost.gone = lost.goneOf(lost.inside > 0)
	return nil
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

// inOrder returns a function that returns the messages of the audit, and copies in the
// places of their originals: results are checked as their events come.
func (v *verification) inOrder(ctx context.Context, r *stored.Reader) func() (*jetstream.RawStreamMsg, error) {
	var next *jetstream.RawStreamMsg
	read := func() (err error) {
		for {
			if next, err = r.Next(ctx); err != nil || next == nil || stored.Original(next) == next.Sequence {
				return err
			}
		}
	}
	copies := v.copies
	begun := false
	return func() (*jetstream.RawStreamMsg, error) {
		if !begun {
			begun = true
			if err := read(); err != nil {
				return nil, err
			}
		}
		for len(copies) > 0 && (next == nil || copies[0].original <= next.Sequence) {
			c := copies[0]
			copies = copies[1:]
			if next != nil && c.original == next.Sequence {
				continue // it is not deleted yet
			}
			m, err := streams.MessageAt(ctx, v.js.Conn(), v.cfg.Audit.Stream, c.at)
			if err != nil || m != nil {
				return m, err
			}
		}
		m := next
		if m == nil {
			return nil, nil //nolint:nilnil // the end is no error
		}
		return m, read()
	}
}
