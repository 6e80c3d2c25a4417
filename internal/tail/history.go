package tail

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// history is what the audit holds of one row, and of the rows before it as far as it had to wait for them.
type history struct {
	seq    uint64                   // of the row in the input stream
	item   *int                     // of the row: the element whose calls are shown; nil: all
	events []*auditlog.Event        // its call and row events, in stream order
	order  streams.Order            // in which the row was emitted
	last   map[string]*auditlog.Row // by owner: of the rows that it had to wait for, the one that finished last
}

// History prints all that the audit holds of the row o.Row, of events after o.Since: queued, each call, the row that it
// waited for, its result. The calls of a row that fans out are grouped by element. With o.JSON it prints the events alone,
// as they are stored. The error is one of [IsNoEvent] where there are none.
func History(ctx context.Context, js jetstream.JetStream, cfg *config.Config, out *bufio.Writer, o Options) error {
	s := &history{seq: o.Row, item: o.Item, order: cfg.Order.Mode, last: make(map[string]*auditlog.Row)}
	found := false
	err := stored.ReadAudit(ctx, js, cfg, stored.ReadOptions{Since: o.Since}, nil, func(raw []byte, e *auditlog.Event) error {
		switch {
		case e == nil: // of a newer version
		case e.Row != nil && e.Row.Sequence < o.Row:
			s.before(e.Row)
		case e.Row != nil && e.Row.Sequence == o.Row, e.Call != nil && e.Call.Sequence == o.Row && o.hasItem(e.Call):
			found = found || e.Call != nil || o.Item == nil
			if o.JSON {
				return stored.WriteLine(out, raw)
			}
			s.events = append(s.events, e)
		}
		return nil
	})
	if err == nil && !found {
		err = &noEventError{row: o.Row, item: o.Item, since: o.Since, stream: cfg.Audit.Stream, stage: cfg.Name}
	}
	if err != nil || o.JSON {
		return err
	}
	var result *emission
	if s.emitted(nil) != nil { // else it is not finished
		if result, err = findResult(ctx, js, cfg, s.events[0], o.Row); err != nil {
			return err
		}
	}
	if s.setOrder(result); s.order == streams.OrderKey {
		if err := s.readKey(ctx, js, cfg, s.emitted(result)); err != nil {
			return err
		}
	}
	s.print(out, cfg, result, o.Colour)
	return nil
}

// hasItem reports whether a call is one of those that were asked for.
func (o *Options) hasItem(c *auditlog.Call) bool {
	return o.Item == nil || c.Item != nil && *c.Item == *o.Item
}

// setOrder finds out in which order the row was emitted, from what is stored of it: the configuration may be of today.
// Where neither its result nor its key is stored, the configuration decides.
func (s *history) setOrder(result *emission) {
	switch row := s.emitted(result); {
	case row != nil && row.Key != nil:
		s.order = streams.OrderKey
	case result != nil && result.low != nil:
		s.order = streams.OrderNone
	case result != nil:
		s.order = streams.OrderStream
	}
}

// readKey finds the row of the same key that the row waited for. The key is known from the row's own event only, so the
// events are read again: from when the row was finished on, since only a row that finished later can have held it up.
func (s *history) readKey(ctx context.Context, js jetstream.JetStream, cfg *config.Config, row *auditlog.Row) error {
	s.last = make(map[string]*auditlog.Row)
	if row == nil || row.Key == nil {
		return nil
	}
	later := stored.ReadOptions{Since: row.FinishedAt.Add(-clockSkew)}
	return stored.ReadAudit(ctx, js, cfg, later, []auditlog.Kind{auditlog.KindRow}, func(_ []byte, e *auditlog.Event) error {
		if e != nil && e.Row != nil && e.Row.Sequence < s.seq && e.Row.Key != nil && *e.Row.Key == *row.Key {
			s.before(e.Row)
		}
		return nil
	})
}

// noEventError says that the audit holds nothing of a row, or no call of an element.
type noEventError struct {
	row           uint64
	item          *int
	since         time.Time
	stream, stage string
}

func (e *noEventError) Error() string {
	since := ""
	if !e.since.IsZero() {
		since = " since " + e.since.Format(time.RFC3339)
	}
	if e.item != nil {
		return fmt.Sprintf("element %d of row %d has no call of stage %s in stream %s%s: there is no such element, it has not been called yet, or it was answered without a call; see --row %d",
			*e.item, e.row, e.stage, e.stream, since, e.row)
	}
	return fmt.Sprintf("row %d has no event of stage %s in stream %s%s: there is no such row, it has not been called yet, or the audit no longer holds it", e.row, e.stage, e.stream, since)
}

// IsNoEvent reports whether [History] has found nothing of the row.
func IsNoEvent(err error) bool {
	_, is := errors.AsType[*noEventError](err)
	return is
}

// before notes a row before the one that the history is about.
func (s *history) before(r *auditlog.Row) {
	if last := s.last[r.Owner]; last == nil || r.FinishedAt.After(last.FinishedAt) {
		s.last[r.Owner] = r
	}
}

// clockSkew is how far the clocks of stage and server may be apart for what is stored of a row to be found at once.
const clockSkew = time.Minute

// emission is a row's result as far as a history shows it.
type emission struct {
	at     uint64 // its sequence in the result stream
	stored time.Time
	owner  string
	low    *uint64 // the low-water mark that it names; nil: none, as in stream order
}

// findResult returns the row's result; nil: there is none. A result is stored after the events of its row, so it reads
// from the first event on, and all of them if that proves nothing, since the clocks may disagree.
func findResult(ctx context.Context, js jetstream.JetStream, cfg *config.Config, first *auditlog.Event, seq uint64) (*emission, error) {
	subject := stored.LogSubject(cfg, int(first.Partition), "rows")
	for _, since := range []time.Time{first.Time.Add(-clockSkew), {}} {
		r, err := stored.Open(ctx, js, stored.ReadOptions{Stream: cfg.Result.Stream, Filters: []string{subject}, Since: since, HeadersOnly: true})
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, nil //nolint:nilnil // no stream, no result
		}
		if err != nil {
			return nil, err
		}
		found, missing, err := scanResults(ctx, r, seq)
		r.Close()
		if err != nil || found != nil || missing {
			return found, err
		}
	}
	return nil, nil //nolint:nilnil // there is none, which is no error
}

// scanResults reads results up to that of a row, or up to where it must have been: in stream order at a later row, else
// at a low-water mark that includes it. missing reports that the row has no result before them either: it follows a result
// in stream order.
func scanResults(ctx context.Context, r *stored.Reader, seq uint64) (found *emission, missing bool, err error) {
	for {
		m, at, err := r.Next(ctx)
		if err != nil || m == nil {
			return nil, missing, err
		}
		h := m.Headers()
		this, _ := strconv.ParseUint(h.Get(streams.HeaderSourceSeq), 10, 64) // 0: it names none
		done := this
		var low *uint64
		if n, err := strconv.ParseUint(h.Get(streams.HeaderLow), 10, 64); err == nil {
			low, done = &n, n
		}
		if this == seq {
			md, err := m.Metadata()
			if err != nil {
				return nil, false, err
			}
			return &emission{at: at, stored: md.Timestamp, owner: h.Get(streams.HeaderOwner), low: low}, false, nil
		}
		if done >= seq {
			return nil, missing, nil
		}
		missing = missing || low == nil
	}
}

// printer prints the lines of a history.
type printer struct {
	w      io.Writer
	colour bool
	queued time.Time // when the row was queued: lines after it say how long after; zero: unknown
}

// line prints what happened at a time.
func (p *printer) line(at time.Time, t tone, format string, args ...any) {
	since := ""
	if !p.queued.IsZero() && at.After(p.queued) {
		since = "+" + terminal.Duration(at.Sub(p.queued))
	}
	printLine(p.w, fmt.Sprintf("  %s  %9s  ", clockOf(at), since)+fmt.Sprintf(format, args...), t, p.colour)
}

// print prints the history: when, how long after the row was queued, what. The calls of a row that fans out come first,
// element by element: in the order of time the calls of hundreds of elements would say nothing of any.
func (s *history) print(w io.Writer, cfg *config.Config, result *emission, colour bool) {
	p := &printer{w: w, colour: colour, queued: s.queued()}
	head := fmt.Sprintf("row %d%s of stream %s, partition %s", s.seq, itemText(s.item), cfg.Input.Stream, s.events[0].Partition)
	if row := s.emitted(result); row != nil && row.Key != nil {
		head += ", " + keyText(row)
	}
	printLine(w, head, toneTurn, colour)
	if !p.queued.IsZero() {
		p.line(p.queued, toneQuiet, "queued")
	}
	several := s.ownedBySeveral()
	for _, e := range slices.SortedStableFunc(slices.Values(s.events), func(a, b *auditlog.Event) int { return cmp.Compare(placeOf(a), placeOf(b)) }) {
		by := ""
		if several {
			by = "  by " + ownerOf(e)
		}
		if e.Call != nil {
			p.line(e.Call.Time, toneOf(e), "%s%s", callText(e.Call), by)
			continue
		}
		p.line(e.Row.FinishedAt, toneOf(e), "finished: %s, %s, %s%s", e.Row.Status, sourceText(e.Row), attemptsText(e.Row), by)
	}
	s.printEnd(p, cfg, s.emitted(result), result)
}

// queued is when the row was queued first; zero: it is not in the audit.
func (s *history) queued() (first time.Time) {
	for _, e := range s.events {
		if e.Row != nil && (first.IsZero() || e.Row.QueuedAt.Before(first)) {
			first = e.Row.QueuedAt
		}
	}
	return first
}

// emitted returns the row event of the term that stored the result; without a result the last row event; nil: there is
// none.
func (s *history) emitted(result *emission) (emitted *auditlog.Row) {
	for _, e := range s.events {
		if e.Row != nil && (emitted == nil || result == nil || e.Row.Owner == result.owner) {
			emitted = e.Row
		}
	}
	return emitted
}

// ownedBySeveral reports whether the events are of more than one term of ownership.
func (s *history) ownedBySeveral() bool {
	return slices.ContainsFunc(s.events, func(e *auditlog.Event) bool { return ownerOf(e) != ownerOf(s.events[0]) })
}

// placeOf is where a history has an event among those of its row: the calls of elements by element, then all others.
func placeOf(e *auditlog.Event) int {
	if e.Call != nil && e.Call.Item != nil {
		return *e.Call.Item
	}
	return math.MaxInt
}

// callText is one call of the row, or of an element of it.
func callText(c *auditlog.Call) string {
	call, tokens := fmt.Sprint("call ", c.CallIndex+1), ""
	if c.Item != nil {
		call = fmt.Sprintf("%-4s %s", itemText(c.Item), call)
	}
	if c.Usage != nil {
		tokens = ", " + tokenCounts(c.Usage)
	}
	if c.Lane != "" { // the throttle had no part in it, and it took as long as its batch
		return fmt.Sprintf("%s: %s, %s%s,%s as %s%s", call, modelText(c.Provider, c.Model), outcomeText(c), tokens, laneText(c)[1:], c.CallID, because(c))
	}
	return fmt.Sprintf("%s: %s, %s in %s%s, delay %s%s", call, modelText(c.Provider, c.Model), outcomeText(c),
		terminal.Duration(c.Latency), tokens, terminal.Duration(c.DispatchDelay), because(c))
}

// ownerOf returns the owner of a call or row event.
func ownerOf(e *auditlog.Event) string {
	if e.Call != nil {
		return e.Call.Owner
	}
	return e.Row.Owner
}

// printEnd prints what the finished row waited for, and where its result is.
func (s *history) printEnd(p *printer, cfg *config.Config, row *auditlog.Row, result *emission) {
	if row == nil {
		p.line(s.events[len(s.events)-1].Time, toneQuiet, "not finished yet")
		return
	}
	s.printWait(p, row, result != nil)
	if result == nil && s.order == streams.OrderKey {
		p.line(row.FinishedAt, toneQuiet, "not emitted yet: an earlier row of its key has no result, or its own is no longer stored")
		return
	}
	if result == nil {
		p.line(row.FinishedAt, toneQuiet, "not emitted yet, or the result is no longer stored")
		return
	}
	p.line(result.stored, toneQuiet, "emitted: result %d of stream %s, owner %s", result.at, cfg.Result.Stream, result.owner)
}

// printWait prints what the finished row waited for before it could be emitted. In order by key one that is not may wait
// still, for a row that has no event yet: then that which was finished last says nothing.
func (s *history) printWait(p *printer, row *auditlog.Row, emitted bool) {
	of := ""
	switch s.order {
	case streams.OrderNone:
		p.line(row.FinishedAt, toneQuiet, "waited for no other row")
		return
	case streams.OrderKey:
		if !emitted {
			return
		}
		of = " of its key"
	case streams.OrderStream:
	}
	before := s.last[row.Owner]
	if before == nil || !before.FinishedAt.After(row.FinishedAt) {
		p.line(row.FinishedAt, toneQuiet, "waited for no earlier row%s", of)
		return
	}
	p.line(before.FinishedAt, toneQuiet, "waited %s for row %d%s", terminal.Duration(before.FinishedAt.Sub(row.FinishedAt)), before.Sequence, of)
}
