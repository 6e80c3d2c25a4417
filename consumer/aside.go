package consumer

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
)

// errSetAside says that a row is set aside, which is no failure.
var errSetAside = errors.New("the row is set aside")

const (
	// asidesFetched bounds the rows that come back at once, those in memory until an earlier one of their key has come
	// among them.
	asidesFetched = 64
	// asideReserve is the part of the window that is kept for keys that don't wait.
	asideReserve = 8
	// asideRetry is the wait before a row is asked for again that could not be fetched.
	asideRetry = time.Second
)

// asides fetches the rows that were set aside (see [sequencer.Keyed.Outside]) from the input stream: their delivery is
// long past, and they are not delivered again before they are acked. The goroutine of the term owns it.
type asides struct {
	inbox   string
	sub     *nats.Subscription
	answers chan *nats.Msg
	asked   map[uint64]asideAsked
	early   map[uint64]stamped // rows that came before an earlier one of their key; nil: there is no such row any more
}

// asideAsked is a row that was asked for.
type asideAsked struct {
	again   time.Time // when to ask once more
	refused bool      // the answer was an error
}

func (c *Consumer) newAsides() (a asides, err error) {
	a = asides{
		inbox: c.nc.NewInbox(), answers: make(chan *nats.Msg, 4*asidesFetched),
		asked: make(map[uint64]asideAsked), early: make(map[uint64]stamped),
	}
	if a.sub, err = c.nc.ChanSubscribe(a.inbox+".*", a.answers); err != nil {
		return a, fmt.Errorf("subscribe to rows set aside: %w", err)
	}
	return a, nil
}

func (a *asides) close() {
	if a.sub != nil {
		_ = a.sub.Unsubscribe()
	}
}

// recallAsides asks for rows that are set aside and should come back.
func (t *term) recallAsides(now time.Time) error {
	a := &t.asides
	if a.sub == nil || t.stopping {
		return nil
	}
	for seq, asked := range a.asked {
		if now.Before(asked.again) {
			continue
		}
		if !asked.refused { // a missing permission is answered by silence
			t.asideProblem(nats.ErrTimeout)
		}
		if err := t.askForAside(seq, now); err != nil {
			return err
		}
	}
	for len(a.asked)+len(a.early) < asidesFetched {
		seq, ok := t.keyed.Recall()
		if !ok {
			return nil
		}
		if err := t.askForAside(seq, now); err != nil {
			return err
		}
	}
	return nil
}

func (t *term) askForAside(seq uint64, now time.Time) error {
	t.asides.asked[seq] = asideAsked{again: now.Add(streams.RequestTimeout)}
	return streams.AskForMessage(t.c.nc, t.c.cfg.InputStream, seq, t.asides.inbox+"."+strconv.FormatUint(seq, 36))
}

func (t *term) asideProblem(err error) {
	t.c.problems.set(problemAsides, t.c.denied(fmt.Errorf("get a row of stream %s again: %w", t.c.cfg.InputStream, err)))
}

// returned takes an answer to askForAside. Rows of one key go on in stream order, whatever the order of the answers.
func (t *term) returned(m *nats.Msg, now time.Time) error {
	a := &t.asides
	seq, err := strconv.ParseUint(m.Subject[len(a.inbox)+1:], 36, 64)
	if _, asked := a.asked[seq]; err != nil || !asked || t.stopping {
		return nil //nolint:nilerr // a second answer
	}
	raw, err := streams.ReadMessage(m)
	if err != nil {
		t.asideProblem(err)
		a.asked[seq] = asideAsked{again: now.Add(asideRetry), refused: true}
		return nil
	}
	t.c.problems.clear(problemAsides)
	delete(a.asked, seq)
	a.early[seq] = stamped{}
	if raw != nil {
		a.early[seq] = stamp(raw)
	}
	for seq != 0 {
		row, here := a.early[seq]
		if !here {
			return nil
		}
		next, err := t.reopen(seq, row)
		if errors.Is(err, sequencer.ErrOutOfOrder) {
			return nil
		}
		if err != nil {
			return err
		}
		delete(a.early, seq)
		seq = next
	}
	return nil
}

// reopen takes a row that has come back; m has no message where it was deleted from the input. next is the row of its
// key that comes back next, 0 for none.
func (t *term) reopen(seq uint64, m stamped) (next uint64, err error) {
	if m.Msg == nil {
		return t.keyed.Drop(seq)
	}
	row, size := t.c.rowOf(seq, m), weight(m.Msg)
	index, reply, next, err := t.keyed.Reopen(seq)
	if err == nil {
		t.take(row, size, index, reply)
	}
	return next, err
}

// unacked is how many rows are delivered and not emitted.
func (t *term) unacked() int {
	if t.keyed != nil {
		return t.buf.Len() + t.buf.ParkedLen() + t.keyed.Aside()
	}
	return t.buf.Len() + t.buf.ParkedLen()
}
