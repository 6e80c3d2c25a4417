package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
)

// lineup is the rows that a term has taken and not yet emitted: a [sequencer.Buffer] where results are in stream order,
// else a [sequencer.Keyed].
type lineup interface {
	Grow(seq uint64, bytes int)
	Complete(seq uint64, p place, bytes int) (completeIndex uint64, err error)
	Ready(i int) (*sequencer.Entry[place], bool)
	Release(n int)
	Len() int
	Completed() int
	Bytes() int64
	Full(bytes int) bool
	Head() (seq uint64, ok bool)
	Park(seq uint64, p place, done bool) error
	Parked(seq uint64) *place
	Unpark(seq uint64) (*sequencer.Entry[place], bool)
	Readmit(room bool) (*sequencer.Entry[place], bool)
	ParkedLen() int
}

// logMark says how far the rows are emitted with a message of the log: all up to low, and ahead others above it. No
// result of those lies before from, a sequence of the results stream. In stream order low alone is set, to the row
// itself.
type logMark struct {
	low   uint64
	ahead int
	from  uint64
}

func (c *Consumer) inStreamOrder() bool { return c.cfg.Order == streams.OrderStream }

// markHeaders is how many headers [logMark.setHeader] sets.
const markHeaders = 4

// setHeader writes the mark for whoever takes over, and the row's key where there is one. In stream order the row says
// it all. The values share one array and one string: every result has them.
func (m logMark) setHeader(h nats.Header, key *string) {
	var digits [3 * len("18446744073709551615")]byte
	low := strconv.AppendUint(digits[:0], m.low, 10)
	ahead := strconv.AppendInt(low, int64(m.ahead), 10)
	text := string(strconv.AppendUint(ahead, m.from, 10))
	values := &[markHeaders]string{text[:len(low)], text[len(low):len(ahead)], text[len(ahead):]}
	h[streams.HeaderLow] = values[:1:1]
	if m.ahead > 0 {
		h[streams.HeaderAhead] = values[1:2:2]
		h[streams.HeaderAheadFrom] = values[2:3:3]
	}
	if key != nil {
		values[3] = *key
		h[streams.HeaderKey] = values[3:]
	}
}

// readMark reads the mark of a message about row.
func readMark(h nats.Header, row uint64) (m logMark, err error) {
	if h.Get(streams.HeaderLow) == "" {
		return logMark{low: row}, nil
	}
	if m.low, err = strconv.ParseUint(h.Get(streams.HeaderLow), 10, 64); err != nil || h.Get(streams.HeaderAhead) == "" {
		return m, err
	}
	if m.ahead, err = strconv.Atoi(h.Get(streams.HeaderAhead)); err == nil {
		m.from, err = strconv.ParseUint(h.Get(streams.HeaderAheadFrom), 10, 64)
	}
	return m, err
}

// aheadLog knows where in the log the results of the rows above the low-water mark lie, in blocks.
type aheadLog struct{ blocks []aheadBlock }

// aheadBlock is some results that follow each other in the log, none of them before at.
type aheadBlock struct {
	at     uint64
	newest uint64 // row
	rows   int
}

const aheadBlockRows = 64

// add notes a result that is stored at or after a place in the log.
func (l *aheadLog) add(at, row uint64) {
	if n := len(l.blocks); n > 0 && l.blocks[n-1].rows < aheadBlockRows {
		b := &l.blocks[n-1]
		b.newest, b.rows = max(b.newest, row), b.rows+1
		return
	}
	l.blocks = append(l.blocks, aheadBlock{at: at, newest: row, rows: 1})
}

// from returns the place before which no result of a row above low lies; next, if there is none in the log. It forgets
// what is passed: low never falls.
func (l *aheadLog) from(low, next uint64) uint64 {
	for len(l.blocks) > 0 && l.blocks[0].newest <= low {
		l.blocks = l.blocks[1:]
	}
	if len(l.blocks) == 0 {
		return next
	}
	return l.blocks[0].at
}

// lineUp makes the lineup of the term. Where rows above the low-water mark are emitted, it finds out which from the log:
// they come again behind the reset, and must not be answered again.
func (t *term) lineUp(ctx, soft context.Context, lost <-chan nats.Status) (err error) {
	limits := sequencer.Limits{Rows: t.c.cfg.WindowRows, Bytes: t.c.cfg.WindowBytes}
	if t.c.cfg.Lane != nil {
		limits.Parked = t.c.cfg.LaneRows + t.c.cfg.WindowRows // what is in the window may be parked, too
	}
	if t.c.inStreamOrder() {
		if t.stream, err = sequencer.New[place](limits); err != nil {
			return fatal(fmt.Errorf("consumer: window: %w", err))
		}
		t.buf = t.stream
		return nil
	}
	var finished []uint64
	if t.end.ahead > 0 {
		if finished, err = t.readAhead(ctx, soft, lost); err != nil {
			return err
		}
	}
	for _, seq := range finished {
		if row := t.c.held[seq]; row != nil {
			delete(t.c.held, seq)
			row.abandon()
		}
	}
	if t.keyed, err = sequencer.NewKeyed[place](limits, t.c.cfg.OrderSpan, t.end.low, finished); err != nil {
		return fatal(fmt.Errorf("consumer: window: %w", err))
	}
	t.buf = t.keyed
	if t.c.cfg.Order == streams.OrderKey {
		t.keyed.Reserve(sequencer.Limits{Rows: limits.Rows / asideReserve, Bytes: limits.Bytes / asideReserve})
		t.asides, err = t.c.newAsides()
	}
	return err
}

// readAhead reads the log from the first result of a row above the low-water mark on. Meanwhile the pin is renewed:
// reading may take longer than it lasts, and each of two replicas that take over would lose it to the other. So it ends
// at once when the stage stops or the connection is lost: nobody else could take over.
func (t *term) readAhead(ctx, soft context.Context, lost <-chan nats.Status) (finished []uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, aheadReadMost)
	defer cancel()
	err = t.whilePinned(ctx, soft, lost, func(ctx context.Context) (err error) {
		finished, err = t.c.finishedAhead(ctx, t.end, &t.ahead)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.c.at("ahead read")
	return finished, nil
}

// whilePinned waits for f, and renews the pin meanwhile.
func (t *term) whilePinned(ctx, soft context.Context, lost <-chan nats.Status, f func(context.Context) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f(ctx)
	}()
	for {
		next, broken := t.pull.step(time.Now(), 0, 0, false)
		if broken == nil {
			select {
			case <-done:
				return err
			case <-soft.Done():
				broken = context.Cause(soft)
			case <-lost:
				broken = errConnectionLost
			case m := <-t.pull.msgs:
				_, broken = t.pull.received(m, time.Now()) // no row fits the request
			case <-time.After(time.Until(next)):
			}
		}
		if broken != nil {
			cancel()
			<-done
			return broken
		}
	}
}

const (
	// aheadReadMost bounds the reading of the log at a take-over, with all attempts at it.
	aheadReadMost = time.Minute
	// aheadAskMost is how long an answer to the request to read may take: while servers elect a leader it is lost.
	aheadAskMost = 2 * time.Second
)

// finishedAhead returns the rows above the low-water mark that have results, sorted, and notes where these are. A
// replica that answers may lag behind the log, so it is asked again while there are fewer than the end of the log says.
func (c *Consumer) finishedAhead(ctx context.Context, end logEnd, where *aheadLog) (rows []uint64, err error) {
	for wait := range streams.Retry(ctx, storeRetryFirst, streams.RequestTimeout) {
		*where, rows = aheadLog{}, rows[:0]
		err = c.eachResult(ctx, end.from, end.seq, func(at, row uint64) {
			if row > end.low {
				where.add(at, row)
				rows = append(rows, row)
			}
		})
		slices.Sort(rows)
		rows = slices.Compact(rows)
		switch {
		case err == nil && len(rows) >= end.ahead:
			return rows, nil
		case err == nil && wait > streams.RequestTimeout/2:
			c.resultsLost = true
			lost := fmt.Errorf("%w: %d rows above the low-water mark, row %d, have results, and stream %s holds %d of them on %s from sequence %d on: restore it from a backup, or start under another name: the others would be answered twice",
				ErrResumePointLost, end.ahead, end.low, c.cfg.ResultStream, len(rows), c.resultSubject, end.from)
			if !c.served {
				return nil, fatal(lost)
			}
			return nil, unfit(lost)
		case err != nil && wait > streams.RequestTimeout/2:
			return nil, err
		}
	}
	return nil, errors.Join(context.Cause(ctx), err)
}

// eachResult calls f with each result of the partition from one sequence of the results stream to another, and the row
// that it is of.
func (c *Consumer) eachResult(ctx context.Context, from, to uint64, f func(at, row uint64)) error {
	return c.eachHeader(ctx, c.cfg.ResultStream, c.resultSubject, from, to, func(at uint64, h nats.Header) error {
		row, err := strconv.ParseUint(h.Get(streams.HeaderSourceSeq), 10, 64)
		if err != nil {
			return fmt.Errorf("message %d is no result", at)
		}
		f(at, row)
		return nil
	})
}

// room returns how many rows may be taken.
func (t *term) room() int {
	if t.keyed == nil {
		return t.roomBeside(t.c.cfg.WindowRows - t.buf.Len())
	}
	room := t.roomBeside(t.keyed.Room())
	if t.durable.AcksDelete {
		// Rows that were emitted before do not come again, and count in the span when the next row comes: ask for no more
		// than there is room for then, and for one to find out.
		room = min(room, max(1, t.c.cfg.OrderSpan-t.unacked()-t.keyed.Mark().Ahead))
	}
	return room
}

// enter opens the row in the lineup. With [errSetAside] it has entered without being held.
func (t *term) enter(row *Row, reply string, bytes int) (submitIndex uint64, err error) {
	switch t.c.cfg.Order {
	case streams.OrderKey:
		if !t.keyed.Outside(row.Key, bytes) {
			return t.keyed.Open(row.Seq, row.Key, bytes)
		}
		if err = t.keyed.SetAside(row.Seq, row.Key, bytes, reply); err == nil {
			err = errSetAside
		}
		return 0, err
	case streams.OrderNone:
		return t.keyed.OpenFree(row.Seq, bytes)
	case streams.OrderStream:
	}
	return t.stream.Open(row.Seq, bytes)
}

// known reports whether a row that was not taken yet has been emitted before this term.
func (t *term) known(seq uint64) bool { return t.keyed != nil && t.keyed.Known(seq) }

// skip passes over a known row.
func (t *term) skip(seq uint64, reply string) error {
	if err := t.keyed.Skip(seq); err != nil {
		return err
	}
	t.accepted = seq
	t.c.setStatus(func(s *Status) { s.Skipped++ })
	t.ack(reply)
	if t.parks != nil {
		t.c.cfg.Lane.Kept(seq)
	}
	return nil
}

// pass takes in the known rows before seq, the next row of the input: they were deleted since they were emitted. They
// count in the span, so whether there is room for the row is known only then.
func (t *term) pass(seq uint64) {
	if t.keyed != nil {
		t.keyed.Pass(seq)
		t.accepted = seq - 1
	}
}

// finished reports whether a row is emitted.
func (t *term) finished(seq uint64) bool {
	if t.keyed != nil {
		return t.keyed.Finished(seq)
	}
	return seq <= t.end.low
}

// opened is a row that is taken and not emitted; nil: it is not.
func (t *term) opened(seq uint64) *Row { return t.open[seq] }

// itsTurn reports whether an answered row waits for no other.
func (t *term) itsTurn(row *Row) bool {
	if row.parent != nil && !row.parent.done {
		return false
	}
	if t.keyed != nil {
		_, waits := t.keyed.WaitsFor(row.Seq)
		return !waits
	}
	return row.Seq < t.blocker()
}

// lead marks the row of a key that waits for no other, and notes whether others wait for it, see [Row.MayBegin].
func (t *term) lead(key string) {
	if t.c.cfg.Order != streams.OrderKey {
		return
	}
	seq, waits, ok := t.keyed.First(key)
	more := t.c.gate.setWaiting(key, waits)
	if row := t.open[seq]; ok && row != nil {
		first := !row.leads.Swap(true)
		more = more || first && t.c.gate.holds()
	}
	t.c.resumeIf(more)
}

// mark notes on each row of a group, which goes to the emitter now, how far the log will go with it.
func (t *term) mark(group []*Row) {
	if t.keyed == nil {
		for _, row := range group {
			row.after = logMark{low: row.Seq}
		}
		return
	}
	i := 0
	for m := range t.keyed.Marks(len(group)) {
		group[i].after = logMark{low: m.Low, ahead: m.Ahead}
		if m.Ahead > 0 {
			group[i].after.from = t.ahead.from(m.Low, t.end.seq+1)
		}
		i++
	}
}

// noteAhead notes where the rows of a group are that are emitted above the low-water mark.
func (t *term) noteAhead(group []*Row, at, low uint64) {
	if t.keyed == nil {
		return
	}
	for _, row := range group {
		if row.Seq > low {
			t.ahead.add(at, row.Seq)
		}
	}
}

// leaveMark claims once more where the low-water mark has passed the end of the log, as it does over rows that were
// emitted by an earlier term. So a stage that has emitted all its rows says so, and may go on in another order.
func (t *term) leaveMark(ctx context.Context) error {
	if t.keyed == nil || t.end.ahead == 0 {
		return nil
	}
	if err := t.passKnown(ctx); err != nil {
		return err
	}
	m := t.keyed.Mark()
	if m.Low == t.end.low {
		return nil
	}
	end := t.end
	if end.logMark = (logMark{low: m.Low, ahead: m.Ahead}); m.Ahead > 0 {
		end.from = t.ahead.from(m.Low, t.end.seq+1)
	}
	end, err := t.c.claim(ctx, t.owner, end, t.c.inputCreated)
	if err == nil {
		t.end = end
	}
	return err
}

// passMost bounds the requests of passKnown, of which each row costs one where those of other partitions lie between.
const passMost = 1000

// passKnown passes the known rows behind the last one taken, up to the first row that is not known: they have not come
// again, or were deleted from the input.
func (t *term) passKnown(ctx context.Context) error {
	from := t.accepted + 1
	for range passMost {
		next, err := t.c.nextInput(ctx, from)
		if err != nil {
			return err
		}
		if next == 0 {
			next = math.MaxUint64
		}
		t.keyed.Pass(next)
		if !t.keyed.Known(next) {
			return nil
		}
		from = next + 1
		for t.keyed.Known(from) { // no other row can lie between these
			from++
		}
		t.keyed.Pass(from)
	}
	return nil
}

// checkOrder refuses another order than that of the last claim where rows above the low-water mark are emitted: in the
// new order they may be too early.
func (c *Consumer) checkOrder(cl *streams.Claim, end logEnd) error {
	if cl == nil || end.ahead == 0 {
		return nil
	}
	if cl.SameOrder(c.cfg.Order, c.cfg.OrderKey) {
		return nil
	}
	const way = "and of the rows after row %d, which wait, %d have their results already: start as before until all rows that were taken have theirs, and stop; then change it, or choose another %s now"
	if cl.Order == streams.OrderKey && c.cfg.Order == streams.OrderKey {
		return unfit(streams.NewSettingError(streams.FieldOrderKey, "%s is %s and was %s when the stage last ran, "+way,
			streams.FieldOrderKey, c.cfg.OrderKey, cl.Key, end.low, end.ahead, streams.FieldName))
	}
	return unfit(streams.NewSettingError(streams.FieldOrder, "%s is %s and was %s when the stage last ran, "+way,
		streams.FieldOrder, c.cfg.Order, cmp.Or(cl.Order, streams.OrderStream), end.low, end.ahead, streams.FieldName))
}

// waitedForEvery is the time between two looks for the row that others have waited for longest: it costs a look at each
// key that has rows.
const waitedForEvery = time.Second

// publishOrder publishes what is only known where results are not in stream order.
func (t *term) publishOrder(s *Status) {
	m := t.keyed.Mark()
	s.HighWaterMark, s.Ahead, s.KeysWaiting, s.SetAside = m.Low, m.Ahead, t.keyed.Waiting(), t.keyed.Aside()
	waits := s.KeysWaiting > 0
	now := time.Now()
	looked := waits && now.Sub(t.waitedForAt) < waitedForEvery
	if looked && t.open[s.WaitedFor] != nil {
		return
	}
	s.WaitedFor, s.WaitedForKey, s.WaitedForSince = 0, "", time.Time{}
	if looked || !waits {
		return // or each row that others wait for a moment would cost a look when it has its result
	}
	t.waitedForAt = now
	if seq, key, ok := t.keyed.WaitedFor(); ok {
		s.WaitedFor, s.WaitedForKey = seq, key
		if row := t.open[seq]; row != nil {
			s.WaitedForSince = row.Taken
		}
	}
}
