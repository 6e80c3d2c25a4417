package consumer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
)

// A row that is away keeps its place in the sequencer, and nothing else of it is in
// memory: it was set aside because its key has its share of the window, or it is parked
// in the batch lane. Its body stays in the input stream. When it comes back it is read by
// its sequence: its delivery is long past, and a redelivery would come when the server
// likes.

// errSetAside says that a row has entered without being held, which is no failure.
var errSetAside = errors.New("the row is set aside")

const (
	// returnsAtOnce bounds the rows that are being read again, including those that are
	// here and wait until an earlier row of their key is.
	returnsAtOnce = 64
	// returnRetry is the wait before a row is asked for again that could not be read.
	returnRetry = time.Second
)

// place is the value of a row in the sequencer: the row itself once it is complete, or
// the note on a row that is away.
type place struct {
	row *Row
	awayRow
}

// awayRow is what is kept of a row that is away. The numbers of its delivery take the
// place of the ack's subject, which has four times their bytes.
type awayRow struct {
	consumer  uint64 // consumer sequence of its last delivery
	delivered uint32 // how often it was delivered
	kept      bool   // the journal has its reply
	taken     uint32 // [Row.Taken] in seconds since the consumer began; unset while set aside
}

// returns reads the rows that come back. The goroutine of the term owns it.
type returns struct {
	inbox   string
	sub     *nats.Subscription
	answers chan *nats.Msg
	coming  map[uint64]*comingBack
}

// comingBack is a row whose body, and its reply where it was kept, are being read.
type comingBack struct {
	errand any // see [Row.Errand]

	body stamped // without a message until it is read
	gone bool    // it is no longer in the input stream
	kept *Kept
	read bool // its reply is read, or none was kept

	again  time.Time // when to ask once more
	silent bool      // nobody has answered since it was asked for
}

// here reports whether everything is read.
func (b *comingBack) here() bool { return b.gone || b.body.Msg != nil && b.read }

func newReturns(c *Consumer) (*returns, error) {
	r := &returns{
		inbox: c.nc.NewInbox(), answers: make(chan *nats.Msg, 8*returnsAtOnce),
		coming: make(map[uint64]*comingBack),
	}
	var err error
	if r.sub, err = c.nc.ChanSubscribe(r.inbox+".>", r.answers); err != nil {
		return nil, fmt.Errorf("subscribe to rows that come back: %w", err)
	}
	return r, nil
}

// In a term in which no row is ever away returns is nil. Its methods allow for that.

func (r *returns) close() {
	if r != nil {
		_ = r.sub.Unsubscribe()
	}
}

// received is the channel of the answers.
func (r *returns) received() <-chan *nats.Msg {
	if r == nil {
		return nil // nothing ever comes
	}
	return r.answers
}

// noteAway is the note on a row that was delivered with this ack.
func noteAway(ack string) (note awayRow) {
	note.consumer, note.delivered = deliveryOf(ack)
	return note
}

// deliveredAgain notes that a row that is away has come again, and reports whether it is
// one.
func (t *term) deliveredAgain(seq uint64, ack string) bool {
	note, _ := t.buf.Away(seq)
	if note == nil {
		return false
	}
	note.consumer, note.delivered = deliveryOf(ack)
	return true
}

// bringBack reads the rows that come back: those whose turn is near, then those that the
// lane wants.
func (t *term) bringBack(now time.Time) error {
	r := t.returns
	if r == nil || t.stopping {
		return nil
	}
	if err := t.takeRecalls(); err != nil {
		return err
	}
	for len(r.coming) < returnsAtOnce {
		seq, errand, ok := t.nextBack()
		if !ok {
			break
		}
		note, _ := t.buf.Away(seq)
		r.coming[seq] = &comingBack{errand: errand, read: !note.kept}
	}
	for seq, row := range r.coming {
		if !row.read {
			if row.kept, row.read = t.journal.getBack(seq, now); row.here() {
				if err := t.startBack(seq); err != nil {
					return err
				}
			}
		}
		if row.gone || row.body.Msg != nil || now.Before(row.again) {
			continue
		}
		if row.silent { // a missing permission is answered by silence
			t.awayProblem(nats.ErrTimeout)
		}
		if err := t.askBack(seq, row, now); err != nil {
			return err
		}
	}
	return nil
}

// nextBack returns the next row that comes back, and what the lane wants of it.
func (t *term) nextBack() (seq uint64, errand any, ok bool) {
	if seq, ok = t.buf.Next(); ok {
		return seq, nil, true
	}
	return t.nextWanted()
}

// askBack asks for the body of a row.
func (t *term) askBack(seq uint64, row *comingBack, now time.Time) error {
	row.again, row.silent = now.Add(streams.RequestTimeout), true
	name := t.returns.inbox + "." + strconv.FormatUint(seq, 36)
	return streams.AskForMessage(t.c.nc, t.c.cfg.InputStream, seq, name)
}

func (t *term) awayProblem(err error) {
	err = fmt.Errorf("get a row of stream %s again: %w", t.c.cfg.InputStream, err)
	t.c.problems.set(problemAway, t.c.denied(err))
}

// cameBack takes an answer to askBack.
func (t *term) cameBack(m *nats.Msg, now time.Time) error {
	seq, err := strconv.ParseUint(m.Subject[len(t.returns.inbox)+1:], 36, 64)
	row := t.returns.coming[seq]
	if err != nil || row == nil || t.stopping {
		return nil //nolint:nilerr // a second answer, or the next owner reads the row
	}
	raw, err := streams.ReadMessage(m)
	row.silent = false
	switch {
	case err != nil:
		t.awayProblem(err)
		row.again = now.Add(returnRetry)
		return nil
	case raw == nil:
		row.gone = true
	default:
		row.body = stamp(raw)
	}
	if !row.here() {
		return nil
	}
	t.c.problems.clear(problemAway)
	return t.startBack(seq)
}

// startBack starts a row that is here again, and the rows behind it that have waited for
// it: rows of one key that were set aside start in stream order, whatever the order of
// the answers.
func (t *term) startBack(seq uint64) error {
	coming := t.returns.coming
	for seq != 0 {
		back := coming[seq]
		if back == nil || !back.here() {
			return nil
		}
		next, err := t.putBack(seq, back)
		if errors.Is(err, sequencer.ErrOutOfOrder) {
			return nil // an earlier row of its key brings it along
		}
		if err != nil {
			return err
		}
		delete(coming, seq)
		seq = next
	}
	return nil
}

// putBack has a row that is here start, or forgets one that was deleted from the input.
// next is the row set aside whose turn it is now, or 0.
func (t *term) putBack(seq uint64, back *comingBack) (next uint64, err error) {
	if back.gone {
		key, next, err := t.buf.Drop(seq)
		if err == nil {
			t.laneKept(seq)
			t.lead(key)
		}
		return next, err
	}
	note, aside := t.buf.Away(seq)
	was := *note // the sequencer may use its place again
	index, next, err := t.buf.Return(seq)
	if err != nil {
		return 0, err
	}
	row := t.rowOf(seq, back.body)
	if !aside {
		row.term.back, row.Errand, row.Kept = true, back.errand, back.kept
		row.Taken = t.c.pulse.born.Add(time.Duration(was.taken) * time.Second)
	}
	t.take(row, weight(back.body.Msg), index, t.ackOf(seq, &was.awayRow))
	row.journal.stored = back.kept != nil
	return next, nil
}

// ackTokens is the number of tokens of an ack's subject behind the consumer's name: how
// often delivered, the two sequences, time, pending. Newer servers may add one.
const ackTokens = 5

// deliveryOf returns what a row's ack says of its delivery.
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

// ackAt is where the numbers begin in the tokens of an ack's subject: behind
// $JS.ACK.<stream>.<consumer> or, with domain and account, behind
// $JS.ACK.<domain>.<account>.<stream>.<consumer>.
func ackAt(tokens []string) int {
	if len(tokens) > 4+ackTokens {
		return 6
	}
	return 4
}

// ackOf returns the subject that acks a row that was away: the subject of any row's last
// delivery, with this row's numbers.
func (t *term) ackOf(seq uint64, note *awayRow) string {
	tokens := strings.Split(t.in.ackForm, ".")
	if len(tokens) < ackTokens {
		return ""
	}
	at := ackAt(tokens)
	tokens[at] = strconv.FormatUint(uint64(note.delivered), 10)
	tokens[at+1], tokens[at+2] = strconv.FormatUint(seq, 10), strconv.FormatUint(note.consumer, 10)
	return strings.Join(tokens, ".")
}

// unacked is how many rows are delivered and not emitted.
func (t *term) unacked() int { return t.buf.Len() + t.buf.AwayLen() }
