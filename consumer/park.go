package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
)

const (
	// windowForReturns is the part of the window that is kept for rows that come back from the lane, a quarter: else rows
	// behind them could fill it, and the row that all wait for would find no room.
	windowForReturns = 4
	// returnsAtOnce bounds the rows that are being read again.
	returnsAtOnce = 64
)

// parks are the rows of a term that are parked, and those on their way back. The goroutine of the term owns it, but for
// desk.
type parks struct {
	desk laneDesk
	// wanted are the recalls that wait for room, early those of rows that have not come again since the term began.
	wanted []recall
	early  map[uint64]recall
	// stashed are answered rows that wait for the journal to have their replies, to be parked.
	stashed map[uint64]*Row
	stopped bool

	inbox   string
	sub     *nats.Subscription
	answers chan *nats.Msg
	coming  map[uint64]*comingBack
}

// place is what a row's place in the order holds: the row itself once it is complete, or what is kept of a parked one.
type place struct {
	row *Row
	parkedRow
}

// parkedRow is what is kept of a parked row.
type parkedRow struct {
	entry     uint64 // of the journal, with its reply; 0: none
	consumer  uint64 // sequence of its last delivery
	delivered uint32 // how often
	taken     uint32 // [Row.Taken], in s since the consumer began
}

// recall is a row that the lane wants back.
type recall struct {
	seq    uint64
	errand any
}

// comingBack is a row whose body, and the entry that holds its reply, are being read.
type comingBack struct {
	parked parkedRow
	index  uint64 // [Row.submitIndex]
	errand any
	body   stamped // without a message: not there yet
	kept   *Kept
	read   bool      // the entry, or there is none
	again  time.Time // when to ask once more
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
	p := &parks{
		early: make(map[uint64]recall), stashed: make(map[uint64]*Row), coming: make(map[uint64]*comingBack),
		desk:  laneDesk{signal: make(chan struct{}, 1)},
		inbox: t.c.nc.NewInbox(), answers: make(chan *nats.Msg, 8*returnsAtOnce),
	}
	sub, err := t.c.nc.ChanSubscribe(p.inbox+".>", p.answers)
	if err != nil {
		return fmt.Errorf("subscribe to rows of the lane: %w", err)
	}
	p.sub, t.parks = sub, p
	return t.whilePinned(ctx, soft, lost, func(ctx context.Context) error {
		return lane.Open(ctx, LaneTerm{
			Owner: t.owner, Low: t.end.low, InputCreated: t.c.inputCreated, Recall: p.desk.recall, Fenced: p.desk.fence,
		})
	})
}

// closeLane ends what openLane has begun, if it has.
func (t *term) closeLane() {
	if t.parks == nil {
		return
	}
	t.c.cfg.Lane.Close()
	_ = t.parks.sub.Unsubscribe()
}

// stopLane parks what is on its way back: a stopping term starts none.
func (t *term) stopLane() {
	p := t.parks
	if p == nil || p.stopped || !t.stopping {
		return
	}
	p.stopped = true
	t.c.cfg.Lane.Stop()
	for seq, row := range p.coming {
		t.parkPlace(seq, row.parked, row.parked.entry > 0)
	}
	clear(p.coming)
	p.wanted = nil
	clear(p.early)
}

// laneSignal, laneAnswers are nil where there is no lane: nothing ever comes.
func (t *term) laneSignal() <-chan struct{} {
	if t.parks == nil {
		return nil
	}
	return t.parks.desk.signal
}

func (t *term) laneAnswers() <-chan *nats.Msg {
	if t.parks == nil {
		return nil
	}
	return t.parks.answers
}

// parkStarted parks a row that has come and need not be started: its reply is in the journal, or it is in a batch.
func (t *term) parkStarted(row *Row) bool {
	if t.parks == nil || row.back {
		return false
	}
	if entry := t.journal.take(row.Seq); entry > 0 {
		row.stored = entry
		t.park(row, true)
		return true
	}
	if t.c.cfg.Lane.Holds(row) {
		t.park(row, false)
		return true
	}
	return false
}

// park parks an open row. done says that it can be answered when its turn comes: from the journal, or by starting it
// again, where that costs nothing.
func (t *term) park(row *Row, done bool) {
	parked := parkedRow{entry: row.stored, taken: uint32(row.Taken.Sub(t.c.pulse.born) / time.Second)} //nolint:gosec // 136 years
	parked.consumer, parked.delivered = deliveryOf(row.ackReply)
	delete(t.open, row.Seq)
	delete(t.parks.stashed, row.Seq)
	row.abandon()
	t.parkPlace(row.Seq, parked, done)
	wanted, early := t.parks.early[row.Seq]
	delete(t.parks.early, row.Seq)
	switch {
	case done:
		t.c.cfg.Lane.Kept(row.Seq)
	case early:
		t.parks.wanted = append(t.parks.wanted, wanted)
	}
	t.c.at("parked")
}

func (t *term) parkPlace(seq uint64, parked parkedRow, done bool) {
	if err := t.buf.Park(seq, place{parkedRow: parked}, done); err != nil {
		panic(fmt.Sprintf("consumer: executor parked row %d twice: %v", seq, err))
	}
}

// answered takes the reply to an open row. Behind a parked row a reply may wait for hours: it goes to the journal, and
// its row is parked, too. A row whose turn was near when it came back stays: it would come back at once.
func (t *term) answered(row *Row) {
	row.answered = true
	switch {
	case t.parks == nil, t.buf.ParkedLen() == 0, t.stopping, row.back && row.Errand == nil, t.itsTurn(row):
		t.complete(row)
	case row.stored > 0, row.reply.RequestHash == "": // it is in the journal, or cost nothing
		t.park(row, true)
	default:
		t.parks.stashed[row.Seq] = row
		t.journal.waitNow(row, time.Now())
	}
}

// leftLane tells the lane that a row is emitted.
func (t *term) leftLane(row *Row) {
	if t.parks != nil && row.stored == 0 {
		t.c.cfg.Lane.Kept(row.Seq)
	}
}

// deliveredAgain notes that a parked row has come again, and reports whether it is one.
func (t *term) deliveredAgain(seq uint64, ack string) bool {
	if t.parks == nil {
		return false
	}
	var row *parkedRow
	if parked := t.buf.Parked(seq); parked != nil {
		row = &parked.parkedRow
	} else if coming := t.parks.coming[seq]; coming != nil {
		row = &coming.parked
	} else {
		return false
	}
	row.consumer, row.delivered = deliveryOf(ack)
	return true
}

// roomBeside returns how many of the rows that the window has room for may be taken: a part is for those that come back,
// and so many may be parked.
func (t *term) roomBeside(room int) int {
	if t.parks == nil {
		return room
	}
	return max(0, min(room-t.c.cfg.WindowRows/windowForReturns, t.c.cfg.LaneRows-t.buf.ParkedLen()))
}

// keptNow parks a row whose reply is in the journal now. One that can't be kept stays in the window.
func (t *term) keptNow(row *Row) {
	switch {
	case t.parks == nil:
	case t.parks.stashed[row.Seq] != row:
		if row.stored > 0 { // it waits in the window, perhaps for a row that the lane settles only after it
			t.c.cfg.Lane.Kept(row.Seq)
		}
	case row.stored > 0:
		t.park(row, true)
	default:
		t.unstash(row)
	}
}

func (t *term) unstash(row *Row) {
	delete(t.parks.stashed, row.Seq)
	t.journal.settle(row)
	t.complete(row)
}

// unstashDue completes the rows whose turn has come before the journal had their replies, and all of them once the term
// stops.
func (t *term) unstashDue() {
	if t.parks == nil || len(t.parks.stashed) == 0 {
		return
	}
	if t.stream != nil && !t.stopping {
		for {
			seq, ok := t.stream.Blocker()
			row := t.parks.stashed[seq]
			if !ok || row == nil {
				return
			}
			t.unstash(row)
		}
	}
	for _, row := range t.parks.stashed {
		if t.stopping || t.itsTurn(row) {
			t.unstash(row)
		}
	}
}

// readBack starts to read the rows that come back: those whose turn is near, then those that the lane wants.
func (t *term) readBack(now time.Time) error {
	p := t.parks
	if p == nil || t.stopping {
		return nil
	}
	recalls, fenced := p.desk.take()
	if fenced != nil {
		return fenced
	}
	for _, r := range recalls {
		t.sortRecall(r)
	}
	for len(p.coming) < returnsAtOnce {
		entry, errand, ok := t.nextBack()
		if !ok {
			break
		}
		parked := entry.Value.parkedRow
		p.coming[entry.Seq] = &comingBack{parked: parked, index: entry.SubmitIndex, errand: errand, read: parked.entry == 0}
	}
	for seq, row := range p.coming {
		if now.Before(row.again) {
			continue
		}
		if !row.again.IsZero() { // a missing permission is answered by silence
			t.laneProblem(nats.ErrTimeout)
		}
		if err := t.askBack(seq, row, now); err != nil {
			return err
		}
	}
	return nil
}

// sortRecall puts a recall where it belongs. A row that is open settles by itself.
func (t *term) sortRecall(r recall) {
	p := t.parks
	parked := t.buf.Parked(r.seq)
	switch {
	case parked != nil && parked.entry > 0: // its reply is kept, which the lane has been told
	case parked != nil:
		p.wanted = append(p.wanted, r)
	case t.open[r.seq] != nil, r.seq > t.accepted:
		p.early[r.seq] = r
	case t.finished(r.seq), p.coming[r.seq] == nil: // or it is no longer in the input
		t.c.cfg.Lane.Kept(r.seq)
	}
}

// nextBack returns the next row that comes back. The row that all others wait for needs no room.
func (t *term) nextBack() (entry *sequencer.Entry[place], errand any, ok bool) {
	p := t.parks
	room := t.buf.Len() < t.c.cfg.WindowRows && t.buf.Bytes() < t.c.cfg.WindowBytes
	if entry, ok = t.buf.Readmit(room); ok {
		return entry, nil, true
	}
	for i := 0; i < len(p.wanted); i++ {
		r := p.wanted[i]
		if !room && r.seq != t.blocker() {
			continue
		}
		p.wanted = slices.Delete(p.wanted, i, i+1)
		if entry, ok = t.buf.Unpark(r.seq); ok { // else it has come back since, as its turn was near
			return entry, r.errand, true
		}
		i--
	}
	return nil, nil, false
}

// askBack asks for what is missing of a row.
func (t *term) askBack(seq uint64, row *comingBack, now time.Time) error {
	row.again = now.Add(streams.RequestTimeout)
	name := strconv.FormatUint(seq, 36)
	if row.body.Msg == nil {
		if err := streams.AskForMessage(t.c.nc, t.c.cfg.InputStream, seq, t.parks.inbox+".b."+name); err != nil {
			return err
		}
	}
	if row.read {
		return nil
	}
	return streams.AskForMessage(t.c.nc, t.c.cfg.JournalStream, row.parked.entry, t.parks.inbox+".e."+name)
}

func (t *term) laneProblem(err error) {
	t.c.problems.set(problemLane, t.c.denied(fmt.Errorf("read a row of the batch lane again: %w", err)))
}

// errRowGone ends a term: the next one finds out which rows there are.
var errRowGone = errors.New("a row that waits in the batch lane is no longer in the input stream")

// cameBack takes an answer to askBack.
func (t *term) cameBack(m *nats.Msg, now time.Time) error {
	p := t.parks
	what, name, _ := strings.Cut(m.Subject[len(p.inbox)+1:], ".")
	seq, err := strconv.ParseUint(name, 36, 64)
	row := p.coming[seq]
	if err != nil || row == nil {
		return nil //nolint:nilerr // a second answer
	}
	raw, err := streams.ReadMessage(m)
	if err != nil {
		t.laneProblem(err)
		row.again = now.Add(asideRetry)
		return nil
	}
	switch {
	case what == "b" && raw == nil:
		return fmt.Errorf("%w: %d", errRowGone, seq)
	case what == "b":
		row.body = stamp(raw)
	default:
		row.read = true
		if raw != nil {
			if of, index, kept, err := t.c.parseEntry(raw.Header, raw.Data); err == nil && of == seq && index == wholeRow {
				row.kept = kept
			}
		}
	}
	if row.body.Msg == nil || !row.read {
		return nil
	}
	t.c.problems.clear(problemLane)
	delete(p.coming, seq)
	t.startBack(seq, row)
	return nil
}

// startBack starts a row that has come back, by its errand or from what is kept.
func (t *term) startBack(seq uint64, back *comingBack) {
	row := t.c.rowOf(seq, back.body)
	row.back, row.Errand, row.Kept = true, back.errand, back.kept
	row.Taken = t.c.pulse.born.Add(time.Duration(back.parked.taken) * time.Second)
	t.take(row, weight(back.body.Msg), back.index, t.ackOf(seq, &back.parked))
	if back.kept != nil {
		row.stored = back.parked.entry
	}
}

// ackTokens are those of an ack's subject behind the consumer's name: how often delivered, the two sequences, time,
// pending; newer servers may add one.
const ackTokens = 5

// deliveryOf returns what a row's ack names of its delivery.
func deliveryOf(ack string) (consumer uint64, delivered uint32) {
	tokens := strings.Split(ack, ".")
	if len(tokens) < ackTokens {
		return 0, 0
	}
	last := tokens[ackAt(tokens):]
	d, _ := strconv.ParseUint(last[0], 10, 32)
	consumer, _ = strconv.ParseUint(last[2], 10, 64)
	return consumer, uint32(d)
}

// ackAt is where the numbers begin in the tokens of an ack's subject: behind $JS.ACK.<stream>.<consumer> or, with domain
// and account, behind $JS.ACK.<domain>.<account>.<stream>.<consumer>.
func ackAt(tokens []string) int {
	if len(tokens) > 4+ackTokens {
		return 6
	}
	return 4
}

// ackOf returns the subject that acks a parked row: that of the last delivery of any row, with this one's numbers.
func (t *term) ackOf(seq uint64, parked *parkedRow) string {
	tokens := strings.Split(t.ackForm, ".")
	if len(tokens) < ackTokens {
		return ""
	}
	at := ackAt(tokens)
	tokens[at], tokens[at+1], tokens[at+2] = strconv.FormatUint(uint64(parked.delivered), 10), strconv.FormatUint(seq, 10), strconv.FormatUint(parked.consumer, 10)
	return strings.Join(tokens, ".")
}
