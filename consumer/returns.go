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

const (
	// returnsAtOnce bounds the rows that are being read again. It includes rows that have
	// been read and wait for an earlier row of their key.
	returnsAtOnce = 64
	// returnRetry is the wait before a row is asked for again that could not be read.
	returnRetry = time.Second
)

// awayRow is the note on a row that is away. The numbers of its delivery take the place of
// the ack's subject, which has four times their bytes.
type awayRow struct {
	consumer  uint64 // consumer sequence of its last delivery
	delivered uint32 // how often it was delivered
	kept      bool   // the journal has its reply
	taken     uint32 // [Row.Taken] in seconds since the consumer began; unset while set aside
}

// noteAway is the note on a row that was delivered with this ack.
func noteAway(ack string) (note awayRow) {
	note.consumer, note.delivered = deliveryOf(ack)
	return note
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

// returns are the rows of a term that were away and come back: they are read again, as
// many as [returnsAtOnce] at a time. A row that is away keeps its place in the sequencer,
// and nothing else of it is in memory: it was set aside because its key has its share of
// the window, or it is parked in the batch lane. Its body stays in the input stream. When
// it comes back it is read by its sequence: its delivery is long past, and a redelivery
// would come when the server likes.
//
// The goroutine of the term owns it. In a term in which no row is ever away it is nil, and
// its methods allow for that.
type returns struct {
	c      *Consumer
	window *window
	gets   *gets
	lane   *laneRows
	// enter takes a row that is read into the window, see [term.comeBack].
	enter func(seq uint64, back *comingBack) (next uint64, err error)

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

// openReturns subscribes to the answers, in a term in which rows may be away.
func openReturns(t *term) (err error) {
	r := &returns{
		c: t.c, window: t.window, gets: &t.journal.gets, lane: t.lane, enter: t.comeBack,
		inbox: t.c.nc.NewInbox(), answers: make(chan *nats.Msg, 8*returnsAtOnce),
		coming: make(map[uint64]*comingBack),
	}
	if r.sub, err = t.c.nc.ChanSubscribe(r.inbox+".>", r.answers); err != nil {
		return fmt.Errorf("subscribe to rows that come back: %w", err)
	}
	if t.returns = r; t.lane != nil {
		t.lane.returns = r
	}
	return nil
}

// replies is the channel of the answers.
func (r *returns) replies() <-chan *nats.Msg {
	if r == nil {
		return nil // nothing ever comes
	}
	return r.answers
}

// bringBack reads the rows that come back: those whose turn is near, then those that the
// lane wants.
func (r *returns) bringBack(now time.Time, stopping bool) error {
	if r == nil || stopping {
		return nil
	}
	if err := r.lane.takeRecalls(); err != nil {
		return err
	}
	for len(r.coming) < returnsAtOnce {
		seq, errand, ok := r.nextBack()
		if !ok {
			break
		}
		note, _ := r.window.buf.Away(seq)
		r.coming[seq] = &comingBack{errand: errand, read: !note.kept}
	}
	for seq, row := range r.coming {
		if !row.read {
			if row.kept, row.read = r.gets.getBack(seq, now); row.here() {
				if err := r.startBack(seq); err != nil {
					return err
				}
			}
		}
		if row.gone || row.body.Msg != nil || now.Before(row.again) {
			continue
		}
		if row.silent { // a missing permission is answered by silence
			r.awayProblem(nats.ErrTimeout)
		}
		if err := r.askBack(seq, row, now); err != nil {
			return err
		}
	}
	return nil
}

// nextBack returns the next row that comes back, and what the lane wants of it.
func (r *returns) nextBack() (seq uint64, errand any, ok bool) {
	if seq, ok = r.window.buf.Next(); ok {
		return seq, nil, true
	}
	return r.lane.nextWanted()
}

// askBack asks for the body of a row.
func (r *returns) askBack(seq uint64, row *comingBack, now time.Time) error {
	row.again, row.silent = now.Add(streams.RequestTimeout), true
	name := r.inbox + "." + strconv.FormatUint(seq, 36)
	return streams.AskForMessage(r.c.nc, r.c.cfg.InputStream, seq, name)
}

// received takes an answer to askBack.
func (r *returns) received(m *nats.Msg, now time.Time) error {
	seq, err := strconv.ParseUint(m.Subject[len(r.inbox)+1:], 36, 64)
	row := r.coming[seq]
	if err != nil || row == nil {
		return nil //nolint:nilerr // a second answer
	}
	raw, err := streams.ReadMessage(m)
	row.silent = false
	switch {
	case err != nil:
		r.awayProblem(err)
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
	r.c.problems.clear(problemUnread)
	return r.startBack(seq)
}

// startBack starts a row that is here again, and the rows behind it that have waited for
// it: rows of one key that were set aside start in stream order, whatever the order of
// the answers.
func (r *returns) startBack(seq uint64) error {
	coming := r.coming
	for seq != 0 {
		back := coming[seq]
		if back == nil || !back.here() {
			return nil
		}
		next, err := r.enter(seq, back)
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

func (r *returns) awayProblem(err error) {
	err = fmt.Errorf("get a row of stream %s again: %w", r.c.cfg.InputStream, err)
	r.c.problems.set(problemUnread, r.c.denied(err))
}

func (r *returns) close() {
	if r != nil {
		_ = r.sub.Unsubscribe()
	}
}
