package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/nats-io/nats.go"
)

const (
	// recordTimeout is how long an event may go without the server's answer before it is sent again. The server drops
	// the second copy by its message id.
	recordTimeout = 5 * time.Second
	// recordBackoff is the wait before an event that the server refused is sent again.
	recordBackoff = 500 * time.Millisecond
	recordScan    = 250 * time.Millisecond
)

// RecorderConfig says where audit events go.
type RecorderConfig struct {
	// Subject is the prefix of the audit subjects, `<Subject>.<Name>.<partition>.<kind>`.
	Subject string
	// Name is the stage's name.
	Name string
	// MaxPending bounds the events that wait for the server's answer; a call event beyond it waits. Default 4096.
	MaxPending int
	// Payloads says what call events keep of requests and replies; the zero value keeps them whole.
	Payloads auditlog.Payloads
	// Stored, when set, is told of each event that the stream holds. It must not block.
	Stored func(kind string)
	// Logger must not be nil.
	Logger *slog.Logger
}

// Recorder stores audit events. Each is published at once and kept until the audit stream has acknowledged it: a time-out
// or a refusal (stream full, no leader, permission lost) sends the identical message again, for as long as it takes. A
// result waits for its events, so an audit that can't be stored stops the emission and loses nothing.
//
// One Recorder serves all partitions of a process. It is safe for concurrent use.
type Recorder struct {
	cfg    RecorderConfig
	nc     *nats.Conn
	prefix string // of the reply subjects, with the dot
	room   chan struct{}
	runs   atomic.Int64  // run events so far
	done   chan struct{} // closed when Run ends

	mu      sync.Mutex
	last    uint64
	pending map[uint64]*record
	problem string
	buf     []byte
}

// record is one event on its way.
type record struct {
	msg     *nats.Msg
	kind    string
	due     time.Time // when to send it again
	limited bool      // it holds a place in room
	stored  func()
}

// NewRecorder returns a Recorder; [Recorder.Run] must be running for its events to be stored.
func NewRecorder(nc *nats.Conn, cfg RecorderConfig) *Recorder {
	if cfg.MaxPending <= 0 {
		cfg.MaxPending = 4096
	}
	return &Recorder{
		cfg:     cfg,
		nc:      nc,
		prefix:  nc.NewInbox() + ".",
		room:    make(chan struct{}, cfg.MaxPending),
		pending: make(map[uint64]*record),
		done:    make(chan struct{}),
	}
}

// Run receives the server's answers and sends again what got none, until ctx ends. Call it once.
func (r *Recorder) Run(ctx context.Context) error {
	sub, err := r.nc.Subscribe(r.prefix+"*", r.answered)
	if err != nil {
		return fmt.Errorf("audit: subscribe to acknowledgements: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	defer close(r.done)
	_ = sub.SetPendingLimits(-1, -1) // bounded by what is pending
	tick := time.NewTicker(recordScan)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			r.resend(now)
		}
	}
}

// Flush waits until every event is stored or ctx ends.
func (r *Recorder) Flush(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		n := r.Pending()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("audit: %d events not stored: %w", n, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Pending is the number of events that the stream has not acknowledged yet.
func (r *Recorder) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending)
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

// RecordCall stores the event of a call that belongs to no row. It blocks while MaxPending events wait. For a row's call
// there is [Row.RecordCall].
func (r *Recorder) RecordCall(e *auditlog.Call) { r.recordCall(e, nil) }

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

// maxEvent is the room that the server's largest message leaves for an event's body beside its headers.
func (r *Recorder) maxEvent() int {
	const headers = 1024
	return int(r.nc.MaxPayload()) - headers
}

func (r *Recorder) publish(kind auditlog.Kind, p auditlog.Partition, id string, e event, limited bool, stored func()) {
	msg := &nats.Msg{
		Subject: r.cfg.Subject + "." + r.cfg.Name + "." + p.String() + "." + string(kind),
		Header:  nats.Header{headerMsgID: {id}},
	}
	bytesMax := r.maxEvent()
	r.mu.Lock()
	r.buf = e.AppendJSON(r.buf[:0], r.cfg.Payloads, bytesMax)
	msg.Data = bytes.Clone(r.buf)
	r.last++
	msg.Reply = r.prefix + strconv.FormatUint(r.last, 36)
	r.pending[r.last] = &record{msg: msg, kind: string(kind), due: time.Now().Add(recordTimeout), limited: limited, stored: stored}
	r.mu.Unlock()
	if err := r.nc.PublishMsg(msg); err != nil {
		r.refused(msg.Reply, err.Error())
	}
}

// answered takes the server's answer to one event.
func (r *Recorder) answered(m *nats.Msg) {
	if why := refusal(m); why != "" {
		r.refused(m.Subject, why)
		return
	}
	id, err := strconv.ParseUint(m.Subject[len(r.prefix):], 36, 64)
	if err != nil {
		return // not a subject of ours
	}
	r.mu.Lock()
	rec := r.pending[id] // nil: the answer to a copy that was sent again
	delete(r.pending, id)
	r.problem = ""
	r.mu.Unlock()
	if rec == nil {
		return
	}
	if rec.limited {
		<-r.room
	}
	if rec.stored != nil {
		rec.stored()
	}
	if r.cfg.Stored != nil {
		r.cfg.Stored(rec.kind)
	}
}

// refused keeps an event for another try.
func (r *Recorder) refused(reply, why string) {
	id, err := strconv.ParseUint(reply[len(r.prefix):], 36, 64)
	if err != nil {
		return
	}
	r.mu.Lock()
	rec := r.pending[id]
	if rec != nil {
		rec.due = time.Now().Add(recordBackoff)
	}
	fresh := r.problem != why
	r.problem = why
	r.mu.Unlock()
	if rec != nil && fresh {
		r.cfg.Logger.Warn("audit event not stored, will be sent again", slog.String("subject", rec.msg.Subject), slog.String("reason", why))
	}
}

// resend publishes again what is due.
func (r *Recorder) resend(now time.Time) {
	var due []*nats.Msg
	r.mu.Lock()
	for _, rec := range r.pending {
		if !now.Before(rec.due) {
			rec.due = now.Add(recordTimeout)
			due = append(due, rec.msg)
		}
	}
	r.mu.Unlock()
	for _, msg := range due {
		if err := r.nc.PublishMsg(msg); err != nil {
			r.refused(msg.Reply, err.Error())
		}
	}
}

// refusal says why the server did not store a message; empty when it did. A stored message is the rule, so the answer is
// decoded only when it speaks of an error.
func refusal(m *nats.Msg) string {
	if len(m.Data) == 0 {
		if m.Header.Get("Status") == "503" {
			return "no stream captures the subject, or it has no leader at the moment"
		}
		return "empty answer"
	}
	if !bytes.Contains(m.Data, []byte(`"error"`)) {
		return ""
	}
	var ack struct {
		Error *struct {
			Code        int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &ack); err != nil || ack.Error == nil {
		return ""
	}
	return fmt.Sprintf("%s (%d)", ack.Error.Description, ack.Error.Code)
}
