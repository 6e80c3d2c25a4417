package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// InspectEvery is the time between two looks at the streams of a stage that works.
	InspectEvery = time.Minute
	// inspectStored is the time between two looks at the results stream while results are
	// stored: without an advisory it bounds for how long they can push each other out.
	inspectStored = time.Second
	// inspectFresh is how long a look counts for others that ask: all partitions of a
	// process may be claimed at once.
	inspectFresh = time.Second
	// updatedAdvisory begins the subject on which the server reports that a stream was
	// edited, before the stream's name.
	updatedAdvisory = "$JS.EVENT.ADVISORY.STREAM.UPDATED."
)

// Inspector looks at the settings of a stage's streams while the stage works. What
// [Ensure] checks at the start may be changed at any time: a results stream that was set
// to discard old messages loses results without a word. It remembers where each stream
// begins, too, and reports messages that are gone from the front of one that keeps the
// log.
//
// A publisher does not learn from its answers that each of its messages pushes out
// another. So three things call for a look: the server's advisory that a stream was
// edited, which comes within milliseconds; results that were stored, since the advisory
// may not reach this user or account; and a minute that has passed.
//
// Safe for concurrent use; a nil Inspector finds nothing.
type Inspector struct {
	conn func() *nats.Conn
	cfg  Config
	log  *slog.Logger

	verdict atomic.Pointer[error] // of the last look; nil before the first one
	dirty   atomic.Bool           // results were stored since the last look at their stream
	stored  chan struct{}         // has a place for one signal that dirty was set
	edited  chan struct{}         // has a place for one signal that a stream was edited

	// looking has a place for the one look that may be under way, so that others wait for
	// it. It is no mutex, since a look waits for a server, which may be gone: who waits
	// for the look can end before it.
	looking chan struct{}

	// Belong to the look under way.
	looked time.Time         // when the last look ended
	wrong  map[string]error  // what the last look at a stream found, by name
	first  map[string]uint64 // sequence that a stream began with, by name
}

// NewInspector returns an Inspector of the streams of s, over the connection that conn
// returns.
func NewInspector(conn func() *nats.Conn, s Config, log *slog.Logger) *Inspector {
	return &Inspector{
		conn: conn, cfg: s, log: log, wrong: make(map[string]error), first: make(map[string]uint64),
		stored: make(chan struct{}, 1), edited: make(chan struct{}, 1),
		looking: make(chan struct{}, 1),
	}
}

// Run looks at the streams until ctx ends: at all of them at once when one is edited, at
// the results stream a second after results were stored, and at all of them once in each
// [InspectEvery]. The first regular look is after delay, which spreads the looks of many
// processes.
func (i *Inspector) Run(ctx context.Context, delay time.Duration) {
	var heard advisories
	defer heard.close()
	all := time.Now().Add(delay)
	var results time.Time // when to look at the results; zero while none were stored
	for {
		heard.follow(i.conn(), i.cfg, i.edited)
		next := all
		if !results.IsZero() && results.Before(all) {
			next = results
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-i.stored:
			if results.IsZero() {
				results = time.Now().Add(inspectStored)
			}
		case <-i.edited:
			i.look(ctx, everyPart)
		case <-timer.C:
			// Before the look, since results that are stored meanwhile call for another
			// one.
			i.dirty.Store(false)
			results = time.Time{}
			if next != all {
				i.look(ctx, resultsPart)
				break
			}
			i.look(ctx, everyPart)
			all = time.Now().Add(InspectEvery)
		}
		timer.Stop()
	}
}

// Verdict returns the problems that the last look has found and that keep the stage from
// working. It is nil if there are none. It does not block.
func (i *Inspector) Verdict() error {
	if i == nil {
		return nil
	}
	if err := i.verdict.Load(); err != nil {
		return *err
	}
	return nil
}

// Stored notes that results were stored, so that a look at their stream follows within a
// second. It does not block, and costs a read of memory where one is due anyway.
func (i *Inspector) Stored() {
	if i == nil || i.dirty.Load() || i.dirty.Swap(true) {
		return
	}
	signal(i.stored)
}

// signal leaves a signal where the last one was taken.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Look asks the server for the streams, unless somebody has done so within the last
// second, and returns an [*UnfitError] with all settings that would break a guarantee,
// and how to change them. It is nil if there are none. For a stream that can't be looked
// at, the result of the last look stays: the next request to that stream reports that it
// fails.
func (i *Inspector) Look(ctx context.Context) error {
	if i == nil {
		return nil
	}
	if err := i.begin(ctx); err != nil {
		return err
	}
	defer i.end()
	if !i.looked.IsZero() && time.Since(i.looked) < inspectFresh {
		return i.Verdict()
	}
	return i.ask(ctx, everyPart)
}

// look looks at some of the streams, however short ago the last look was. The terms read
// the verdict.
func (i *Inspector) look(ctx context.Context, which func(part) bool) {
	if i.begin(ctx) != nil {
		return
	}
	defer i.end()
	_ = i.ask(ctx, which)
}

// begin waits until no other look is under way. The error is the cause of the end of ctx.
func (i *Inspector) begin(ctx context.Context) error {
	select {
	case i.looking <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (i *Inspector) end() { <-i.looking }

func everyPart(part) bool     { return true }
func resultsPart(p part) bool { return p.field == FieldResultStream }

// ask asks the server for some of the streams. The caller has begun a look.
func (i *Inspector) ask(ctx context.Context, which func(part) bool) error {
	js, err := JetStream(i.conn())
	if err != nil {
		return err
	}
	var wrong []error
	asked, unanswered := 0, false
	parts := i.cfg.parts(batchesKnown(i.conn()))
	for _, part := range parts {
		name := part.want.Name
		if which(part) && !unanswered { // after one time-out the others would time out, too
			stream, err := Look(ctx, js, name)
			switch {
			case errors.Is(err, jetstream.ErrStreamNotFound):
				delete(i.wrong, name)
			case err != nil:
				unanswered = true
			default:
				i.compare(part, stream.CachedInfo())
			}
			asked++
		}
		if found := i.wrong[name]; found != nil {
			wrong = append(wrong, found)
		}
	}
	var verdict error
	if len(wrong) > 0 {
		verdict = &UnfitError{Err: errors.Join(wrong...)}
	}
	i.verdict.Store(&verdict)
	if asked == len(parts) && !unanswered {
		i.looked = time.Now()
	}
	return verdict
}

// compare notes the settings of a stream that break a guarantee, and reports messages
// that are gone from its front since the last look where the stream keeps the log.
func (i *Inspector) compare(p part, info *jetstream.StreamInfo) {
	name, begins := info.Config.Name, info.State.FirstSeq
	delete(i.wrong, name)
	if found := p.check(info.Config); len(found) > 0 {
		i.wrong[name] = NewSettingError(p.field, "%s: stream %s was changed: %w", p.field, name, found)
	}
	if p.field != FieldResultStream && p.field != FieldLaneStream {
		return
	}
	began, known := i.first[name]
	i.first[name] = begins
	if known && begins > began && began > 0 {
		i.log.Warn("messages are gone from the front of a stream: it was purged, or its settings remove old messages",
			slog.String("stream", name), slog.Uint64("began_at", began),
			slog.Uint64("begins_at", begins),
			slog.String("do", fmt.Sprintf("stage verify shows what is missing; nats stream info %s shows the limits", name)))
	}
}

// advisories are the subscriptions to what the server reports about edited streams. The
// zero value has none.
type advisories struct {
	nc   *nats.Conn
	subs []*nats.Subscription
}

// follow subscribes over a connection, unless it has done so: the connection is another
// one after it was closed for good, and the client library itself renews subscriptions
// when it reconnects. An error is none of the stage's: a user who may not subscribe
// learns of an edit at the next look.
func (a *advisories) follow(nc *nats.Conn, cfg Config, edited chan<- struct{}) {
	if a.nc == nc {
		return
	}
	a.close()
	a.nc = nc
	for _, part := range cfg.parts(batchesKnown(nc)) {
		subject := updatedAdvisory + part.want.Name
		if sub, err := nc.Subscribe(subject, func(*nats.Msg) { signal(edited) }); err == nil {
			a.subs = append(a.subs, sub)
		}
	}
}

// close ends the subscriptions: the connection may be its caller's.
func (a *advisories) close() {
	for _, sub := range a.subs {
		_ = sub.Unsubscribe() // it is gone with its connection
	}
	a.subs = nil
}
