package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Lane has rows answered outside of the window, for hours: by a provider's Batch API.
// Such a row is *parked*: it keeps its place in the order, and nothing else of it stays in
// memory. Its body is in the input stream and its reply goes to the journal, and both are
// read again when its turn comes.
//
// A row comes into the lane by way of the executor, which parks it ([Reply.Parked]), and
// comes back to the executor when the lane recalls it. Its methods are called one at a time,
// by the goroutine of [Consumer.Run] or while that waits for them. They must not block but
// for Open and Close.
type Lane interface {
	// Open begins a term of ownership, after the claim: it reads what earlier terms have
	// recorded, behind a fence of the lane's own, so that they can record nothing more.
	Open(ctx context.Context, term LaneTerm) error
	// Holds reports whether a row is in a batch, so that it is parked at once. It is
	// called for each row taken that has no reply in the journal.
	Holds(row *Row) bool
	// Kept reports that the row does not need its batch any more: its reply is in the
	// journal, its result stored, or the row no longer in the input. It may be reported
	// more than once.
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
	// Owner names the term.
	Owner string
	// Low is the low-water mark: all rows up to it are emitted.
	Low uint64
	// InputCreated is when the input stream was created that sequences refer to.
	InputCreated time.Time
	// Recall brings a parked row back to the executor, with [Row.Errand] as given, as
	// soon as the window has room: recalls are served in order. A row that is parked a
	// moment later is recalled then.
	Recall func(seq uint64, errand any)
	// Fenced ends the term: the lane has found that another owns the partition.
	Fenced func(error)
}

// laneRows are the rows of a term that are in the batch lane, or wait for the journal to
// have their replies so that they can be parked. For example, row 1 is in a batch for two
// hours, and rows 2 to 9 are answered meanwhile: each is stashed until the journal has its
// reply, then it is parked, too, and the window has room for rows 10 and on. When the lane
// recalls row 1, it comes back with the batch's answer, and the others follow from the
// journal in their turns.
//
// The goroutine of the term owns it, but for desk. In a term without a lane it is nil, and
// its methods allow for that.
type laneRows struct {
	c       *Consumer
	lane    Lane
	window  *window
	earlier *earlierTerms
	unkept  *unkept
	in      *intake
	returns *returns
	// complete takes an answered row that stays in the window, see [term.complete].
	complete func(*Row)
	opened   bool // the lane's term has begun, or was about to
	stopped  bool // the lane knows that the term stops

	desk laneDesk
	// wanted are the recalls that wait for room.
	wanted []recall
	// early are the recalls of rows that are not parked: they have not come again since the
	// term began, are set aside, or are open.
	early map[uint64]recall
	// stashed are answered rows that wait for the journal to have their replies, to be
	// parked.
	stashed map[uint64]*Row
}

// recall is a row that the lane wants back.
type recall struct {
	seq    uint64
	errand any
}

// laneDesk passes recalls, and the news that the term is fenced, from the lane to the
// term.
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

// newLaneRows returns the lane's rows of a term that has none yet, or nil without a lane.
func newLaneRows(t *term) *laneRows {
	if t.c.cfg.Lane == nil {
		return nil
	}
	return &laneRows{
		c: t.c, lane: t.c.cfg.Lane, window: t.window, in: &t.in, complete: t.complete,
		earlier: &t.journal.earlier, unkept: &t.journal.unkept,
		desk:  laneDesk{signal: make(chan struct{}, 1)},
		early: make(map[uint64]recall), stashed: make(map[uint64]*Row),
	}
}

// open begins the lane's term.
func (l *laneRows) open(ctx context.Context, owner string, low uint64) error {
	l.opened = true
	return l.lane.Open(ctx, LaneTerm{
		Owner: owner, Low: low, InputCreated: l.c.carried.inputCreated,
		Recall: l.desk.recall, Fenced: l.desk.fence,
	})
}

// signal says that the lane may want something.
func (l *laneRows) signal() <-chan struct{} {
	if l == nil {
		return nil // nothing ever comes
	}
	return l.desk.signal
}

// parkStarted parks a row that has come and need not be started: its reply is in the
// journal, or it is in a batch.
func (l *laneRows) parkStarted(row *Row) bool {
	if l == nil || row.inTerm.back {
		return false
	}
	if l.earlier.has(row) {
		row.journal.stored = true
		l.park(row, true)
		return true
	}
	if l.lane.Holds(row) {
		l.park(row, false)
		return true
	}
	return false
}

// park parks an open row. near says that it can be answered when its turn is near: from
// the journal, or by starting it again, where that costs nothing.
func (l *laneRows) park(row *Row, near bool) {
	note := noteAway(row.inTerm.ackReply)
	note.kept = row.journal.stored
	note.taken = uint32(row.Taken.Sub(l.c.pulse.born) / time.Second) //nolint:gosec // 136 years
	delete(l.window.open, row.Seq)
	delete(l.stashed, row.Seq)
	row.abandon()
	if err := l.window.buf.Park(row.Seq, place{awayRow: note}, near); err != nil {
		panic(fmt.Sprintf("consumer: executor parked row %d twice: %v", row.Seq, err))
	}
	wanted, early := l.early[row.Seq]
	delete(l.early, row.Seq)
	switch {
	case near:
		l.kept(row.Seq)
	case early:
		l.wanted = append(l.wanted, wanted)
	}
	l.c.at("parked")
}

// takes takes an answered row out of the window, or will once the journal has its reply:
// behind a parked row the reply may wait for hours. It reports false for a row that stays
// in the window: its turn is near, or it came back because its turn was near, and it would
// come back at once.
func (l *laneRows) takes(row *Row) bool {
	switch {
	case l == nil, l.window.buf.Parked() == 0:
		return false
	case row.inTerm.back && row.Errand == nil, l.window.itsTurn(row):
		return false
	case row.journal.stored, row.reply.RequestHash == "": // it is in the journal, or cost nothing
		l.park(row, true)
	default:
		now := time.Now()
		l.stashed[row.Seq] = row
		l.unkept.add(row, now, now)
	}
	return true
}

// keptNow parks a row whose reply is in the journal now. One that can't be kept stays in
// the window.
func (l *laneRows) keptNow(row *Row) {
	switch {
	case l == nil:
	case l.stashed[row.Seq] != row:
		if row.journal.stored {
			// It waits in the window, perhaps for a row that the lane settles only after
			// it.
			l.kept(row.Seq)
		}
	case row.journal.stored:
		l.park(row, true)
	default:
		l.unstash(row)
	}
}

// unstashDue completes the rows whose turn has come before the journal had their replies,
// and all of them once the term stops.
func (l *laneRows) unstashDue(stopping bool) {
	if l == nil {
		return
	}
	for _, row := range l.stashed {
		if stopping || l.window.itsTurn(row) {
			l.unstash(row)
		}
	}
}

// unstash completes a row that is not parked after all.
func (l *laneRows) unstash(row *Row) {
	delete(l.stashed, row.Seq)
	l.unkept.settle(row)
	l.complete(row)
}

// takeRecalls takes the recalls that the lane has sent. It returns an error where the lane
// has found that another owns the partition.
func (l *laneRows) takeRecalls() error {
	if l == nil {
		return nil
	}
	recalls, fenced := l.desk.take()
	for _, r := range recalls {
		l.sortRecall(r)
	}
	return fenced
}

// sortRecall puts a recall where it belongs.
func (l *laneRows) sortRecall(r recall) {
	note, aside := l.window.buf.Away(r.seq)
	switch {
	case aside, l.window.open[r.seq] != nil, r.seq > l.in.accepted:
		l.early[r.seq] = r // until it is parked, which an open row may never be
	case note == nil:
		l.kept(r.seq) // it is finished
	case note.kept, l.returns.coming[r.seq] != nil:
		// Its reply is kept, or it is on its way already.
	default:
		l.wanted = append(l.wanted, r)
	}
}

// nextWanted returns the next row that the lane wants and that has room.
func (l *laneRows) nextWanted() (seq uint64, errand any, ok bool) {
	if l == nil {
		return 0, nil, false
	}
	wanted := &l.wanted
	for i := 0; i < len(*wanted); i++ {
		r := (*wanted)[i]
		if ok = l.window.buf.Recall(r.seq); ok {
			*wanted = slices.Delete(*wanted, i, i+1)
			return r.seq, r.errand, true
		}
		note, _ := l.window.buf.Away(r.seq)
		if note == nil || l.returns.coming[r.seq] != nil { // it has come back since, as its turn was near
			*wanted = slices.Delete(*wanted, i, i+1)
			i--
		}
	}
	return 0, nil, false
}

// kept reports to the lane that a row does not need its batch any more.
func (l *laneRows) kept(seq uint64) {
	if l != nil {
		l.lane.Kept(seq)
	}
}

// stop reports to the lane that the term stops. No row comes back from then on.
func (l *laneRows) stop() {
	if l != nil && !l.stopped {
		l.stopped = true
		l.lane.Stop()
	}
}

// close ends the lane's term, if it has begun.
func (l *laneRows) close() {
	if l != nil && l.opened {
		l.lane.Close()
	}
}
