package consumer

import (
	"context"
	"errors"
	"math"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
)

// window holds the rows that a term has taken and that have no result yet: the place of
// each in the order, and the rows themselves but for those that are away. It decides how
// many more rows may be taken and which may begin.
//
// Its invariant: a row that entered has exactly one of four states.
//
//	open         the row is in memory: somebody works on it, or it is answered
//	taken back   its place is empty, because a stopping term has given it up
//	away         it has only its place: it is set aside, or parked in the batch lane
//	finished     its result is stored
//
// So len(open) + len(takenBack) is always buf.Len(). For example, rows 1 to 5 enter, 1 and
// 2 are emitted, 4 is parked: then 3 and 5 are open, and buf.Len() is 2.
//
// The goroutine of the term owns it.
type window struct {
	cfg    *Config
	order  order
	shared *shared

	buf  *sequencer.Buffer[place]
	open map[uint64]*Row // by sequence
	// takenBack are rows that nobody works on, but some may have replies to elements.
	takenBack []*Row
	// acksDelete says that rows which were emitted before do not come again, since the
	// server deletes a row that is acked.
	acksDelete bool
}

// place is the value of a row in the sequencer: the row itself once it is complete, or
// the note on a row that is away.
type place struct {
	row *Row
	awayRow
}

// errSetAside says that a row has entered and was set aside at once, which is no failure.
var errSetAside = errors.New("the row is set aside")

// unansweredCounts is how often an unanswered row counts in the window: once for itself,
// and once for its result, which holds the row's own object. Without that, a window full
// of rows would hold twice its bytes when they are answered.
const unansweredCounts = 2

// room returns how many rows may be taken.
func (w *window) room() int {
	room := w.roomBeside(w.buf.Room())
	if w.acksDelete {
		// Rows that were emitted before do not come again, and count in the span when the
		// next row comes: ask for no more than there is room for then, and for one to
		// find out.
		span := w.order.limits(w.cfg).Span
		room = min(room, max(1, span-w.unacked()-w.buf.Mark().Ahead))
	}
	return room
}

// windowForReturns is the part of the window that is kept for rows that come back from the
// lane: a quarter. Otherwise rows behind them could fill it, and the row that all wait for
// would find no room.
const windowForReturns = 4

// roomBeside returns how many of the rows that the window has room for may be taken: a
// part of the window is for rows that come back, and the lane bounds how many are parked.
// For example, with a window of 1,000 rows and 300 of them free, 50 may be taken.
func (w *window) roomBeside(room int) int {
	if w.cfg.Lane == nil {
		return room
	}
	return max(0, min(room-w.cfg.WindowRows/windowForReturns, w.cfg.LaneRows-w.buf.Parked()))
}

// roomBytes returns how many bytes may be taken.
func (w *window) roomBytes() int64 { return w.buf.RoomBytes() / unansweredCounts }

// plenty reports whether the window has so many rows to work on, and so little room, that
// a request can wait for more room. For example, with a window of 1,024 rows the request
// waits while fewer than 64 may be taken and more than 768 have no answer. Without this
// rule a full window would ask for each row by itself, which costs the server two
// messages more.
func (w *window) plenty(room int) bool {
	return room < min(pullWorthRows, w.cfg.WindowRows/16) && w.buf.Len()-w.buf.Completed() > w.cfg.WindowRows*3/4
}

// fullOf returns what the window has no room for, or empty. There is no room for bytes as
// well where the next row is larger than the room that is left.
func (w *window) fullOf(nextTooLarge bool) string {
	switch room := w.buf.Room(); {
	case room <= 0:
		return "rows"
	case w.cfg.Lane != nil && w.buf.Parked() >= w.cfg.LaneRows:
		return hold.LaneRows
	case w.roomBeside(room) <= 0: // the rest is for rows that come back from the lane
		return "rows"
	case w.buf.RoomBytes() <= 0, w.buf.Len() > 0 && nextTooLarge:
		return "bytes"
	}
	return ""
}

// weight is what a row counts in the window. It is never more than what the server
// counted against the bytes asked for.
func weight(m *nats.Msg) int {
	bytes := len(m.Data)
	for name, values := range m.Header {
		if name == streams.HeaderPinID {
			continue
		}
		for _, value := range values {
			bytes += len(name) + len(value)
		}
	}
	return bytes
}

// enter gives the row its place in the sequencer. With [errSetAside] it has entered and is
// away.
func (w *window) enter(row *Row, reply string, bytes int) (submitIndex uint64, err error) {
	key := w.order.key(row)
	if !w.buf.Outside(key, bytes) {
		return w.buf.Open(row.Seq, key, bytes)
	}
	if err = w.buf.SetAside(row.Seq, key, bytes, place{awayRow: noteAway(reply)}); err == nil {
		err = errSetAside
	}
	return 0, err
}

// has reports whether a row is open.
func (w *window) has(row *Row) bool { return w.open[row.Seq] == row }

// deliveredAgain notes that a row that is away has come again, and reports whether it is
// one.
func (w *window) deliveredAgain(seq uint64, ack string) bool {
	note, _ := w.buf.Away(seq)
	if note == nil {
		return false
	}
	note.consumer, note.delivered = deliveryOf(ack)
	return true
}

// grow counts more bytes of an open row that is not complete.
func (w *window) grow(seq uint64, bytes int) { w.buf.Grow(seq, bytes) }

// weighBody counts a body that was read in the window.
func (w *window) weighBody(row *Row) {
	row.inTerm.size += len(row.Body)
	w.buf.Grow(row.Seq, unansweredCounts*len(row.Body))
}

// lead marks the row of a key that waits for no other, and notes whether others wait for
// it, see [Row.MayBegin].
func (w *window) lead(key sequencer.Key) {
	seq, waits, ok := w.buf.First(key)
	more := w.order.byKey() && w.shared.gate.setWaiting(key.Name, waits)
	if row := w.open[seq]; ok && row != nil {
		first := !row.leads.Swap(true)
		more = more || first && w.shared.gate.bars()
	}
	w.shared.resumeIf(more)
}

// setGate opens or shuts the gate by what the window holds.
func (w *window) setGate() {
	most, bytes, waiting := w.cfg.WindowBytes, w.buf.Bytes(), w.buf.WaitingBytes()
	head, _ := w.buf.Head()
	// Where no row held is complete and the oldest row of all is away, no row would ever
	// leave unless some begin.
	shut := bytes > most && (w.buf.Completed() > 0 || w.open[head] != nil)
	_, leaving := w.buf.Ready(0)
	stuck := leaving && bytes-waiting > max(most-waiting, most/2)
	w.shared.resumeIf(w.shared.gate.set(shut, stuck, w.order.byKey() && 2*waiting >= most))
}

// takeBack takes out a row that a stopping term does not start, or that the executor has
// handed back to it. Its place in the order stays empty, see [term.drained]. It must
// leave open, because the term may end in an error all the same: rows of open are carried
// over to the next term as rows that somebody works on. Nobody works on this one, so it
// would never be started there, and block the partition for ever.
func (w *window) takeBack(row *Row) {
	w.takenBack = append(w.takenBack, row)
	delete(w.open, row.Seq)
}

// itsTurn reports whether an answered row waits for no other.
func (w *window) itsTurn(row *Row) bool {
	if row.element.parent != nil && !row.element.parent.inTerm.done {
		return false
	}
	_, waits := w.buf.WaitsFor(row.Seq)
	return !waits
}

// groupRowsMin is how many rows a group may have however small the window is.
const groupRowsMin = 24

// ready returns the rows that are appended next: answered rows at the head of the order,
// with their events stored.
func (w *window) ready() (group []*Row) {
	bytes := 0
	// A part of the window only: the rest is filled and answered while the group is on
	// its way.
	for i := range min(streams.AppendMax, max(groupRowsMin, w.cfg.WindowRows/4)) {
		entry, ok := w.buf.Ready(i)
		if !ok || !entry.Value.row.emittable() {
			break
		}
		if bytes += entry.Bytes; bytes > streams.AppendBytesMax && len(group) > 0 {
			break
		}
		group = append(group, entry.Value.row)
	}
	return group
}

// finished reports whether a row is emitted.
func (w *window) finished(seq uint64) bool { return w.buf.Finished(seq) }

// unacked is how many rows are delivered and not emitted.
func (w *window) unacked() int { return w.buf.Len() + w.buf.AwayLen() }

// passMost bounds the requests of passKnown. Each row costs one where rows of other
// partitions lie between them.
const passMost = 1000

// passKnown passes the known rows behind the last one taken, up to the first row that is
// not known: they have not come again, or were deleted from the input.
func (w *window) passKnown(ctx context.Context, c *Consumer, accepted uint64) error {
	from := accepted + 1
	for range passMost {
		next, err := nextInput(ctx, c, from)
		if err != nil {
			return err
		}
		if next == 0 {
			next = math.MaxUint64
		}
		w.buf.Pass(next)
		if !w.buf.Known(next) {
			return nil
		}
		from = next + 1
		for w.buf.Known(from) { // no other row can lie between these
			from++
		}
		w.buf.Pass(from)
	}
	return nil
}
