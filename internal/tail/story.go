package tail

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/llm-stage/stage/consumer/streams"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// story is what the audit says of one row, and of the rows before it as far as it had to wait for them. It keeps the
// events of that row, and one row of each term of ownership.
type story struct {
	seq    uint64
	events []*auditlog.Event    // of the row, as stored
	last   map[ownedTerm]rowEnd // of the rows before it: the one that finished last
}

// ownedTerm is a term of ownership of a partition.
type ownedTerm struct {
	partition auditlog.Partition
	owner     string
}

type rowEnd struct {
	seq uint64
	at  time.Time
}

// Story tells the whole story of a row, as far as the audit holds it.
func Story(ctx context.Context, js jetstream.JetStream, cfg *config.Config, out *bufio.Writer, o Options) error {
	s := &story{seq: o.Row, last: make(map[ownedTerm]rowEnd)}
	err := stored.ReadAudit(ctx, js, cfg, stored.AuditQuery{Since: o.Since}, func(raw []byte, e *auditlog.Event) error {
		switch {
		case e == nil: // of a later version
		case e.Row != nil && e.Row.Sequence < o.Row:
			s.before(e.Row)
		case e.Row != nil && e.Row.Sequence == o.Row, e.Call != nil && e.Call.Sequence == o.Row:
			if o.JSON {
				return stored.WriteLine(out, raw)
			}
			s.events = append(s.events, e)
		}
		return nil
	})
	if err != nil || o.JSON {
		return err
	}
	if len(s.events) == 0 {
		terminal.PrintLine(out, "row %d has no event: it has not been called for yet, or the audit no longer holds it", o.Row)
		return nil
	}
	stored, err := findResult(ctx, js, cfg, s.events[0], o.Row)
	if err != nil {
		return err
	}
	s.tell(out, cfg, stored, o.Colour)
	return nil
}

// before notes a row before the one that the story is about.
func (s *story) before(r *auditlog.Row) {
	t := ownedTerm{r.Partition, r.Owner}
	if r.FinishedAt.After(s.last[t].at) {
		s.last[t] = rowEnd{r.Sequence, r.FinishedAt}
	}
}

// storedResult is where and when a result was stored, and by which term.
type storedResult struct {
	seq   uint64 // in the results stream
	at    time.Time
	owner string
}

// resultSkew is how far the clocks of stage and server may be apart for the result of a row to be found at once.
const resultSkew = time.Minute

// findResult returns where the row's result is; nil: nowhere. Results lie in the order of the rows and after the events of
// their rows, so it reads from the first event on; where the clocks disagree, all.
func findResult(ctx context.Context, js jetstream.JetStream, cfg *config.Config, first *auditlog.Event, seq uint64) (*storedResult, error) {
	subject := streams.ResultSubject(cfg.Result.Subject, cfg.Name, int(first.Partition))
	for _, since := range []time.Time{first.Time.Add(-resultSkew), {}} {
		found, passed, err := searchResult(ctx, js, stored.ReadOptions{Stream: cfg.Result.Stream, Filters: []string{subject}, Since: since, HeadersOnly: true}, seq)
		if found != nil || err != nil || !passed {
			return found, err
		}
	}
	return nil, nil //nolint:nilnil // there is none, which is no error
}

// searchResult reads until the row's result, or one behind its place, which it has passed.
func searchResult(ctx context.Context, js jetstream.JetStream, o stored.ReadOptions, seq uint64) (found *storedResult, passed bool, err error) {
	r, err := stored.Open(ctx, js, o)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer r.Close()
	for {
		m, at, err := r.Next(ctx)
		if err != nil || m == nil {
			return nil, false, err
		}
		v, err := stored.NewResult(m)
		switch {
		case err != nil:
			return nil, false, err
		case v.Seq == seq:
			md, err := m.Metadata()
			if err != nil {
				return nil, false, err
			}
			return &storedResult{at, md.Timestamp, m.Headers().Get(streams.HeaderOwner)}, true, nil
		case v.Seq > seq:
			return nil, true, nil
		}
	}
}

// tell prints the story: when, how long after the row was taken, what.
func (s *story) tell(w io.Writer, cfg *config.Config, stored *storedResult, colour bool) {
	var emitted *auditlog.Row // the row event of the term that emitted it; until then the last one
	var queued time.Time
	owners := make(map[string]bool)
	for _, e := range s.events {
		if e.Call != nil {
			owners[e.Call.Owner] = true
			continue
		}
		owners[e.Row.Owner] = true
		if queued.IsZero() || e.Row.QueuedAt.Before(queued) {
			queued = e.Row.QueuedAt
		}
		if emitted == nil || stored == nil || e.Row.Owner == stored.owner {
			emitted = e.Row
		}
	}
	line := func(at time.Time, t tone, format string, args ...any) {
		since := ""
		if !queued.IsZero() && at.After(queued) {
			since = "+" + terminal.Duration(at.Sub(queued))
		}
		printLine(w, fmt.Sprintf("  %s  %9s  ", clockOf(at), since)+fmt.Sprintf(format, args...), t, colour)
	}
	printLine(w, fmt.Sprintf("row %d of stream %s, partition %s", s.seq, cfg.Input.Stream, s.events[0].Partition), toneTurn, colour)
	if !queued.IsZero() {
		line(queued, toneQuiet, "queued")
	}
	for _, e := range s.events {
		by := ""
		if len(owners) > 1 {
			by = "  by " + ownerOf(e)
		}
		if c := e.Call; c != nil {
			tokens := ""
			if c.Usage != nil {
				tokens = ", " + tokenCounts(c.Usage)
			}
			line(c.Time, toneOf(e), "call %d: %s, %s in %s%s, delay %s%s%s", c.CallIndex+1, modelText(c.Provider, c.Model), outcomeText(c),
				terminal.Duration(c.Latency), tokens, terminal.Duration(c.DispatchDelay), because(c), by)
			continue
		}
		line(e.Row.FinishedAt, toneOf(e), "finished: %s, %s, %s%s", e.Row.Status, sourceText(e.Row), attemptsText(e.Row), by)
	}
	s.tellEnd(line, cfg, emitted, stored)
}

func ownerOf(e *auditlog.Event) string {
	if e.Call != nil {
		return e.Call.Owner
	}
	return e.Row.Owner
}

// tellEnd says what the finished row waited for, and where its result is.
func (s *story) tellEnd(line func(time.Time, tone, string, ...any), cfg *config.Config, row *auditlog.Row, stored *storedResult) {
	if row == nil {
		line(s.events[len(s.events)-1].Time, toneQuiet, "not finished yet")
		return
	}
	if before := s.last[ownedTerm{row.Partition, row.Owner}]; before.at.After(row.FinishedAt) {
		line(before.at, toneQuiet, "waited %s for row %d", terminal.Duration(before.at.Sub(row.FinishedAt)), before.seq)
	} else {
		line(row.FinishedAt, toneQuiet, "waited for no earlier row")
	}
	if stored == nil {
		line(row.FinishedAt, toneQuiet, "not emitted yet, or the result is no longer stored")
		return
	}
	line(stored.at, toneQuiet, "emitted: result %d of stream %s, owner %s", stored.seq, cfg.Result.Stream, stored.owner)
}
