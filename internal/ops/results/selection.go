package results

import (
	"cmp"
	"context"
	"slices"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// selection says which of the results that were stored when the printer began are
// printed. All later ones are printed as they come.
type selection struct {
	from uint64 // the first result, or 0 for the first one stored
	// replaced has, by row, the last result of each row whose first result was replaced.
	// There are as many as rows were repaired.
	replaced map[uint64]uint64
}

// current reports whether no result in the selection replaces this one.
func (s *selection) current(r stored.Result) bool {
	last, replaced := s.replaced[cmp.Or(r.Replaces, r.Seq)]
	return !replaced || last <= r.At
}

// choose reads the headers of the stored results to find where printing begins, and which
// failures were replaced since. For the last results it reads the end of the stream, a
// part that grows until it holds enough of them: a result always comes after the one that
// it replaces.
func (p *Printer) choose(ctx context.Context, js jetstream.JetStream) (selection, error) {
	o := &p.options
	if !o.Failed && o.Last == All {
		return selection{}, nil
	}
	end, err := streams.LastMessage(ctx, js.Conn(), p.cfg.Result.Stream, p.filter())
	if err != nil || end == nil {
		return selection{}, err
	}
	if o.Last == 0 {
		return selection{from: end.Sequence + 1}, nil
	}
	span := end.Sequence
	if o.Last != All {
		span = min(span, 2*uint64(o.Last)) //nolint:gosec // not negative
	}
	for {
		from := end.Sequence - span + 1
		s, found, whole, err := p.look(ctx, js, from, end.Sequence)
		switch {
		case err != nil:
			return s, err
		case o.Last != All && len(found) >= o.Last:
			s.from = found[len(found)-o.Last]
			return s, nil
		case whole || from == 1:
			return s, nil
		}
		span = min(end.Sequence, 4*span)
	}
}

// look reads the headers of a part of the stream. found are the wanted results in it, at
// most as many as Last needs. whole reports whether the part has all results since o.Since.
func (p *Printer) look(ctx context.Context, js jetstream.JetStream, from, until uint64) (s selection, found []uint64, whole bool, err error) {
	o := &p.options
	s.replaced = make(map[uint64]uint64)
	var wanted []stored.Result
	part := stored.ReadOptions{Filters: []string{p.filter()}, From: from, Until: until}
	if o.Last == All {
		part.Since = o.Since
	}
	err = eachResult(ctx, js, p.cfg, part, func(r stored.Result) {
		if r.Replaces > 0 {
			s.replaced[r.Replaces] = r.At
		}
		switch {
		case r.Stored.Before(o.Since):
			whole = true
		case o.Last != All && (r.Failed || !o.Failed):
			if wanted = append(wanted, r); !o.Failed && len(wanted) > o.Last {
				wanted = wanted[1:]
			}
		}
	})
	wanted = slices.DeleteFunc(wanted, func(r stored.Result) bool { return o.Failed && !s.current(r) })
	for _, r := range wanted {
		found = append(found, r.At)
	}
	return s, found, whole, err
}

// eachResult calls f with each result that the options select, without its body.
func eachResult(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o stored.ReadOptions, f func(stored.Result)) error {
	o.Stream, o.HeadersOnly = cfg.Result.Stream, true
	return stored.Each(ctx, js, o, func(m *jetstream.RawStreamMsg) error {
		if _, ok := stored.PartitionOf(m.Subject); !ok {
			return nil
		}
		r, err := stored.NewResult(m)
		if err == nil {
			f(r)
		}
		return err
	})
}
