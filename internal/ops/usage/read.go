package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// Options select what is read of the audit.
type Options struct {
	// Stages are the names of the stages, at least one, each once.
	Stages []string
	// Since leaves out events that were stored earlier. If it is zero all are read.
	Since time.Time
	// Recreated is set for an embedded store, where each connection may be to another
	// process. The stream may then be another one, too, and the server is asked whether it
	// is, see [stored.Generation].
	Recreated bool
}

// Reader reads the events of some stages from one audit stream into a book. It is not safe
// for concurrent use.
type Reader struct {
	cfg      *config.Config
	book     *Book
	options  Options
	at       uint64 // the last message that was read
	which    stored.Generation
	begins   time.Time // of the stream; zero means that nothing of it is gone
	first    uint64    // the first message that is left
	audit    time.Time // when the stream was created
	rolled   map[rolledDay]*rolled
	rollsUp  bool    // it brings the roll-up up to date, see [RollUp]
	noRollUp string  // why it is not known whether there is a roll-up, or empty
	fields   *fields // nil where calls are not grouped by a member of their rows
	gone     uint64  // calls whose rows are no longer stored
	show     shower
}

// NewReader returns a reader at the beginning of the stream.
func NewReader(cfg *config.Config, book *Book, o Options) *Reader {
	r := &Reader{cfg: cfg, book: book, options: o, show: shower{dirty: true}}
	r.which = stored.Generation{Ask: o.Recreated, Restart: func() { r.at = 0 }}
	for _, d := range book.by {
		if name, ok := d.Field(); ok {
			r.fields = newFields(cfg, name)
		}
	}
	return r
}

// Report returns the sums so far.
func (r *Reader) Report() *Report {
	p := r.book.Report(time.Now())
	p.RowsGone, p.NoRollUp = r.gone, r.noRollUp
	p.Stages, p.Since = r.options.Stages, timeOrNil(r.options.Since)
	if r.begins.After(r.options.Since) && !r.covers(r.first) {
		p.AuditBegins = timeOrNil(r.begins)
	}
	p.sortBy(r.options.Stages)
	return p
}

// Read reads the events that are stored now and that it has not read yet. A stream that
// does not exist is [jetstream.ErrStreamNotFound].
func (r *Reader) Read(ctx context.Context, js jetstream.JetStream) error {
	if err := r.begin(ctx, js); err != nil {
		return err
	}
	return r.read(ctx, js, nil)
}

// Show calls changed the first time, and then if events were read since [Reader.Follow] or
// Show have called it last.
func (r *Reader) Show(changed func() error) error {
	if !r.show.dirty {
		return nil
	}
	r.show.changed = changed
	return r.show.now()
}

// showEvery is the time between two reports of changes.
const showEvery = time.Second

// Follow reads the events that are stored and those that come, until ctx ends, and
// returns its cause. It calls changed once all that was stored has been read, then after
// events that changed the sums, at most once a second. While the stream does not exist it
// waits; it calls waiting once when it begins to. A stream that was deleted and created
// again is read from its beginning, and adds to the sums.
func (r *Reader) Follow(ctx context.Context, js jetstream.JetStream, waiting func(), changed func() error) error {
	return r.which.Follow(ctx, func() error {
		if err := r.begin(ctx, js); err != nil {
			return err
		}
		return r.read(ctx, js, changed)
	}, waiting)
}

// begin finds out what stream is there, and since when.
func (r *Reader) begin(ctx context.Context, js jetstream.JetStream) error {
	if err := r.which.Look(ctx, js, r.cfg.Audit.Stream); err != nil {
		return err
	}
	if r.at > 0 {
		return nil
	}
	first, err := streams.NextMessage(ctx, js.Conn(), r.cfg.Audit.Stream, ">", 1)
	if err == nil && first != nil && first.Sequence > 1 {
		r.begins, r.first = first.Time, first.Sequence
	}
	if err != nil {
		return err
	}
	return r.loadRolled(ctx, js)
}

// read reads the events that come next. With changed it also waits for new ones.
func (r *Reader) read(ctx context.Context, js jetstream.JetStream, changed func() error) error {
	o := stored.ReadOptions{Stream: r.cfg.Audit.Stream, Since: r.options.Since, Follow: changed != nil}
	if r.at > 0 {
		o.Since, o.From = time.Time{}, r.at+1
	}
	for _, name := range r.options.Stages {
		prefix := r.cfg.Audit.Subject + "." + name + ".*."
		o.Filters = append(o.Filters, prefix+string(auditlog.KindCall), prefix+string(auditlog.KindBatch), prefix+string(auditlog.KindRun))
	}
	in, err := stored.Open(ctx, js, o)
	if err != nil {
		return err
	}
	defer in.Close()
	show := &r.show
	show.changed = changed
	for {
		m, err := in.NextBefore(ctx, show.late(in.Left))
		switch {
		case errors.Is(err, stored.ErrNoMore):
			err = show.now()
		case err != nil && ctx.Err() != nil && changed != nil: // the end of the command
			return errors.Join(err, r.Show(changed))
		case err != nil || m == nil:
			return err
		default:
			show.dirty = true
			if e := decode(m.Data); !r.earlier(m, e) {
				err = r.add(ctx, js, e, stored.Original(m))
			}
			if err == nil {
				r.at = m.Sequence
			}
		}
		if err != nil {
			return err
		}
	}
}

// earlier reports whether a message is what an erasure has left of an event from before
// the time that is asked about.
func (r *Reader) earlier(m *jetstream.RawStreamMsg, e *auditlog.Event) bool {
	return e != nil && stored.Original(m) != m.Sequence && e.Time.Before(r.options.Since)
}

// add adds an event of that sequence to the book, unless it is in a day that was rolled up.
// If calls are grouped by a member of their rows, it looks up the member of the call's row
// first.
func (r *Reader) add(ctx context.Context, js jetstream.JetStream, e *auditlog.Event, seq uint64) error {
	if e != nil && e.Call != nil && r.inRolled(e.Call, seq) {
		r.book.recall(e.Call)
		return nil
	}
	if r.fields == nil || e == nil || e.Call == nil {
		r.book.Add(e)
		return nil
	}
	value, found, err := r.fields.of(ctx, js, e.Call)
	if err != nil {
		return err
	}
	if !found {
		r.gone++
	}
	r.book.AddOf(e.Call, value)
	return nil
}

// decode returns an event, or nil if the message is no event of this version.
func decode(data []byte) *auditlog.Event {
	e, err := auditlog.Decode(data)
	if err != nil {
		return nil
	}
	return e
}

// shower calls changed when it is time.
type shower struct {
	changed func() error // nil means never
	dirty   bool         // there is something to show
	shown   time.Time
}

// late returns a channel that fires when changed must be called, or nil if nothing needs
// to be shown before the next message. All messages already stored are read before the
// first report.
func (s *shower) late(left uint64) <-chan time.Time {
	if s.changed == nil || !s.dirty || s.shown.IsZero() && left > 0 {
		return nil
	}
	return time.After(showEvery - time.Since(s.shown))
}

func (s *shower) now() error {
	s.dirty, s.shown = false, time.Now()
	return s.changed()
}

// Unknown looks for stages without any event in the audit. It returns their names, and the
// names of all stages with events. A stream that does not exist is
// [jetstream.ErrStreamNotFound].
func Unknown(ctx context.Context, js jetstream.JetStream, cfg *config.Config, stages []string) (unknown, known []string, err error) {
	prefix := cfg.Audit.Subject + "."
	o := stored.ReadOptions{
		Stream: cfg.Audit.Stream, Filters: []string{prefix + "*.*.*"}, LastPerSubject: true, HeadersOnly: true,
	}
	err = stored.Each(ctx, js, o, func(m *jetstream.RawStreamMsg) error {
		name, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, prefix), ".")
		if i, has := slices.BinarySearch(known, name); !has {
			known = slices.Insert(known, i, name)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for _, name := range stages {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	return unknown, known, nil
}

// UnknownError says that the audit holds no event of some stages.
func UnknownError(stream string, unknown, known []string) error {
	there := "it holds events of no stage"
	if len(known) > 0 {
		there = "it holds events of " + strings.Join(known, ", ")
	}
	return fmt.Errorf("stream %s has no audit event of stage %s: %s", stream, strings.Join(unknown, ", "), there)
}
