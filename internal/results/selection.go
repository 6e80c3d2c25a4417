package results

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// selection is what is printed of the results that were stored when the printer began. Later ones are printed as they
// come.
type selection struct {
	from uint64 // the first result; 0: the first there is
	// replaced has the last result of each row whose first one was replaced, by the row: as many as were repaired.
	replaced map[uint64]uint64
}

// header is what a selection needs to know of a result.
type header struct {
	at       uint64 // its sequence in the result stream
	stored   time.Time
	row      uint64 // its row
	replaces uint64 // the row whose result it replaces; 0: it is the first of its row
	failed   bool
}

// current reports whether no result in the selection replaces this one.
func (s *selection) current(h header) bool {
	row := h.row
	if h.replaces > 0 {
		row = h.replaces
	}
	last, replaced := s.replaced[row]
	return !replaced || last <= h.at
}

// wants reports whether a result is a failure that stands.
func (s *selection) wants(h nats.Header, at uint64) bool {
	r := headerOf(h, at)
	return r.failed && s.current(r)
}

// headerOf reads the headers of a result.
func headerOf(h nats.Header, at uint64) header {
	r := header{at: at, failed: h.Get(streams.HeaderStatus) == auditlog.RowError}
	r.row, _ = strconv.ParseUint(h.Get(streams.HeaderSourceSeq), 10, 64) // 0: it names none
	r.replaces, _ = strconv.ParseUint(h.Get(headerReplaces), 10, 64)     // 0: as most
	return r
}

// choose finds where to begin, and which failures do not stand, in the headers of what is stored. For the last results
// it looks at the end of the stream, at a part that grows until it holds enough of them: a result always comes after
// the one that it replaces.
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

// look reads the headers of a part of the stream. found are the results in it that are wanted, as far as Last has use
// for them; whole reports that all of those since o.Since are in it.
func (p *Printer) look(ctx context.Context, js jetstream.JetStream, from, until uint64) (s selection, found []uint64, whole bool, err error) {
	o := &p.options
	s.replaced = make(map[uint64]uint64)
	var wanted []header
	part := stored.ReadOptions{Filters: []string{p.filter()}, From: from, Until: until}
	if o.Last == All {
		part.Since = o.Since
	}
	err = eachHeader(ctx, js, p.cfg, part, func(h header) {
		if h.replaces > 0 {
			s.replaced[h.replaces] = h.at
		}
		switch {
		case h.stored.Before(o.Since):
			whole = true
		case o.Last != All && (h.failed || !o.Failed):
			if wanted = append(wanted, h); !o.Failed && len(wanted) > o.Last {
				wanted = wanted[1:]
			}
		}
	})
	wanted = slices.DeleteFunc(wanted, func(h header) bool { return o.Failed && !s.current(h) })
	for _, h := range wanted {
		found = append(found, h.at)
	}
	return s, found, whole, err
}

// eachHeader calls f with each result that the options select.
func eachHeader(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o stored.ReadOptions, f func(header)) error {
	o.Stream, o.HeadersOnly = cfg.Result.Stream, true
	r, err := stored.Open(ctx, js, o)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		m, at, err := r.Next(ctx)
		if err != nil || m == nil {
			return err
		}
		if _, ok := stored.PartitionOf(m.Subject()); !ok {
			continue
		}
		md, err := m.Metadata()
		if err != nil {
			return err
		}
		h := headerOf(m.Headers(), at)
		h.stored = md.Timestamp
		f(h)
	}
}
