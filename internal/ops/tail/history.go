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
	"github.com/llm-stage/stage/internal/ops/erased"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// history is what the audit holds of one row, and of the rows before it as far as it had
// to wait for them.
type history struct {
	seq    uint64            // of the row in the input stream
	item   *int              // of the row: the element whose calls are shown; nil means all
	events []*auditlog.Event // its call and row events, in stream order
	order  streams.Order     // in which the row was emitted
	// last has, by owner, the row that finished last among those that the row had to wait
	// for.
	last map[string]*auditlog.Row
}

// History prints all that the audit has of the row o.Row, in events after o.Since: when
// it was queued, each call, the row that it waited for, and its result. The calls of a
// row that fans out are grouped by element. A row is finished when its result is stored.
// Until then, even after the row is answered, o.Now says what it waits for. With o.JSON
// it prints the events alone, as they are stored. If there are none the error is one of
// [IsNoEvent].
func History(ctx context.Context, js jetstream.JetStream, cfg *config.Config, out *bufio.Writer, o Options) error {
	search := search{js: js, cfg: cfg, row: o.Row, item: o.Item, since: o.Since}
	t, err := erased.Of(ctx, js, cfg, o.Row)
	if err != nil {
		return err
	}
	if t != nil {
		search.erased(t)
	}
	if o.JSON {
		search.found = func(raw []byte, _ *auditlog.Event) error { return stored.WriteLine(out, raw) }
		return search.events(ctx)
	}
	s, result, err := search.history(ctx)
	if err == nil {
		s.finishErased(result)
		s.print(out, cfg, result, o.Colour)
	}
	if t != nil && (err == nil || IsNoEvent(err)) {
		if err != nil {
			printLine(out, fmt.Sprintf("row %d of stream %s", o.Row, cfg.Input.Stream), toneTurn, o.Colour)
		}
		printLine(out, fmt.Sprintf("  %s  %9s  ", clockOf(t.At), "")+erasedText(t), toneWarn, o.Colour)
		return nil
	}
	if o.Now == nil || err != nil && !IsNoEvent(err) || result != nil {
		return err
	}
	calls, waits := o.Now(ctx)
	if err != nil && (len(calls) > 0 || waits != "") {
		printLine(out, fmt.Sprintf("row %d%s of stream %s", o.Row, itemText(o.Item), cfg.Input.Stream), toneTurn, o.Colour)
		err = nil
	}
	now := time.Now()
	if waits != "" {
		printLine(out, fmt.Sprintf("  %s  %9s  ", clockOf(now), "")+waits, toneQuiet, o.Colour)
	}
	for _, c := range calls {
		if o.Item == nil || c.Item != nil && *c.Item == *o.Item {
			printLine(out, fmt.Sprintf("  %s  %9s  ", clockOf(c.Since), "")+c.text(now), toneQuiet, o.Colour)
		}
	}
	return err
}

// InFlight is a call of the row that has not ended, so that the audit does not hold it yet.
type InFlight struct {
	Item            *int // of the row; nil means that it is for all of it
	Attempt         int  // from 1
	Provider, Model string
	Since           time.Time
	Host            string // where it is made
}

// text describes the call, as in "call in flight for 43.1 s, attempt 2: openai gpt-5, on
// pod-0".
func (c *InFlight) text(now time.Time) string {
	text := fmt.Sprintf("call in flight for %s, attempt %d: %s", terminal.Duration(max(now.Sub(c.Since), time.Millisecond)), c.Attempt, modelText(c.Provider, c.Model))
	if c.Item != nil {
		text = fmt.Sprintf("%-4s %s", itemText(c.Item), text)
	}
	if c.Host != "" {
		text += ", on " + c.Host
	}
	return text
}

// search looks for what is stored of a row.
type search struct {
	js        jetstream.JetStream
	cfg       *config.Config
	row       uint64
	item      *int
	partition *int      // only events of this one; nil means of all
	since     time.Time // only events that are stored later
	until     time.Time // only events that are stored before; zero means all
	// brief reads no more of the streams than necessary: to some seconds after the row's
	// result. It misses events that were stored later, by an owner that had lost the row to
	// another.
	brief bool
	// known is the row's result, where that was found already.
	known *emission
	// found is called with each event. Its error ends the search.
	found func(raw []byte, e *auditlog.Event) error
}

// errPast ends a reading: what follows is later than what is looked for.
var errPast = errors.New("past what is looked for")

// options returns what selects a part of a stream.
func (r *search) options(since time.Time) stored.ReadOptions {
	return stored.ReadOptions{Since: since, Brief: r.brief}
}

// events looks for the events of the row. If there are none the error is one of
// [IsNoEvent].
func (r *search) events(ctx context.Context) error {
	var first *auditlog.Event
	until, some := r.until, false
	passed := func(at time.Time) error {
		if !until.IsZero() && at.After(until) {
			return errPast
		}
		return nil
	}
	err := stored.FindAudit(ctx, r.js, r.cfg, r.options(r.since), r.row, passed, func(m stored.AuditMessage) (err error) {
		e := m.Event
		if e == nil { // of a newer version
			return nil
		}
		own := r.own(e)
		if len(own) == 0 {
			return nil
		}
		if first == nil {
			first = own[0]
		}
		if r.brief && e.Row != nil && until.IsZero() {
			result, err := r.result(ctx, first)
			if err != nil {
				return err
			}
			if result != nil {
				until = result.stored.Add(serverSkew)
			}
		}
		some = some || e.Call != nil || r.item == nil
		for _, e := range own {
			if err := r.found(m.Raw, e); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, errPast):
		return err
	case !some:
		return &noEventError{row: r.row, item: r.item, since: r.since, stream: r.cfg.Audit.Stream, stage: r.cfg.Name}
	}
	return nil
}

// own returns an event if it is among the events that are looked for. If it is a call that
// served several rows, own returns the part of the row, or of each of its elements.
func (r *search) own(e *auditlog.Event) (own []*auditlog.Event) {
	switch {
	case r.partition != nil && int(e.Partition) != *r.partition:
	case e.Row != nil && e.Row.Sequence == r.row:
		return []*auditlog.Event{e}
	case e.Call != nil:
		for c := range e.Call.EachRow() {
			if c.Sequence == r.row && (r.item == nil || c.Item != nil && *c.Item == *r.item) {
				of := *e
				of.Call = c
				own = append(own, &of)
			}
		}
	}
	return own
}

// history reads all that is stored of the row. result is nil if the row has none.
func (r *search) history(ctx context.Context) (s *history, result *emission, err error) {
	s = &history{seq: r.row, item: r.item, order: r.cfg.Order.Mode, last: make(map[string]*auditlog.Row)}
	r.found = func(_ []byte, e *auditlog.Event) error {
		s.events = append(s.events, e)
		return nil
	}
	if err := r.events(ctx); err != nil {
		return nil, nil, err
	}
	if s.emitted(nil) != nil { // a row that is not emitted has no result
		if result, err = r.result(ctx, s.events[0]); err != nil {
			return nil, nil, err
		}
	}
	s.setOrder(result)
	return s, result, r.readBefore(ctx, s, s.emitted(result), result)
}

// setOrder finds out in which order the row was emitted, from what is stored of it: the
// configuration may have changed since. If neither its result nor its key is stored, the
// configuration decides.
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

// readBefore finds the row that the row waited for. In order by key that is a row of the
// same key. It reads from the time when the row was finished to the time when its result
// was stored, since only a row that finished later can have held it up.
func (r *search) readBefore(ctx context.Context, s *history, row *auditlog.Row, result *emission) error {
	if row == nil || s.order == streams.OrderNone || s.order == streams.OrderKey && (row.Key == nil || result == nil) {
		return nil
	}
	later := r.options(row.FinishedAt.Add(-clockSkew))
	if r.brief && r.since.After(later.Since) {
		later.Since = r.since
	}
	err := stored.EachAudit(ctx, r.js, r.cfg, later, []auditlog.Kind{auditlog.KindRow}, func(m stored.AuditMessage) error {
		if result != nil && m.Stored.After(result.stored.Add(serverSkew)) {
			return errPast
		}
		if m.Event == nil || m.Event.Row == nil {
			return nil
		}
		if e := m.Event.Row; e.Sequence < s.seq && (s.order != streams.OrderKey || e.Key != nil && *e.Key == *row.Key) {
			s.before(e)
		}
		return nil
	})
	if errors.Is(err, errPast) {
		err = nil
	}
	return err
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

// IsNoEvent reports whether [History] or [Tell] has found nothing of the row.
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

// clockSkew is how far the clocks of stage and server may be apart for what is stored of
// a row to be found at once.
const clockSkew = time.Minute

// emission is a row's result as far as a history shows it.
type emission struct {
	at     uint64 // its sequence in the result stream
	stored time.Time
	owner  string
	low    *uint64 // the low-water mark that it names, or nil if it names none, as in stream order
}

// result returns the row's result, or nil. A result is stored after the events of its
// row, so it reads from the first event on, and all of them if that proves nothing, since
// the clocks may disagree.
func (r *search) result(ctx context.Context, first *auditlog.Event) (*emission, error) {
	if r.known != nil {
		return r.known, nil
	}
	for _, since := range []time.Time{first.Time.Add(-clockSkew), {}} {
		o := r.options(since)
		o.Stream, o.Filters, o.HeadersOnly = r.cfg.Result.Stream, []string{stored.LogSubject(r.cfg, int(first.Partition), "rows")}, true
		reader, err := stored.Open(ctx, r.js, o)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, nil //nolint:nilnil // no stream, no result
		}
		if err != nil {
			return nil, err
		}
		found, missing, err := scanResults(ctx, reader, r.row)
		reader.Close()
		if err != nil || found != nil || missing {
			return found, err
		}
	}
	return nil, nil //nolint:nilnil // there is none, which is no error
}

// scanResults reads results up to the result of a row, or up to where that must have been:
// in stream order that is a later row, otherwise a low-water mark that includes the row.
// missing reports that the row has no earlier result either, because the first result that
// was read is in stream order and before it.
func scanResults(ctx context.Context, r *stored.Reader, seq uint64) (found *emission, missing bool, err error) {
	for {
		m, err := r.Next(ctx)
		if err != nil || m == nil {
			return nil, missing, err
		}
		h := m.Header
		// It is 0 if the result names no row.
		this, _ := strconv.ParseUint(h.Get(streams.HeaderSourceSeq), 10, 64)
		done := this
		var low *uint64
		if n, err := strconv.ParseUint(h.Get(streams.HeaderLow), 10, 64); err == nil {
			low, done = &n, n
		}
		if this == seq {
			return &emission{at: m.Sequence, stored: m.Time, owner: h.Get(streams.HeaderOwner), low: low}, false, nil
		}
		if done >= seq {
			return nil, missing, nil
		}
		missing = missing || low == nil
	}
}

// step is one line of a history.
type step struct {
	kind  StepKind
	at    time.Time
	tone  tone
	text  string
	event *auditlog.Event // of a call, and of the end of the row, or nil
	row   uint64          // that it waited for, or 0
}

// print prints the history: when, how long after the row was queued, what.
func (s *history) print(w io.Writer, cfg *config.Config, result *emission, colour bool) {
	head := fmt.Sprintf("row %d%s of stream %s, partition %s", s.seq, itemText(s.item), cfg.Input.Stream, s.events[0].Partition)
	if row := s.emitted(result); row != nil && row.Key != nil {
		head += ", " + keyText(row)
	}
	printLine(w, head, toneTurn, colour)
	queued := s.queued()
	for _, step := range s.steps(cfg, result) {
		since := ""
		if !queued.IsZero() && step.at.After(queued) {
			since = "+" + terminal.Duration(step.at.Sub(queued))
		}
		printLine(w, fmt.Sprintf("  %s  %9s  ", clockOf(step.at), since)+step.text, step.tone, colour)
	}
}

// steps returns what happened to the row. The calls of a row that fans out come first,
// element by element: in the order of time, the calls of hundreds of elements would be
// mixed.
func (s *history) steps(cfg *config.Config, result *emission) (steps []step) {
	if queued := s.queued(); !queued.IsZero() {
		steps = append(steps, step{kind: StepQueued, at: queued, text: "queued"})
	}
	several := s.ownedBySeveral()
	for _, e := range slices.SortedStableFunc(slices.Values(s.events), func(a, b *auditlog.Event) int { return cmp.Compare(placeOf(a), placeOf(b)) }) {
		by := ""
		if several {
			by = "  by " + ownerOf(e)
		}
		if e.Call != nil {
			steps = append(steps, step{kind: StepCall, at: e.Call.Time, tone: toneOf(e), text: callText(e.Call) + by, event: e})
			continue
		}
		text := fmt.Sprintf("finished: %s, %s, %s%s", e.Row.Status, sourceText(e.Row), attemptsText(e.Row), by)
		steps = append(steps, step{kind: StepFinished, at: e.Row.FinishedAt, tone: toneOf(e), text: text, event: e})
	}
	return append(steps, s.end(cfg, s.emitted(result), result)...)
}

// queued returns when the row was queued first. It is zero if that is not in the audit.
func (s *history) queued() (first time.Time) {
	for _, e := range s.events {
		if e.Row != nil && (first.IsZero() || e.Row.QueuedAt.Before(first)) {
			first = e.Row.QueuedAt
		}
	}
	return first
}

// emitted returns the row event of the term that stored the result. Without a result it
// returns the last row event, or nil if there is none.
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

// placeOf returns the place of an event in the history of its row: first come the calls of
// elements, by element, and then all other events.
func placeOf(e *auditlog.Event) int {
	if e.Call != nil && e.Call.Item != nil {
		return *e.Call.Item
	}
	return math.MaxInt
}

// callText describes one call of the row, or of an element of it.
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

// end returns what the finished row waited for, and where its result is.
func (s *history) end(cfg *config.Config, row *auditlog.Row, result *emission) (steps []step) {
	if row == nil {
		return []step{{kind: StepOpen, at: s.events[len(s.events)-1].Time, text: "not finished yet"}}
	}
	if wait := s.wait(row, result != nil); wait != nil {
		steps = append(steps, *wait)
	}
	switch {
	case result == nil && s.order == streams.OrderKey:
		return append(steps, step{kind: StepOpen, at: row.FinishedAt, text: "not emitted yet: an earlier row of its key has no result, or its own is no longer stored"})
	case result == nil:
		return append(steps, step{kind: StepOpen, at: row.FinishedAt, text: "not emitted yet, or the result is no longer stored"})
	}
	return append(steps, step{
		kind: StepEmitted, at: result.stored, text: fmt.Sprintf("emitted: result %d of stream %s, owner %s", result.at, cfg.Result.Stream, result.owner),
	})
}

// wait returns what the answered row waited for before it could be emitted, or nil if
// that is not known. Until the row is emitted it may wait for a row that has no event yet.
// In order by key the events then say nothing, since only the row of the key that was
// answered last counts. In stream order they say something only if an earlier row was
// answered later than this one.
func (s *history) wait(row *auditlog.Row, emitted bool) *step {
	of := ""
	switch s.order {
	case streams.OrderNone:
		return &step{kind: StepWaited, at: row.FinishedAt, text: "waited for no other row"}
	case streams.OrderKey:
		if !emitted {
			return nil
		}
		of = " of its key"
	case streams.OrderStream:
	}
	before := s.last[row.Owner]
	if before == nil || !before.FinishedAt.After(row.FinishedAt) {
		if !emitted {
			return nil
		}
		return &step{kind: StepWaited, at: row.FinishedAt, text: "waited for no earlier row" + of}
	}
	text := fmt.Sprintf("waited %s for row %d%s", terminal.Duration(before.FinishedAt.Sub(row.FinishedAt)), before.Sequence, of)
	return &step{kind: StepWaited, at: before.FinishedAt, text: text, row: before.Sequence}
}
