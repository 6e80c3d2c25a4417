package tail

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// history is what the audit holds of one row, and of the rows before it as far as it had to wait for them.
type history struct {
	seq    uint64                   // of the row in the input stream
	events []*auditlog.Event        // its call and row events, in stream order
	last   map[string]*auditlog.Row // by owner: of the rows before it, the one that finished last
}

// History prints all that the audit holds of the row o.Row, of events after o.Since: queued, each call, the row that it
// waited for, its result. With o.JSON it prints the events alone. The error is one of [IsNoEvent] where there are none.
func History(ctx context.Context, js jetstream.JetStream, cfg *config.Config, out *bufio.Writer, o Options) error {
	s := &history{seq: o.Row, last: make(map[string]*auditlog.Row)}
	found := false
	err := stored.ReadAudit(ctx, js, cfg, stored.ReadOptions{Since: o.Since}, nil, func(raw []byte, e *auditlog.Event) error {
		switch {
		case e == nil: // of a newer version
		case e.Row != nil && e.Row.Sequence < o.Row:
			s.before(e.Row)
		case e.Row != nil && e.Row.Sequence == o.Row, e.Call != nil && e.Call.Sequence == o.Row:
			found = true
			if o.JSON {
				return stored.WriteLine(out, raw)
			}
			s.events = append(s.events, e)
		}
		return nil
	})
	if err == nil && !found {
		err = &noEventError{row: o.Row, since: o.Since, stream: cfg.Audit.Stream, stage: cfg.Name}
	}
	if err != nil || o.JSON {
		return err
	}
	result, err := findResult(ctx, js, cfg, s.events[0], o.Row)
	if err != nil {
		return err
	}
	s.print(out, cfg, result, o.Colour)
	return nil
}

// noEventError says that the audit holds nothing of a row.
type noEventError struct {
	row           uint64
	since         time.Time
	stream, stage string
}

func (e *noEventError) Error() string {
	since := ""
	if !e.since.IsZero() {
		since = " since " + e.since.Format(time.RFC3339)
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

// resultSkew is how far the clocks of stage and server may be apart for the result of a row to be found at once.
const resultSkew = time.Minute

// findResult returns the row's result; nil: there is none. Results are stored in the order of the rows and after the
// events of their rows, so it reads from the first event on, or all of them if the clocks disagree.
func findResult(ctx context.Context, js jetstream.JetStream, cfg *config.Config, first *auditlog.Event, seq uint64) (*stored.ResultRow, error) {
	subject := stored.LogSubject(cfg, int(first.Partition), "rows")
	for _, since := range []time.Time{first.Time.Add(-resultSkew), {}} {
		r, err := stored.Open(ctx, js, stored.ReadOptions{Stream: cfg.Result.Stream, Filters: []string{subject}, Since: since, HeadersOnly: true})
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, nil //nolint:nilnil // no stream, no result
		}
		if err != nil {
			return nil, err
		}
		next := stored.NextResultFunc(ctx, r)
		result, err := next()
		for err == nil && result != nil && result.Seq < seq {
			result, err = next()
		}
		r.Close()
		if err != nil || result == nil || result.Seq == seq {
			return result, err
		}
	}
	return nil, nil //nolint:nilnil // there is none, which is no error
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

// print prints the history: when, how long after the row was queued, what.
func (s *history) print(w io.Writer, cfg *config.Config, result *stored.ResultRow, colour bool) {
	p := &printer{w: w, colour: colour, queued: s.queued()}
	printLine(w, fmt.Sprintf("row %d of stream %s, partition %s", s.seq, cfg.Input.Stream, s.events[0].Partition), toneTurn, colour)
	if !p.queued.IsZero() {
		p.line(p.queued, toneQuiet, "queued")
	}
	several := s.ownedBySeveral()
	for _, e := range s.events {
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
func (s *history) emitted(result *stored.ResultRow) (emitted *auditlog.Row) {
	for _, e := range s.events {
		if e.Row != nil && (emitted == nil || result == nil || e.Row.Owner == result.Owner) {
			emitted = e.Row
		}
	}
	return emitted
}

// ownedBySeveral reports whether the events are of more than one term of ownership.
func (s *history) ownedBySeveral() bool {
	return slices.ContainsFunc(s.events, func(e *auditlog.Event) bool { return ownerOf(e) != ownerOf(s.events[0]) })
}

// callText is one call of the row.
func callText(c *auditlog.Call) string {
	tokens := ""
	if c.Usage != nil {
		tokens = ", " + tokenCounts(c.Usage)
	}
	return fmt.Sprintf("call %d: %s, %s in %s%s, delay %s%s", c.CallIndex+1, modelText(c.Provider, c.Model), outcomeText(c),
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
func (s *history) printEnd(p *printer, cfg *config.Config, row *auditlog.Row, result *stored.ResultRow) {
	if row == nil {
		p.line(s.events[len(s.events)-1].Time, toneQuiet, "not finished yet")
		return
	}
	if before := s.last[row.Owner]; before != nil && before.FinishedAt.After(row.FinishedAt) {
		p.line(before.FinishedAt, toneQuiet, "waited %s for row %d", terminal.Duration(before.FinishedAt.Sub(row.FinishedAt)), before.Sequence)
	} else {
		p.line(row.FinishedAt, toneQuiet, "waited for no earlier row")
	}
	if result == nil {
		p.line(row.FinishedAt, toneQuiet, "not emitted yet, or the result is no longer stored")
		return
	}
	p.line(result.Stored, toneQuiet, "emitted: result %d of stream %s, owner %s", result.At, cfg.Result.Stream, result.Owner)
}
