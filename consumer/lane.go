package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Lane has rows answered outside of the window, for hours: by a provider's Batch API.
// Such a row is *parked*: it keeps its place in the order, and nothing else is held of
// it. Its body stays in the input stream and its reply goes to the journal, from where
// both are read again when its turn comes.
//
// A row comes into the lane by way of the executor, which parks it ([Reply.Parked]), and
// comes back to the executor when the lane recalls it. Its methods are called from the
// goroutine of [Consumer.Run], and must not block but for Open and Close.
type Lane interface {
	// Open begins a term of ownership, after the claim: it reads what earlier terms have
	// recorded, behind a fence of the lane's own, so that they can record nothing more.
	Open(ctx context.Context, term LaneTerm) error
	// Holds reports whether a row is in a batch, so that it is parked at once. It is
	// called for each row taken that has no reply in the journal.
	Holds(row *Row) bool
	// Kept reports that the row does not need its batch any more: its reply is in the
	// journal, its result stored, or the row no longer in the input.
	Kept(seq uint64)
	// Stop is called once when the term begins to stop: nothing is submitted from then
	// on.
	Stop()
	// Close ends the term, and returns when nothing of the lane runs.
	Close()
}

// LaneTerm is a term of ownership, as a [Lane] sees it. Its functions are safe for
// concurrent use, do not block, and do nothing once the term has ended.
type LaneTerm struct {
	// Owner names the term. Rows up to Low are emitted. InputCreated names the input
	// stream that sequences refer to.
	Owner        string
	Low          uint64
	InputCreated time.Time
	// Recall brings a parked row back to the executor, with [Row.Errand] as given, as
	// soon as the window has room: recalls are served in order. A row that is parked a
	// moment later is recalled then.
	Recall func(seq uint64, errand any)
	// Fenced ends the term: the lane has found that another owns the partition.
	Fenced func(error)
}

// windowForReturns is the part of the window that is kept for rows that come back from
// the lane, a quarter: else rows behind them could fill it, and the row that all wait for
// would find no room.
const windowForReturns = 4

// laneRows is what a term knows of its rows that are in the lane. The goroutine of the
// term owns it, but for desk.
type laneRows struct {
	desk laneDesk
	// wanted are the recalls that wait for room. early are the recalls of rows that are
	// not parked yet, because they have not come again since the term began, or were set
	// aside.
	wanted []recall
	early  map[uint64]recall
	// stashed are answered rows that wait for the journal to have their replies, to be
	// parked.
	stashed map[uint64]*Row
	stopped bool
}

// recall is a row that the lane wants back.
type recall struct {
	seq    uint64
	errand any
}

// laneDesk passes what the lane wants to the term.
type laneDesk struct {
	signal chan struct{} // holds one token while there may be something

	mu      sync.Mutex
	recalls []recall
	fenced  error
}

func (d *laneDesk) recall(seq uint64, errand any) {
	d.mu.Lock()
	d.recalls = append(d.recalls, recall{seq: seq, errand: errand})
	d.mu.Unlock()
	d.wake()
}

func (d *laneDesk) fence(err error) {
	d.mu.Lock()
	d.fenced = err
	d.mu.Unlock()
	d.wake()
}

func (d *laneDesk) wake() {
	select {
	case d.signal <- struct{}{}:
	default:
	}
}

func (d *laneDesk) take() (recalls []recall, fenced error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	recalls, d.recalls = d.recalls, nil
	return recalls, d.fenced
}

// openLane begins the lane's term. The pin is kept meanwhile.
func (t *term) openLane(ctx, soft context.Context, lost <-chan nats.Status) error {
	lane := t.c.cfg.Lane
	if lane == nil {
		return nil
	}
	l := &laneRows{
		desk:  laneDesk{signal: make(chan struct{}, 1)},
		early: make(map[uint64]recall), stashed: make(map[uint64]*Row),
	}
	t.lane = l
	return t.whilePinned(ctx, soft, lost, func(ctx context.Context) error {
		return lane.Open(ctx, LaneTerm{
			Owner: t.owner, Low: t.own.end.low, InputCreated: t.c.carried.inputCreated,
			Recall: l.desk.recall, Fenced: l.desk.fence,
		})
	})
}

// closeLane ends what openLane has begun, if it has.
func (t *term) closeLane() {
	if t.lane != nil {
		t.c.cfg.Lane.Close()
	}
}

// stopLane tells the lane that the term stops. No row comes back from then on.
func (t *term) stopLane() {
	if l := t.lane; l != nil && t.stopping && !l.stopped {
		l.stopped = true
		t.c.cfg.Lane.Stop()
	}
}

// laneSignal says that the lane may want something.
func (t *term) laneSignal() <-chan struct{} {
	if t.lane == nil {
		return nil // nothing ever comes
	}
	return t.lane.desk.signal
}

// laneKept tells the lane that a row does not need its batch any more.
func (t *term) laneKept(seq uint64) {
	if t.lane != nil {
		t.c.cfg.Lane.Kept(seq)
	}
}

// roomBeside returns how many of the rows that the window has room for may be taken: a
// part of the window is for rows that come back, and the lane bounds how many are parked.
// For example, with a window of 1,000 rows and 300 of them free, 50 may be taken.
func (t *term) roomBeside(room int) int {
	if t.lane == nil {
		return room
	}
	return max(0, min(room-t.c.cfg.WindowRows/windowForReturns, t.c.cfg.LaneRows-t.buf.Parked()))
}

// parkStarted parks a row that has come and need not be started: its reply is in the
// journal, or it is in a batch.
func (t *term) parkStarted(row *Row) bool {
	if t.lane == nil || row.term.back {
		return false
	}
	if t.journal.earlier.has(row) {
		row.journal.stored = true
		t.park(row, true)
		return true
	}
	if t.c.cfg.Lane.Holds(row) {
		t.park(row, false)
		return true
	}
	return false
}

// park parks an open row. near says that it can be answered when its turn is near: from
// the journal, or by starting it again, where that costs nothing.
func (t *term) park(row *Row, near bool) {
	note := noteAway(row.term.ackReply)
	note.kept = row.journal.stored
	note.taken = uint32(row.Taken.Sub(t.c.pulse.born) / time.Second) //nolint:gosec // 136 years
	delete(t.open, row.Seq)
	delete(t.lane.stashed, row.Seq)
	row.abandon()
	if err := t.buf.Park(row.Seq, place{awayRow: note}, near); err != nil {
		panic(fmt.Sprintf("consumer: executor parked row %d twice: %v", row.Seq, err))
	}
	wanted, early := t.lane.early[row.Seq]
	delete(t.lane.early, row.Seq)
	switch {
	case near:
		t.laneKept(row.Seq)
	case early:
		t.lane.wanted = append(t.lane.wanted, wanted)
	}
	t.c.at("parked")
}

// answered takes the reply to an open row. Behind a parked row a reply may wait for
// hours: it goes to the journal, and its row is parked, too. A row whose turn was near
// when it came back stays: it would come back at once.
func (t *term) answered(row *Row) {
	row.answered = true
	switch {
	case t.lane == nil, t.buf.Parked() == 0, t.stopping:
		t.complete(row)
	case row.term.back && row.Errand == nil, t.itsTurn(row):
		t.complete(row)
	case row.journal.stored, row.reply.RequestHash == "": // it is in the journal, or cost nothing
		t.park(row, true)
	default:
		t.lane.stashed[row.Seq] = row
		t.journal.waitNow(row, time.Now())
	}
}

// keptNow parks a row whose reply is in the journal now. One that can't be kept stays in
// the window.
func (t *term) keptNow(row *Row) {
	switch {
	case t.lane == nil:
	case t.lane.stashed[row.Seq] != row:
		if row.journal.stored {
			// It waits in the window, perhaps for a row that the lane settles only after
			// it.
			t.laneKept(row.Seq)
		}
	case row.journal.stored:
		t.park(row, true)
	default:
		t.unstash(row)
	}
}

func (t *term) unstash(row *Row) {
	delete(t.lane.stashed, row.Seq)
	t.journal.unkept.settle(row)
	t.complete(row)
}

// unstashDue completes the rows whose turn has come before the journal had their replies,
// and all of them once the term stops.
func (t *term) unstashDue() {
	if t.lane == nil {
		return
	}
	for _, row := range t.lane.stashed {
		if t.stopping || t.itsTurn(row) {
			t.unstash(row)
		}
	}
}

// takeRecalls takes what the lane wants. It returns an error where the lane has found
// that another owns the partition.
func (t *term) takeRecalls() error {
	if t.lane == nil {
		return nil
	}
	recalls, fenced := t.lane.desk.take()
	for _, r := range recalls {
		t.sortRecall(r)
	}
	return fenced
}

// sortRecall puts a recall where it belongs. A row that is open settles by itself.
func (t *term) sortRecall(r recall) {
	note, aside := t.buf.Away(r.seq)
	switch {
	case aside, t.open[r.seq] != nil, r.seq > t.in.accepted:
		t.lane.early[r.seq] = r // until it is parked
	case note == nil:
		t.laneKept(r.seq) // it is finished
	case note.kept, t.returns.coming[r.seq] != nil:
		// Its reply is kept, or it is on its way already.
	default:
		t.lane.wanted = append(t.lane.wanted, r)
	}
}

// nextWanted returns the next row that the lane wants and that has room.
func (t *term) nextWanted() (seq uint64, errand any, ok bool) {
	if t.lane == nil {
		return 0, nil, false
	}
	wanted := &t.lane.wanted
	for i := 0; i < len(*wanted); i++ {
		r := (*wanted)[i]
		if ok = t.buf.Recall(r.seq); ok {
			*wanted = slices.Delete(*wanted, i, i+1)
			return r.seq, r.errand, true
		}
		note, _ := t.buf.Away(r.seq)
		if note == nil || t.returns.coming[r.seq] != nil { // it has come back since, as its turn was near
			*wanted = slices.Delete(*wanted, i, i+1)
			i--
		}
	}
	return 0, nil, false
}
