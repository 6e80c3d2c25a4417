// Package recorder stores the audit events of a stage: each is sent until the audit
// stream has acknowledged it.
//
//	cfg := recorder.Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: log}
//	rec := recorder.New(nc, cfg)
//	go rec.Run(ctx)
//	rec.RecordCall(&call, func() { … }) // stored: whatever waits for the event may go on
//	err := rec.Flush(ctx)
package recorder

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/nats-io/nats.go"
)

// Config says where audit events go.
type Config struct {
	// Stream is the audit stream. If it is empty, events never go in groups.
	Stream string
	// Subject is the prefix of the audit subjects, `<Subject>.<Name>.<partition>.<kind>`.
	Subject string
	// Name is the stage's name.
	Name string
	// MaxPending bounds the call events that wait for the server's answer; a call event
	// beyond it waits until there is room. Default 4096.
	MaxPending int
	// MaxPendingBytes bounds the bytes of those events. An event larger than that waits
	// until no other does. Default 32 MiB.
	MaxPendingBytes int
	// Payloads says what call events keep of requests and replies. The zero value keeps
	// them whole.
	Payloads auditlog.Payloads
	// Recorded, if set, is called with each event as it comes, before it is stored. The
	// event is not a copy, so Recorded must not keep its bodies. It must not block.
	Recorded func(e auditlog.Event)
	// Stored, if set, is called with the kind of each event that the stream holds. It
	// must not block.
	Stored func(kind string)
	// Explain puts an error into words for the log and for [Recorder.Problem], as
	// [streams.Explain] does. If it is nil, the error's own words are used.
	Explain func(error) string
	// Logger must not be nil.
	Logger *slog.Logger
}

// Recorder stores audit events. Each is kept until the audit stream has acknowledged it:
// a time-out or a refusal (the stream is full, has no leader, or permission was lost)
// sends the identical message again, for as long as it takes. A result waits for its
// events, so an audit that can't be stored stops the emission and loses nothing.
//
// Few events go out at once, one by one. Where they come fast they gather for a few
// milliseconds and go together, because most of what an event costs client and server is
// a wake-up. See [queue] for when events go, and [ways] for how.
//
// One Recorder serves all partitions of a process. It is safe for concurrent use.
type Recorder struct {
	cfg     Config
	id      string       // what the ids of its groups begin with
	runs    atomic.Int64 // run events so far
	records records
	// bytesMax is how large an event may be, as of the last look at the connection. The
	// connection's own lock is held while it writes, for which no event should wait.
	bytesMax atomic.Int64

	// answering guards stored, which lists the events that the present answer reports as
	// stored. While one connection takes the place of another, answers may come by both,
	// each in a goroutine of its own. answering is locked before mu.
	answering sync.Mutex
	stored    []*record

	// mu guards the rest.
	mu       sync.Mutex
	subjects subjects
	room     room
	queue    queue
	link     link
	inFlight inFlight
	ways     ways
	trouble  trouble
}

// New returns a Recorder; [Recorder.Run] must be running for its events to be stored.
func New(nc *nats.Conn, cfg Config) *Recorder {
	if cfg.MaxPending <= 0 {
		cfg.MaxPending = 4096
	}
	if cfg.MaxPendingBytes <= 0 {
		cfg.MaxPendingBytes = 32 << 20
	}
	if cfg.Explain == nil {
		cfg.Explain = error.Error
	}
	r := &Recorder{
		cfg:      cfg,
		id:       rand.Text() + "-",
		subjects: newSubjects(cfg.Subject, cfg.Name),
		room:     room{eventsMax: cfg.MaxPending, bytesMax: cfg.MaxPendingBytes},
		link:     newLink(nc),
		inFlight: inFlight{single: make(map[uint64]*record)},
		ways:     newWays(),
		trouble:  trouble{log: cfg.Logger},
	}
	r.room.freed.L = &r.mu
	r.lookAtMax()
	r.queue.pace.wake = r.gathered
	return r
}

// Run sends events, receives the server's answers and sends again what got none, until
// ctx ends. Call it once. Its error says that it could not subscribe to the answers.
func (r *Recorder) Run(ctx context.Context) error {
	r.mu.Lock()
	if err := r.link.listen(r.answered); err != nil {
		r.mu.Unlock()
		return fmt.Errorf("audit: subscribe to acknowledgements: %w", err)
	}
	r.flush(time.Now())
	nc := r.link.nc
	r.mu.Unlock()
	defer r.deafen()
	defer r.Hurry()
	takes := groupsOf(ctx, nc, r.cfg.Stream)
	r.mu.Lock()
	r.ways.takes = takes
	r.mu.Unlock()
	tick := time.Tick(scanEvery)
	for {
		select {
		case <-ctx.Done():
			r.mu.Lock()
			r.queue.pace.stop()
			r.mu.Unlock()
			return nil
		case now := <-tick:
			r.mu.Lock()
			r.lookAtMax()
			r.reconnected(now)
			r.overdue(now)
			r.flush(now)
			r.mu.Unlock()
		}
	}
}

// deafen ends the subscription to the answers.
func (r *Recorder) deafen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.link.deafen()
}

// Use has the recorder send over another connection, since the present one is closed for
// good. Events that got no answer are sent again. Safe for concurrent use.
func (r *Recorder) Use(nc *nats.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.link.use(nc, r.answered, time.Now())
	r.lookAtMax()
}

// Hurry makes RecordCall return without waiting for room, from now on and where it waits
// already: for a process that must end. An event that finds no room is dropped, and
// counted by Flush. Its stored function is never called, so the result of its row is not
// emitted, and the row is processed again after a restart.
func (r *Recorder) Hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room.hurry()
}

// Flush waits until every event is stored or ctx ends. It does not wait out the time-out
// of an event whose answer got lost, but sends it again at once. An error says how many
// events are not stored. Events that were dropped (see [Recorder.Hurry]) are not waited
// for, but are an error too.
func (r *Recorder) Flush(ctx context.Context) error {
	tick, hurry := time.Tick(5*time.Millisecond), time.Tick(hurryAfter)
	for {
		r.mu.Lock()
		n, dropped := r.waiting(), r.room.dropped
		r.mu.Unlock()
		switch {
		case n == 0 && dropped == 0:
			return nil
		case n == 0:
			return fmt.Errorf("audit: %d events dropped for want of room", dropped)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("audit: %d events not stored, of them %d dropped for want of room: %w",
				n+dropped, dropped, context.Cause(ctx))
		case now := <-hurry:
			r.mu.Lock()
			r.sendAgain(now.Add(-hurryAfter), now)
			r.mu.Unlock()
		case <-tick:
		}
	}
}

// Pending is the number of events that the stream has not acknowledged yet.
func (r *Recorder) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting()
}

// waiting is Pending with the lock held.
func (r *Recorder) waiting() int { return r.queue.len() + r.inFlight.len() }

// Problem says why events can't be stored at the moment. It is empty when they can.
func (r *Recorder) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trouble.problem
}

// Refused reports whether the last news of any event was that it is not stored: the
// stream refused it, or no answer came in time. The next event that is stored ends it.
// Safe for concurrent use.
func (r *Recorder) Refused() bool { return r.trouble.refusing.Load() }

// RecordRun stores a run event. It does not block: no caller waits for the event.
func (r *Recorder) RecordRun(e *auditlog.Run) {
	id := e.MsgID(int(r.runs.Add(1) - 1))
	event := auditlog.Event{Kind: auditlog.KindRun, Header: e.Header, Run: e}
	r.publish(event, e, id, nil)
}

// RecordCall stores the event of a call. It blocks while MaxPending events wait, or
// MaxPendingBytes, until [Recorder.Hurry]. stored is called once when the stream holds
// the event, or never if the process ends first. It must not block, and may be nil. The
// hash is the SHA-256 of the event as it is recorded.
func (r *Recorder) RecordCall(e *auditlog.Call, stored func()) (hash [sha256.Size]byte) {
	event := auditlog.Event{Kind: auditlog.KindCall, Header: e.Header, Call: e}
	return r.publish(event, e, e.MsgID(), stored)
}

// RecordRow stores a row event; stored and hash are as in [Recorder.RecordCall]. It does
// not block: the window bounds the rows.
func (r *Recorder) RecordRow(e *auditlog.Row, stored func()) (hash [sha256.Size]byte) {
	event := auditlog.Event{Kind: auditlog.KindRow, Header: e.Header, Row: e}
	return r.publish(event, e, e.MsgID(), stored)
}

// RecordBatch stores a batch event; stored is as in [Recorder.RecordCall]. It does not
// block: the lane bounds the batches.
func (r *Recorder) RecordBatch(e *auditlog.Batch, stored func()) {
	event := auditlog.Event{Kind: auditlog.KindBatch, Header: e.Header, Batch: e}
	r.publish(event, e, e.MsgID(), stored)
}

// encoder is the event of auditlog that an [auditlog.Event] wraps.
type encoder interface {
	AppendJSON(dst []byte, payloads auditlog.Payloads, bytesMax int) []byte
}

func (r *Recorder) publish(event auditlog.Event, body encoder, id string, stored func()) (hash [sha256.Size]byte) {
	if r.cfg.Recorded != nil {
		event.SchemaVersion = auditlog.SchemaVersion
		r.cfg.Recorded(event)
	}
	rec := r.records.get()
	rec.kind, rec.id, rec.stored = event.Kind, id, stored
	if c := event.Call; c != nil && len(c.Rows) > 0 {
		rec.rows = fmt.Sprintf("%d-%d", slices.Min(c.Rows), slices.Max(c.Rows))
	}
	rec.data = body.AppendJSON(rec.data, r.cfg.Payloads, int(r.bytesMax.Load()))
	hash = sha256.Sum256(rec.data)
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.limited() && !r.room.take(len(rec.data)) {
		return hash // the process ends, see Hurry
	}
	rec.subject = r.subjects.of(event.Partition, event.Kind)
	now := time.Now()
	// Only the call of a single row has a sequence, and is followed by the event of its
	// row.
	r.queue.add(rec, event.Call != nil && event.Call.Sequence != 0, now)
	r.flush(now)
	return hash
}
