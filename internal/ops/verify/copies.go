package verify

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// eventCopy is what remains of an event of an erased row. An erasure first stores a copy
// without the row's contents at the end of the audit, and then deletes the original. So the
// copy at place 900 stands for the event that was at place 120.
type eventCopy struct{ original, at uint64 }

// readCopies reads the copies in the audit, by the places of their originals, and takes
// these out of what the stream has lost. Only a stage that has tombstones has any, so no
// other one's audit is read for them.
func (v *verification) readCopies(ctx context.Context) error {
	lost := &v.auditLoss
	if lost.info == nil || len(v.othersStones) == 0 && !slices.ContainsFunc(v.stones, func(of tombstones) bool { return len(of) > 0 }) {
		return nil
	}
	r, err := stored.OpenReader(ctx, v.js, v.cfg.Audit.Stream, v.cfg.Audit.Subject+".>", lost.info.State.LastSeq, true)
	if err != nil {
		return err
	}
	defer r.Close()
	own := v.cfg.Audit.Subject + "." + v.cfg.Name + "."
	var copies, others []eventCopy
	for {
		m, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		original := stored.Original(m)
		switch c := (eventCopy{original: original, at: m.Sequence}); {
		case original >= m.Sequence:
		case strings.HasPrefix(m.Subject, own):
			copies = append(copies, c)
		default: // of a stage that shares the stream
			others = append(others, c)
		}
	}
	v.copies, others = byOriginal(copies), byOriginal(others)
	deleted := v.deletionsOf(ctx, v.cfg.Audit.Stream, lost.inside)
	for _, c := range append(slices.Clone(v.copies), others...) {
		if err := lost.explainOne(c.original, deleted); err != nil {
			return err
		}
	}
	lost.gone = lost.goneOf(lost.inside > 0)
	return nil
}

// byOriginal sorts copies by the places of their originals, and keeps the first of each.
func byOriginal(copies []eventCopy) []eventCopy {
	slices.SortStableFunc(copies, func(a, b eventCopy) int { return cmp.Compare(a.original, b.original) })
	return slices.CompactFunc(copies, func(a, b eventCopy) bool { return a.original == b.original })
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
				continue // the erasure was interrupted, and the original is still there
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
