// Package recorder stores the audit events of a stage: each is sent until the audit stream has acknowledged it.
//
//	rec := recorder.New(nc, recorder.Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: log})
//	go rec.Run(ctx)
//	rec.RecordCall(&call, func() { … }) // stored: whatever waits for the event may go on
//	err := rec.Flush(ctx)
package recorder

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// ackTimeout is how long an event may go without the server's answer before it is sent again. The server drops
	// the second copy by its message id.
	ackTimeout = 5 * time.Second
	// refusedBackoff is the wait before an event that the server refused is sent again.
	refusedBackoff = 500 * time.Millisecond
	scanEvery      = 250 * time.Millisecond
	// hurryAfter is how long an answer is waited for after a reconnect, and at the end of a process, before the event is
	// sent again. Answers get lost with their connection: a reconnect brings back the subscription, not what was on its way
	// to it.
	hurryAfter = 300 * time.Millisecond
	// warnEvery is the shortest time between two warnings that events are not stored: each event that waits would
	// else give one at each attempt.
	warnEvery = time.Minute
	// inFlightMin is how many events may be on their way one by one, however slow the server is.
	inFlightMin = 8
	// spareBytesMax is the largest buffer that is kept for another event.
	spareBytesMax = 64 << 10
)

// Config says where audit events go.
type Config struct {
	// Stream is the audit stream. Empty: events never go in batches.
	Stream string
	// Subject is the prefix of the audit subjects, `<Subject>.<Name>.<partition>.<kind>`.
	Subject string
	// Name is the stage's name.
	Name string
	// MaxPending bounds the events that wait for the server's answer; a call event beyond it waits. Default 4096.
	MaxPending int
	// MaxPendingBytes bounds the bytes of those events; an event larger than that waits until no other does. Default 32
	// MiB.
	MaxPendingBytes int
	// Payloads says what call events keep of requests and replies; the zero value keeps them whole.
	Payloads auditlog.Payloads
	// Recorded, when set, is called with each event as it comes, before it is stored: of the very events, whose bodies it
	// must not keep. It must not block.
	Recorded func(e auditlog.Event)
	// Stored, when set, is called with the kind of each event that the stream holds. It must not block.
	Stored func(kind string)
	// Explain puts an error into words for the log and for [Recorder.Problem]; see [streams.Explain]. Nil: its own words.
	Explain func(error) string
	// Logger must not be nil.
	Logger *slog.Logger
}

// Recorder stores audit events. Each is kept until the audit stream has acknowledged it: a time-out or a refusal
// (stream full, no leader, permission lost) sends the identical message again, for as long as it takes. A result waits
// for its events, so an audit that can't be stored stops the emission and loses nothing.
//
// Few events go out at once, one by one. Where they come fast they gather for a few milliseconds and go together: most
// of what an event costs client and server is a wake-up. How they are grouped is in send.go.
//
// One Recorder serves all partitions of a process. It is safe for concurrent use.
type Recorder struct {
	cfg    Config
	id     string       // what the ids of its groups begin with
	prefix string       // of the reply subjects, with the dot
	runs   atomic.Int64 // run events so far
	spare  sync.Pool    // of records

	// answering is held by answered, which owns stored, what an answer said is stored: while one connection takes the place
	// of another, answers may come by both.
	answering sync.Mutex
	stored    []*record

	mu sync.Mutex
	// nc is the present connection, and sub the subscription to the answers there, while Run is running.
	nc      *nats.Conn
	sub     *nats.Subscription
	running bool
	// held call events and heldBytes of them are not stored yet. One that would exceed the limits waits for freed, or once
	// the process is hurried is dropped.
	held, heldBytes, dropped int
	hurried                  bool
	freed                    sync.Cond
	// listening is set once answers are subscribed to. An event that goes before its connection's SUB is stored, but the
	// stream may acknowledge it (nats-server: stream.internalLoop) before the server has read the SUB: no interest in the
	// reply subject, so client.processInboundClientMsg drops the answer. The first event of a run used to race with Run
	// so.
	listening bool
	last      uint64 // number of the last event
	subjects  map[auditPlace]string
	queue     []*record          // not sent yet, oldest first
	sent      map[uint64]*record // on their way one by one, by number
	group     *group             // on its way together; nil: none
	problem   string             // why the last of the troubled was not stored; empty when there are none
	troubled  int                // events that were refused or got no answer, and are not stored yet
	refused   atomic.Bool        // see Refused
	warned    time.Time          // of the last warning; zero: none since all was well
	pace      pace
	// callsUntil is how long a queue of nothing but a few call events of rows waits: the event of the row, which waits for both,
	// follows the last of them in a fraction of a millisecond, and they go in one write and are answered in one read.
	callsUntil time.Time

	reconnects uint64    // of the connection, as far as noticed
	lost       time.Time // when the last of them was noticed: earlier answers are lost; zero: those events were sent again

	// How events go together, see send.go.
	takes    groups    // what the stream takes
	oneByOne time.Time // no groups until then
	out      nats.Msg  // the message that is being sent
	outID    []string  // its id
	// What is measured: the time of an event while others wait, in a fast batch, and of an atomic batch.
	single, each, batch streams.Cost
	lastAck             time.Time
}

// record is one event on its way.
type record struct {
	subject string
	id      string // of the message
	data    []byte
	number  uint64
	kind    auditlog.Kind
	due     time.Time // when to send it again
	refused bool      // the server's answer was no
	trouble bool      // it is one of the troubled
	stored  func()
}

// limited reports whether the record counts towards the limits of [Config].
func (r *record) limited() bool { return r.kind == auditlog.KindCall }

// auditPlace is what an event's subject depends on.
type auditPlace struct {
	partition auditlog.Partition
	kind      auditlog.Kind
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
	id := make([]string, 1)
	r := &Recorder{
		cfg:      cfg,
		nc:       nc,
		id:       rand.Text() + "-",
		prefix:   nc.NewInbox() + ".",
		subjects: make(map[auditPlace]string),
		sent:     make(map[uint64]*record),
		out:      nats.Msg{Header: nats.Header{jetstream.MsgIDHeader: id}},
		outID:    id,
		single:   streams.Cost(streams.SingleCostGuess),
		each:     streams.Cost(fastCostGuess),
		batch:    streams.Cost(streams.BatchCostGuess),
	}
	r.freed.L = &r.mu
	return r
}

// Run sends events, receives the server's answers and sends again what got none, until ctx ends. Call it once.
func (r *Recorder) Run(ctx context.Context) error {
	r.mu.Lock()
	if err := r.listen(); err != nil {
		r.mu.Unlock()
		return fmt.Errorf("audit: subscribe to acknowledgements: %w", err)
	}
	r.flush(time.Now())
	nc := r.nc
	r.mu.Unlock()
	defer r.deafen()
	defer r.Hurry()
	takes := groupsOf(ctx, nc, r.cfg.Stream)
	r.mu.Lock()
	r.takes = takes
	r.mu.Unlock()
	tick := time.Tick(scanEvery)
	for {
		select {
		case <-ctx.Done():
			r.mu.Lock()
			r.pace.stop()
			r.mu.Unlock()
			return nil
		case now := <-tick:
			r.mu.Lock()
			r.reconnected(now)
			r.overdue(now)
			r.flush(now)
			r.mu.Unlock()
		}
	}
}

// listen subscribes to the answers. The lock is held.
func (r *Recorder) listen() (err error) {
	r.running, r.listening = true, false
	if r.sub, err = r.nc.Subscribe(r.prefix+">", r.answered); err != nil {
		return err
	}
	r.listening = true
	return r.sub.SetPendingLimits(-1, -1) // bounded by what is pending
}

// deafen ends the subscription to the answers.
func (r *Recorder) deafen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = false
	if r.sub != nil {
		_ = r.sub.Unsubscribe()
	}
}

// Use has the recorder send over another connection, since the present one is closed for good. Events that got no answer
// are sent again. Safe for concurrent use.
func (r *Recorder) Use(nc *nats.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nc, r.reconnects, r.lost = nc, 0, time.Now()
	if r.running {
		_ = r.listen() // it fails where nc is closed, too, and another follows
	}
}

// Hurry makes RecordCall return without waiting for room, from now on and where it waits already: for a process that
// must end. An event that finds no room is dropped, and counted by Flush. What waits for it never hears that it is
// stored, so the result of its row is not emitted, and the row is processed again after a restart.
func (r *Recorder) Hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hurried = true
	r.freed.Broadcast()
}

// Flush waits until every event is stored or ctx ends. It does not wait out the time-out of an event whose answer got
// lost, but sends it again at once. An error says how many events are not stored; those that were dropped (see
// [Recorder.Hurry]) are not waited for, but are an error too.
func (r *Recorder) Flush(ctx context.Context) error {
	tick, hurry := time.Tick(5*time.Millisecond), time.Tick(hurryAfter)
	for {
		r.mu.Lock()
		n, dropped := r.waiting(), r.dropped
		r.mu.Unlock()
		switch {
		case n == 0 && dropped == 0:
			return nil
		case n == 0:
			return fmt.Errorf("audit: %d events dropped for want of room", dropped)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("audit: %d events not stored, of them %d dropped for want of room: %w", n+dropped, dropped, context.Cause(ctx))
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
func (r *Recorder) waiting() int { return len(r.queue) + len(r.sent) + r.group.size() }

// Problem says why events can't be stored at the moment; empty when they can.
func (r *Recorder) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// Refused reports whether the last that was heard of any event is that it was not stored: the stream refuses, or no answer
// came in time. The next one that is stored ends it. Safe for concurrent use.
func (r *Recorder) Refused() bool { return r.refused.Load() }

// RecordRun stores a run event. It does not block: no caller waits for the event.
func (r *Recorder) RecordRun(e *auditlog.Run) {
	r.publish(auditlog.Event{Kind: auditlog.KindRun, Header: e.Header, Run: e}, e, e.MsgID(int(r.runs.Add(1)-1)), nil)
}

// RecordCall stores the event of a call. It blocks while MaxPending events wait, or MaxPendingBytes, until
// [Recorder.Hurry]. Stored is called once when the stream holds the event, or never, where the process ends first; it
// must not block.
func (r *Recorder) RecordCall(e *auditlog.Call, stored func()) {
	r.publish(auditlog.Event{Kind: auditlog.KindCall, Header: e.Header, Call: e}, e, e.MsgID(), stored)
}

// RecordRow stores a row event; stored is as in [Recorder.RecordCall]. It does not block: the window bounds the rows.
func (r *Recorder) RecordRow(e *auditlog.Row, stored func()) {
	r.publish(auditlog.Event{Kind: auditlog.KindRow, Header: e.Header, Row: e}, e, e.MsgID(), stored)
}

// RecordBatch stores a batch event; stored is as in [Recorder.RecordCall]. It does not block: the lane bounds the batches.
func (r *Recorder) RecordBatch(e *auditlog.Batch, stored func()) {
	r.publish(auditlog.Event{Kind: auditlog.KindBatch, Header: e.Header, Batch: e}, e, e.MsgID(), stored)
}

// encoder is the event of auditlog that an [auditlog.Event] wraps.
type encoder interface {
	AppendJSON(dst []byte, payloads auditlog.Payloads, bytesMax int) []byte
}

func (r *Recorder) publish(event auditlog.Event, body encoder, id string, stored func()) {
	if r.cfg.Recorded != nil {
		event.SchemaVersion = auditlog.SchemaVersion
		r.cfg.Recorded(event)
	}
	rec, _ := r.spare.Get().(*record)
	if rec == nil {
		rec = new(record)
	}
	rec.kind, rec.id, rec.stored = event.Kind, id, stored
	r.mu.Lock()
	room := r.room()
	r.mu.Unlock()
	rec.data = body.AppendJSON(rec.data, r.cfg.Payloads, room)
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.limited() && !r.hold(len(rec.data)) {
		return // the process ends, see Hurry
	}
	rec.subject = r.subject(event.Partition, event.Kind)
	r.last++
	rec.number = r.last
	now := time.Now()
	switch {
	case event.Call == nil || event.Call.Sequence == 0: // a prompt of a request has no other event
		r.callsUntil = time.Time{}
	case len(r.queue) == 0:
		r.callsUntil = now.Add(gatherFor)
	}
	r.queue = append(r.queue, rec)
	r.flush(now)
}

// room is how large an event may be. The lock is held.
func (r *Recorder) room() int {
	const headers = 1024 // at most
	return int(r.nc.MaxPayload()) - headers
}

// fit cuts an event that was encoded while larger messages were allowed: the server may be restarted or reloaded with a
// lower max_payload, and the event would be refused for ever, and its row wait for it. The lock is held.
func (r *Recorder) fit(rec *record) {
	room := r.room()
	if len(rec.data) <= room {
		return
	}
	e, err := auditlog.Decode(rec.data)
	if err != nil {
		return // it is one of ours, so this can't be
	}
	var body encoder
	switch {
	case e.Call != nil:
		body = e.Call
	case e.Row != nil:
		body = e.Row
	case e.Batch != nil:
		body = e.Batch
	case e.Run != nil:
		body = e.Run
	default:
		return
	}
	before := len(rec.data)
	rec.data = body.AppendJSON(nil, auditlog.PayloadsFull, room) // what Payloads leaves out is not in it any more
	if rec.limited() {
		r.heldBytes -= before - len(rec.data)
	}
}

// hold waits until there is room for a call event, and takes it; an event larger than all of it waits until no other is
// held. Once the process is hurried none waits: ok is false where there is no room. The lock is held.
func (r *Recorder) hold(bytes int) (ok bool) {
	for r.held > 0 && (r.held >= r.cfg.MaxPending || bytes > r.cfg.MaxPendingBytes-r.heldBytes) {
		if r.hurried {
			r.dropped++
			return false
		}
		r.freed.Wait()
	}
	r.held++
	r.heldBytes += bytes
	return true
}

// subject returns the subject of an event. The lock is held.
func (r *Recorder) subject(p auditlog.Partition, kind auditlog.Kind) string {
	if kind == auditlog.KindRun {
		p = auditlog.All
	}
	place := auditPlace{p, kind}
	s := r.subjects[place]
	if s == "" {
		s = streams.AuditSubject(r.cfg.Subject, r.cfg.Name, p, kind)
		r.subjects[place] = s
	}
	return s
}

// answered handles the server's answer to one event or group.
func (r *Recorder) answered(m *nats.Msg) {
	if bytes.HasPrefix(m.Data, []byte(flowAck)) {
		return
	}
	r.answering.Lock()
	defer r.answering.Unlock()
	token, _, _ := strings.Cut(m.Subject[len(r.prefix):], ".")
	refused := streams.Refusal(m)
	now := time.Now()
	r.stored = r.stored[:0]
	r.mu.Lock()
	if g := r.group; g != nil && token == g.id {
		r.groupAnswered(m, refused, now)
	} else if number, err := strconv.ParseUint(token, 36, 64); err == nil {
		r.singleAnswered(number, refused, now)
	}
	r.flush(now)
	if len(r.stored) > 0 {
		r.refused.Store(false)
	}
	for _, rec := range r.stored {
		if rec.limited() {
			r.held--
			r.heldBytes -= len(rec.data)
		}
	}
	r.freed.Broadcast()
	r.mu.Unlock()
	for _, rec := range r.stored {
		if rec.stored != nil {
			rec.stored()
		}
		if r.cfg.Stored != nil {
			r.cfg.Stored(string(rec.kind))
		}
		r.put(rec)
	}
}

// put keeps a record's buffer for another event.
func (r *Recorder) put(rec *record) {
	if cap(rec.data) > spareBytesMax {
		rec.data = nil
	}
	*rec = record{data: rec.data[:0]}
	r.spare.Put(rec)
}

// singleAnswered notes the answer to one event. The lock is held.
func (r *Recorder) singleAnswered(number uint64, refused error, now time.Time) {
	rec := r.sent[number]
	switch {
	case rec == nil: // the answer to a copy that was sent again
	case refused != nil:
		rec.due, rec.refused = now.Add(refusedBackoff), true
		r.complain(rec, refused.Error())
		r.refused.Store(!streams.TooLarge(refused)) // another event may be smaller
	default:
		delete(r.sent, number)
		r.recovered(rec)
		r.single += (streams.Cost(now.Sub(r.lastAck)) - r.single) / 16
		r.lastAck = now
		r.stored = append(r.stored, rec)
	}
}

// complain notes why an event is not stored, and logs it at intervals. The lock is held.
func (r *Recorder) complain(rec *record, why string) {
	if !rec.trouble {
		rec.trouble = true
		r.troubled++
	}
	r.problem = why
	if now := time.Now(); r.warned.IsZero() || now.Sub(r.warned) >= warnEvery {
		r.warned = now
		r.cfg.Logger.Warn("audit events are not stored, results wait for them; retrying",
			slog.String("subject", rec.subject), slog.String("reason", why), slog.Int("waiting", r.waiting()))
	}
}

// recovered notes that an event is stored. The problem is over when the last troubled one is. The lock is held.
func (r *Recorder) recovered(rec *record) {
	if !rec.trouble {
		return
	}
	rec.trouble = false
	if r.troubled--; r.troubled == 0 {
		r.problem, r.warned = "", time.Time{}
		r.cfg.Logger.Info("audit events are stored again")
	}
}

// reconnected sends again what was sent before a reconnect. Its answers may be lost, and a lost answer holds back all
// later events, and with them their rows' journal entries, if it is that of a group, or one of inFlightMin:
//
//	the server stores eight events; the connection breaks before it acknowledges them; new rows are answered after the
//	reconnect, and nothing of theirs is stored until ackTimeout has passed; the process is killed before: all these rows
//	are paid for again.
//
// The lock is held.
func (r *Recorder) reconnected(now time.Time) {
	if n := r.nc.Stats().Reconnects; n != r.reconnects {
		r.reconnects, r.lost = n, now
	}
	if !r.lost.IsZero() && now.Sub(r.lost) >= hurryAfter && r.nc.IsConnected() {
		r.sendAgain(r.lost, now)
		r.lost = time.Time{}
	}
}

// sendAgain sends again, one by one, what was sent by then and got no answer. The lock is held.
func (r *Recorder) sendAgain(by, now time.Time) {
	for _, rec := range r.sent {
		if !rec.refused && !rec.due.After(by.Add(ackTimeout)) {
			r.send(rec, now)
		}
	}
	if g := r.group; g != nil && !g.sent.After(by) {
		r.split(now)
	}
}

// overdue resends what got no answer in time or was refused earlier. The lock is held.
func (r *Recorder) overdue(now time.Time) {
	if !r.nc.IsConnected() {
		return
	}
	for _, rec := range r.sent {
		if now.Before(rec.due) {
			continue
		}
		if !rec.refused {
			r.complain(rec, r.unanswered())
			r.refused.Store(true)
		}
		r.send(rec, now)
	}
	if g := r.group; g != nil && now.Sub(g.sent) >= ackTimeout {
		r.complain(g.records[0], r.unanswered())
		r.refused.Store(true)
		r.split(now)
	}
}

// unanswered says why the server may have left an event without an answer. A connection remembers its last violation
// alone. Several events are on their way at once, so that one may be about the event of another kind or partition, for
// the same reason: any audit subject of the stage counts.
func (r *Recorder) unanswered() string {
	return r.cfg.Explain(streams.Denied(r.nc, nats.ErrTimeout, r.cfg.Subject+"."+r.cfg.Name+".>"))
}
