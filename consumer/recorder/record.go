package recorder

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// spareBytesMax is the largest buffer that is kept for another event.
const spareBytesMax = 64 << 10

// record is one event from the moment it is recorded until it is stored.
//
// At any time it is in exactly one place: in the queue, among the events in flight that
// were sent one by one, in the group in flight, or in the list of those that an answer
// has just reported as stored.
type record struct {
	subject string
	id      string // the message id, by which the server drops a second copy
	rows    string // [streams.HeaderRows], or empty
	whole   string // [streams.HeaderRecorded], or empty
	data    []byte
	number  uint64 // in the order of recording, from 1 on
	kind    auditlog.Kind
	stored  func() // called once the stream holds the event; may be nil

	due     time.Time // when it is sent again, if it was sent by itself
	refused bool      // the server refused the last copy
	trouble bool      // it is counted in trouble
}

// limited reports whether the record takes room: see [room].
func (rec *record) limited() bool { return rec.kind == auditlog.KindCall }

// sending notes that a copy goes now. No answer within ackTimeout means another copy.
func (rec *record) sending(now time.Time) {
	rec.due, rec.refused = now.Add(ackTimeout), false
}

// refuse notes that the last copy was not taken.
func (rec *record) refuse(now time.Time) {
	rec.due, rec.refused = now.Add(refusedBackoff), true
}

// unansweredSince reports whether the last copy was sent at by or earlier and has no
// answer.
func (rec *record) unansweredSince(by time.Time) bool {
	return !rec.refused && !rec.due.After(by.Add(ackTimeout))
}

// cut shortens the event to bytesMax, if it is longer, and returns by how many bytes.
//
// The event was encoded while larger messages were allowed. If the server is restarted or
// reloaded with a lower max_payload, it would refuse the event for ever, and the result
// of the event's row would wait for ever. The event is stored with the hash of what was
// recorded, on which the row's result relies.
func (rec *record) cut(bytesMax int) (by int) {
	before := len(rec.data)
	if before <= bytesMax {
		return 0
	}
	e, err := auditlog.Decode(rec.data)
	if err != nil {
		return 0 // the stage encoded it, so this can't happen
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
		return 0
	}
	if rec.whole == "" { // else it was cut before
		sum := sha256.Sum256(rec.data)
		rec.whole = hex.EncodeToString(sum[:])
	}
	// PayloadsFull is right here: Config.Payloads has already removed its part.
	rec.data = body.AppendJSON(nil, auditlog.PayloadsFull, bytesMax)
	return before - len(rec.data)
}

// records lends records, and takes them back for the sake of their buffers. Safe for
// concurrent use.
type records struct{ spare sync.Pool }

func (r *records) get() *record {
	if rec, ok := r.spare.Get().(*record); ok {
		return rec
	}
	return new(record)
}

// put must be called with a record that nobody refers to any more.
func (r *records) put(rec *record) {
	if cap(rec.data) > spareBytesMax {
		rec.data = nil
	}
	*rec = record{data: rec.data[:0]}
	r.spare.Put(rec)
}
