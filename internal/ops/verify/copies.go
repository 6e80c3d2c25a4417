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
func (e *erasures) readCopies(ctx context.Context, s *store, lost *streamLoss) error {
	if lost.info == nil || len(e.others) == 0 && !slices.ContainsFunc(e.stones, func(of tombstones) bool { return len(of) > 0 }) {
		return nil
	}
	own := s.cfg.Audit.Subject + "." + s.cfg.Name + "."
	var copies, others []eventCopy
	o := stored.ReadOptions{
		Stream: s.cfg.Audit.Stream, Filters: []string{s.cfg.Audit.Subject + ".>"}, Until: lost.info.State.LastSeq, HeadersOnly: true,
	}
	err := stored.Each(ctx, s.js, o, func(m *jetstream.RawStreamMsg) error {
		original := stored.Original(m)
		switch c := (eventCopy{original: original, at: m.Sequence}); {
		case original >= m.Sequence:
		case strings.HasPrefix(m.Subject, own):
			copies = append(copies, c)
		default: // of a stage that shares the stream
			others = append(others, c)
		}
		return nil
	})
	if err != nil {
		return err
	}
	e.copies = byOriginal(copies)
	var places []uint64
	for _, c := range append(byOriginal(others), e.copies...) {
		places = append(places, c.original)
	}
	return lost.explain(places, s.deletionsOf(ctx, s.cfg.Audit.Stream, lost.inside))
}

// byOriginal sorts copies by the places of their originals, and keeps the first of each.
func byOriginal(copies []eventCopy) []eventCopy {
	slices.SortStableFunc(copies, func(a, b eventCopy) int { return cmp.Compare(a.original, b.original) })
	return slices.CompactFunc(copies, func(a, b eventCopy) bool { return a.original == b.original })
}

// inOrder returns a function that returns the messages of the audit, and copies in the
// places of their originals: results are checked as their events come.
func (e *erasures) inOrder(ctx context.Context, s *store, r *stored.Reader) func() (*jetstream.RawStreamMsg, error) {
	var next *jetstream.RawStreamMsg
	read := func() (err error) {
		for {
			if next, err = r.Next(ctx); err != nil || next == nil || stored.Original(next) == next.Sequence {
				return err
			}
		}
	}
	copies := e.copies
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
			m, err := streams.MessageAt(ctx, s.js.Conn(), s.cfg.Audit.Stream, c.at)
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
