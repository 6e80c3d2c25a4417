package recorder

import (
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// This file is the way of an event from the queue to its answer: flush, sendSome, send or
// sendGroup, answered; and what sends it again: split, sendAgain, overdue. Each function
// is called with the lock held unless it says otherwise.

const (
	// ackTimeout is how long an event may go without the server's answer before it is
	// sent again. The server drops the second copy by its message id.
	ackTimeout = 5 * time.Second
	// refusedBackoff is the wait before an event that the server refused is sent again.
	refusedBackoff = 500 * time.Millisecond
	// scanEvery is the time between two looks at what must be sent again.
	scanEvery = 250 * time.Millisecond
	// hurryAfter is how long an answer is waited for after a reconnect, and at the end of
	// a process, before the event is sent again. Answers get lost with their connection:
	// a reconnect brings back the subscription, not the answers that were in flight.
	hurryAfter = 300 * time.Millisecond
)

// flush sends the events that may go now.
func (r *Recorder) flush(now time.Time) {
	switch {
	case r.queue.len() == 0 || !r.link.listening || r.inFlight.group != nil:
	case r.queue.waitForRow(now):
	case !r.link.nc.IsConnected():
		// The client would buffer the events, and send them besides the copies that go
		// after the reconnect.
	case r.queue.mayGo(now):
		r.sendSome(now)
	}
}

// gathered sends the events that have gathered for long enough. The lock is not held.
func (r *Recorder) gathered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.pace.woken()
	r.flush(time.Now())
}

// sendSome sends the events that wait: all together if that is cheaper, or one by one as
// many as the server keeps up with. While any event is in trouble all go one by one, so
// each is answered by itself.
func (r *Recorder) sendSome(now time.Time) {
	how := oneByOne
	if r.trouble.count == 0 {
		how = r.ways.choose(r.queue.len(), now)
	}
	if how != oneByOne {
		r.sendGroup(now, how)
		return
	}
	n := max(0, min(r.queue.len(), r.ways.singleMax()-len(r.inFlight.single)))
	for _, rec := range r.queue.records[:n] {
		r.send(rec, now)
	}
	r.queue.remove(n)
}

// send sends one event by itself.
func (r *Recorder) send(rec *record, now time.Time) {
	if len(r.inFlight.single) == 0 {
		r.ways.begin(now)
	}
	rec.sending(now)
	r.inFlight.single[rec.number] = rec
	r.fit(rec, r.lookAtMax())
	if err := r.link.post(rec); err != nil {
		rec.refuse(now)
		r.complain(rec, err.Error(), now)
	}
}

// lookAtMax returns how large an event may be now, and notes it for the next ones.
func (r *Recorder) lookAtMax() (bytes int) {
	bytes = r.link.bytesMax()
	r.bytesMax.Store(int64(bytes))
	return bytes
}

// fit cuts an event to the size that the server takes now.
func (r *Recorder) fit(rec *record, bytesMax int) {
	if by := rec.cut(bytesMax); rec.limited() {
		r.room.bytes -= by
	}
}

// sendGroup sends the oldest events together: as many as a group may have.
func (r *Recorder) sendGroup(now time.Time, how way) {
	bytesMax := r.lookAtMax()
	bytes, n, most := 0, 0, min(r.queue.len(), r.ways.groupMax(how))
	for n < most && (n < 2 || bytes < streams.AppendBytesMax) {
		rec := r.queue.records[n]
		r.fit(rec, bytesMax)
		bytes += len(rec.data)
		n++
	}
	g := &group{
		id:      r.id + strconv.FormatUint(r.queue.records[0].number, 36),
		records: slices.Clone(r.queue.records[:n]),
		sent:    now,
		atomic:  how == atomicGroup,
	}
	r.inFlight.group = g
	r.queue.remove(n)
	if rec, err := r.link.postGroup(g); err != nil {
		r.complain(rec, err.Error(), now)
		r.split(now)
	}
}

// answered handles the server's answer to one event or group. It takes the lock by
// itself, and calls back without it.
func (r *Recorder) answered(m *nats.Msg) {
	if streams.FastProgress(m.Data) {
		return
	}
	r.answering.Lock()
	defer r.answering.Unlock()
	token, refused := r.link.token(m.Subject), streams.Refusal(m)
	now := time.Now()
	r.stored = r.stored[:0]
	r.mu.Lock()
	if g := r.inFlight.group; g != nil && token == g.id {
		r.groupAnswered(m, refused, now)
	} else if number, err := strconv.ParseUint(token, 36, 64); err == nil {
		r.singleAnswered(number, refused, now)
	}
	r.flush(now)
	if len(r.stored) > 0 {
		r.trouble.refusing.Store(false)
	}
	r.room.release(r.stored)
	r.mu.Unlock()
	for _, rec := range r.stored {
		if rec.stored != nil {
			rec.stored()
		}
		if r.cfg.Stored != nil {
			r.cfg.Stored(string(rec.kind))
		}
		r.records.put(rec)
	}
}

// singleAnswered handles the answer to an event that went by itself.
func (r *Recorder) singleAnswered(number uint64, refused error, now time.Time) {
	rec := r.inFlight.single[number]
	switch {
	case rec == nil: // another copy has been answered before
	case refused != nil:
		rec.refuse(now)
		r.complain(rec, refused.Error(), now)
		r.trouble.refusing.Store(!streams.TooLarge(refused)) // another event may be smaller
	default:
		delete(r.inFlight.single, number)
		r.trouble.remove(rec)
		r.ways.singleStored(now)
		r.stored = append(r.stored, rec)
	}
}

// groupAnswered handles the answer to the group in flight.
func (r *Recorder) groupAnswered(m *nats.Msg, refused error, now time.Time) {
	g := r.inFlight.group
	if refused != nil || !g.isStored(m.Data) {
		r.cfg.Logger.Debug("resending a group of audit events one by one",
			slog.Bool("atomic", g.atomic), slog.String("answer", streams.Preview(m.Data)))
		r.split(now)
		return
	}
	r.inFlight.group = nil
	r.stored = append(r.stored, g.records...)
	r.ways.groupStored(g, now)
}

// split sends the events of the group in flight one by one: not all of them are stored,
// or that is unknown. Their message ids keep those that are stored from being stored
// twice.
func (r *Recorder) split(now time.Time) {
	g := r.inFlight.group
	r.inFlight.group = nil
	r.ways.groupNotStored(now)
	for _, rec := range g.records {
		r.send(rec, now)
	}
}

// reconnected sends again what was sent before a reconnect. Its answers may be lost, and
// a lost answer holds back all later events, and with them their rows' journal entries,
// if it is the answer to a group, or to one of inFlightMin events:
//
//  1. The server stores eight events. The connection breaks before it acknowledges them.
//  2. New rows are answered after the reconnect. Their events wait behind the eight, until
//     ackTimeout has passed, so nothing of these rows is stored.
//  3. The process is killed before that. All these rows are paid for again.
func (r *Recorder) reconnected(now time.Time) {
	if by, lost := r.link.answersLost(now); lost {
		r.sendAgain(by, now)
	}
}

// sendAgain sends again, one by one, the events sent at by or earlier without an answer.
func (r *Recorder) sendAgain(by, now time.Time) {
	for _, rec := range r.inFlight.single {
		if rec.unansweredSince(by) {
			r.send(rec, now)
		}
	}
	if g := r.inFlight.group; g != nil && !g.sent.After(by) {
		r.split(now)
	}
}

// overdue sends again what got no answer in time, or was refused refusedBackoff ago.
func (r *Recorder) overdue(now time.Time) {
	if !r.link.nc.IsConnected() {
		return
	}
	for _, rec := range r.inFlight.single {
		if now.Before(rec.due) {
			continue
		}
		if !rec.refused {
			r.unanswered(rec, now)
		}
		r.send(rec, now)
	}
	if g := r.inFlight.group; g != nil && now.Sub(g.sent) >= ackTimeout {
		r.unanswered(g.records[0], now)
		r.split(now)
	}
}

// unanswered notes that the server left an event without an answer, and why it may have
// done so. A connection remembers only its last permissions violation. Several events are
// in flight at once, so that one may be about the event of another kind or partition, for
// the same reason: a violation of any audit subject of the stage counts.
func (r *Recorder) unanswered(rec *record, now time.Time) {
	own := r.cfg.Subject + "." + r.cfg.Name + ".>"
	r.complain(rec, r.cfg.Explain(streams.Denied(r.link.nc, nats.ErrTimeout, own)), now)
	r.trouble.refusing.Store(true)
}

// complain notes why an event is not stored.
func (r *Recorder) complain(rec *record, why string, now time.Time) {
	r.trouble.add(rec, why, r.waiting(), now)
}
