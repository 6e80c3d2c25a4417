package consumer

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// recordTimeout is how long an event may go without the server's answer before it is sent again. The server drops
	// the second copy by its message id.
	recordTimeout = 5 * time.Second
	// recordBackoff is the wait before an event that the server refused is sent again.
	recordBackoff = 500 * time.Millisecond
	recordScan    = 250 * time.Millisecond
	// recordHurry is how long the end of a process waits for an answer before it asks again. An answer does get lost now
	// and then: in one of fifty runs on a fresh server that to the first event.
	recordHurry = 300 * time.Millisecond
	// recordComplain is the shortest time between two warnings that events are not stored: each event that waits would
	// else give one at each attempt.
	recordComplain = time.Minute
	// recordOnWayMin is how many events may be on their way one by one, however slow the server is.
	recordOnWayMin = 8
)

// RecorderConfig says where audit events go.
type RecorderConfig struct {
	// Stream is the audit stream. Empty: events never go in batches.
	Stream string
	// Subject is the prefix of the audit subjects, `<Subject>.<Name>.<partition>.<kind>`.
	Subject string
	// Name is the stage's name.
	Name string
	// MaxPending bounds the events that wait for the server's answer; a call event beyond it waits. Default 4096.
	MaxPending int
	// Payloads says what call events keep of requests and replies; the zero value keeps them whole.
	Payloads auditlog.Payloads
	// Recorded, when set, is told of each event as it comes, before it is stored: of the very events, whose bodies it must
	// not keep. It must not block.
	Recorded func(e auditlog.Event)
	// Stored, when set, is told of each event that the stream holds. It must not block.
	Stored func(kind string)
	// Logger must not be nil.
	Logger *slog.Logger
}

// Recorder stores audit events. Each is kept until the audit stream has acknowledged it: a time-out or a refusal (stream
// full, no leader, permission lost) sends the identical message again, for as long as it takes. A result waits for its
// events, so an audit that can't be stored stops the emission and loses nothing.
//
// Events go out as they come, several on their way at once. Where the server takes long for each (it syncs every message
// to disk, or asks replicas) they gather meanwhile, and go as one atomic batch as soon as that is cheaper; both costs are
// measured as they happen.
//
// One Recorder serves all partitions of a process. It is safe for concurrent use.
type Recorder struct {
	cfg    RecorderConfig
	nc     *nats.Conn
	prefix string // of the reply subjects, with the dot
	room   chan struct{}
	runs   atomic.Int64  // run events so far
	done   chan struct{} // closed when Run ends

	mu        sync.Mutex
	listening bool               // for answers
	last      uint64             // number of the last event
	queue     []*record          // not sent yet, oldest first
	sent      map[uint64]*record // on their way one by one, by number
	batch     []*record          // on their way together, under the number of the last
	batches   bool               // the stream takes atomic batches
	problem   string             // why the last of the troubled was not stored; empty when there are none
	troubled  int                // events that were refused or got no answer, and are not stored yet
	warned    time.Time          // of the last warning; zero: none since all was well
	buf       []byte
	// What an event costs while others wait, and a batch.
	single, group cost
	lastAck       time.Time
}

// record is one event on its way.
type record struct {
	msg     *nats.Msg
	number  uint64
	kind    auditlog.Kind
	due     time.Time // when to send it again
	refused bool      // the server's answer was no
	trouble bool      // it is one of the troubled
	limited bool      // it holds a place in room
	stored  func()
}

// NewRecorder returns a Recorder; [Recorder.Run] must be running for its events to be stored.
func NewRecorder(nc *nats.Conn, cfg RecorderConfig) *Recorder {
	if cfg.MaxPending <= 0 {
		cfg.MaxPending = 4096
	}
	return &Recorder{
		cfg:    cfg,
		nc:     nc,
		prefix: nc.NewInbox() + ".",
		room:   make(chan struct{}, cfg.MaxPending),
		sent:   make(map[uint64]*record),
		done:   make(chan struct{}),
		single: cost(singleCostGuess),
		group:  cost(batchCostGuess),
	}
}

// Run sends events, receives the server's answers and sends again what got none, until ctx ends. Call it once.
func (r *Recorder) Run(ctx context.Context) error {
	sub, err := r.nc.Subscribe(r.prefix+"*", r.answered)
	if err != nil {
		return fmt.Errorf("audit: subscribe to acknowledgements: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	defer close(r.done)
	_ = sub.SetPendingLimits(-1, -1) // bounded by what is pending
	if js, err := jetstream.New(r.nc); err == nil && r.cfg.Stream != "" {
		if s, err := js.Stream(ctx, r.cfg.Stream); err == nil {
			r.mu.Lock()
			r.batches = s.CachedInfo().Config.AllowAtomicPublish
			r.mu.Unlock()
		}
	}
	r.mu.Lock()
	r.listening = true
	r.flush(time.Now())
	r.mu.Unlock()
	tick := time.NewTicker(recordScan)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			r.mu.Lock()
			r.overdue(now)
			r.flush(now)
			r.mu.Unlock()
		}
	}
}

// Flush waits until every event is stored or ctx ends. It does not wait out the time-out of an event whose answer got
// lost, but sends it again at once.
func (r *Recorder) Flush(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	hurry := time.NewTicker(recordHurry)
	defer hurry.Stop()
	for {
		n := r.Pending()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("audit: %d events not stored: %w", n, context.Cause(ctx))
		case now := <-hurry.C:
			r.mu.Lock()
			for _, rec := range r.sent {
				r.send(rec, now)
			}
			r.mu.Unlock()
		case <-tick.C:
		}
	}
}

// Pending is the number of events that the stream has not acknowledged yet.
func (r *Recorder) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue) + len(r.sent) + len(r.batch)
}

// Problem says why events can't be stored at the moment; empty when they can.
func (r *Recorder) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// RecordRun stores a run event. Nobody waits for it: it does not block.
func (r *Recorder) RecordRun(e *auditlog.Run) {
	r.publish(auditlog.KindRun, auditlog.All, e.MsgID(int(r.runs.Add(1)-1)), e, false, nil)
}

// RecordCall stores the event of a call that belongs to no row. It blocks while MaxPending events wait. Stored is called
// once when the stream holds the event, or never, where the process ends first; it must not block. For a row's call there
// is [Row.RecordCall].
func (r *Recorder) RecordCall(e *auditlog.Call, stored func()) { r.recordCall(e, stored) }

// recordCall stores a call event; stored is called once when the stream holds it.
func (r *Recorder) recordCall(e *auditlog.Call, stored func()) {
	select {
	case r.room <- struct{}{}:
	case <-r.done: // the process is ending and nobody takes answers any more
		return
	}
	r.publish(auditlog.KindCall, e.Partition, e.MsgID(), e, true, stored)
}

// recordRow stores a row event; it does not block, because the window bounds the rows.
func (r *Recorder) recordRow(e *auditlog.Row, stored func()) {
	r.publish(auditlog.KindRow, e.Partition, e.MsgID(), e, false, stored)
}

// event is one of auditlog's.
type event interface {
	AppendJSON(dst []byte, payloads auditlog.Payloads, bytesMax int) []byte
}

// asEvent wraps an event as readers of the audit get it.
func asEvent(kind auditlog.Kind, e event) auditlog.Event {
	w := auditlog.Event{SchemaVersion: auditlog.SchemaVersion, Kind: kind}
	switch e := e.(type) {
	case *auditlog.Call:
		w.Header, w.Call = e.Header, e
	case *auditlog.Row:
		w.Header, w.Row = e.Header, e
	case *auditlog.Run:
		w.Header, w.Run = e.Header, e
	}
	return w
}

// maxEvent is the room that the server's largest message leaves for an event's body beside its headers.
func (r *Recorder) maxEvent() int {
	const headers = 1024
	return int(r.nc.MaxPayload()) - headers
}

func (r *Recorder) publish(kind auditlog.Kind, p auditlog.Partition, id string, e event, limited bool, stored func()) {
	if r.cfg.Recorded != nil {
		r.cfg.Recorded(asEvent(kind, e))
	}
	rec := &record{kind: kind, limited: limited, stored: stored, msg: &nats.Msg{
		Subject: auditSubject(r.cfg.Subject, r.cfg.Name, p, kind),
		Header:  nats.Header{headerMsgID: {id}},
	}}
	bytesMax := r.maxEvent()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = e.AppendJSON(r.buf[:0], r.cfg.Payloads, bytesMax)
	rec.msg.Data = bytes.Clone(r.buf)
	r.last++
	rec.number = r.last
	r.queue = append(r.queue, rec)
	r.flush(time.Now())
}

// flush sends what may go now: a batch of all that wait, if that is cheaper, or one by one as many as the server works off
// in the time of a batch. More on their way would only keep the next batch waiting. The lock is held.
func (r *Recorder) flush(now time.Time) {
	if r.batch != nil || !r.nc.IsConnected() { // what the client buffers meanwhile would come on top of what is sent again
		return
	}
	if n := len(r.queue); r.batches && n > 1 && r.single*cost(n) > r.group {
		r.sendBatch(now)
		return
	}
	onWay := max(recordOnWayMin, int(r.group/max(1, r.single)))
	n := min(len(r.queue), onWay-len(r.sent))
	for _, rec := range r.queue[:max(0, n)] {
		r.send(rec, now)
	}
	if n > 0 {
		r.queue = append(r.queue[:0], r.queue[n:]...)
	}
}

func (r *Recorder) send(rec *record, now time.Time) {
	if len(r.sent) == 0 {
		r.lastAck = now // the server was idle: the cost counts from here
	}
	rec.due, rec.refused = now.Add(recordTimeout), false
	rec.msg.Reply = r.reply(rec.number)
	r.sent[rec.number] = rec
	if err := r.nc.PublishMsg(rec.msg); err != nil {
		rec.due, rec.refused = now.Add(recordBackoff), true
		r.complain(rec, err.Error())
	}
}

// sendBatch sends the oldest events as one atomic batch. Its answer comes under the number of the last.
func (r *Recorder) sendBatch(now time.Time) {
	bytes, n := 0, 0
	for n < min(len(r.queue), groupRowsMax) && (n < 2 || bytes < groupBytesMax) {
		bytes += len(r.queue[n].msg.Data)
		n++
	}
	r.batch = slices.Clone(r.queue[:n])
	r.queue = append(r.queue[:0], r.queue[n:]...)
	r.lastAck = now
	id := rand.Text()
	for i, rec := range r.batch {
		rec.due = now.Add(recordTimeout)
		msg := &nats.Msg{Subject: rec.msg.Subject, Data: rec.msg.Data, Header: nats.Header{
			headerMsgID: rec.msg.Header[headerMsgID], headerBatchID: {id}, headerBatchSeq: {strconv.Itoa(i + 1)},
		}}
		if i == n-1 {
			msg.Header[headerBatchCommit] = []string{"1"}
			msg.Reply = r.reply(rec.number)
		}
		if err := r.nc.PublishMsg(msg); err != nil {
			r.complain(rec, err.Error())
			r.splitBatch(now)
			return
		}
	}
}

// splitBatch sends the events of a batch one by one: it was refused (one of them may be stored already, from a copy whose
// answer got lost) or got no answer. Their message ids keep those that are stored from being stored again.
func (r *Recorder) splitBatch(now time.Time) {
	batch := r.batch
	r.batch = nil
	for _, rec := range batch {
		r.send(rec, now)
	}
}

func (r *Recorder) reply(number uint64) string { return r.prefix + strconv.FormatUint(number, 36) }

// answered takes the server's answer to one event or batch.
func (r *Recorder) answered(m *nats.Msg) {
	number, err := strconv.ParseUint(m.Subject[len(r.prefix):], 36, 64)
	if err != nil {
		return // not a subject of ours
	}
	now, why := time.Now(), ""
	if refused := refusal(m); refused != nil {
		why = refused.Error()
	}
	r.mu.Lock()
	stored := r.settle(number, why, now)
	r.flush(now)
	r.mu.Unlock()
	for _, rec := range stored {
		if rec.limited {
			<-r.room
		}
		if rec.stored != nil {
			rec.stored()
		}
		if r.cfg.Stored != nil {
			r.cfg.Stored(string(rec.kind))
		}
	}
}

// settle notes an answer and returns the events that are stored by it. The lock is held.
func (r *Recorder) settle(number uint64, why string, now time.Time) (stored []*record) {
	if n := len(r.batch); n > 0 && r.batch[n-1].number == number {
		if why != "" {
			r.complain(r.batch[n-1], why)
			r.splitBatch(now)
			return nil
		}
		r.group.add(now.Sub(r.lastAck))
		stored, r.batch = r.batch, nil
		return stored
	}
	rec := r.sent[number]
	switch {
	case rec == nil: // the answer to a copy that was sent again
		return nil
	case why != "":
		rec.due, rec.refused = now.Add(recordBackoff), true
		r.complain(rec, why)
		return nil
	}
	delete(r.sent, number)
	r.mended(rec)
	r.single += (cost(now.Sub(r.lastAck)) - r.single) / 16
	r.lastAck = now
	return []*record{rec}
}

// complain notes why an event is not stored, and logs it now and then. The lock is held.
func (r *Recorder) complain(rec *record, why string) {
	if !rec.trouble {
		rec.trouble = true
		r.troubled++
	}
	r.problem = why
	if now := time.Now(); r.warned.IsZero() || now.Sub(r.warned) >= recordComplain {
		r.warned = now
		r.cfg.Logger.Warn("audit events are not stored, results wait for them; sent again until they are",
			slog.String("subject", rec.msg.Subject), slog.String("reason", why), slog.Int("waiting", len(r.queue)+len(r.sent)+len(r.batch)))
	}
}

// mended notes that an event is stored. All is well when the last one that was in trouble is. The lock is held.
func (r *Recorder) mended(rec *record) {
	if !rec.trouble {
		return
	}
	rec.trouble = false
	if r.troubled--; r.troubled == 0 {
		r.problem, r.warned = "", time.Time{}
		r.cfg.Logger.Info("audit events are stored again")
	}
}

// overdue sends again what got no answer in time, or was refused a while ago. The lock is held.
func (r *Recorder) overdue(now time.Time) {
	if !r.nc.IsConnected() {
		return
	}
	for _, rec := range r.sent {
		if now.Before(rec.due) {
			continue
		}
		if !rec.refused {
			r.complain(rec, Denied(r.nc, nats.ErrTimeout).Error())
		}
		r.send(rec, now)
	}
	if r.batch != nil && !now.Before(r.batch[0].due) {
		r.complain(r.batch[0], Denied(r.nc, nats.ErrTimeout).Error())
		r.splitBatch(now)
	}
}
