package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// bodiesAtOnce is how many bodies are moved at once.
	bodiesAtOnce = 4
	// bodiesTidy is how long a term that hands over waits until objects that nobody needs
	// are removed.
	bodiesTidy = streams.RequestTimeout
)

// transfer moves one body. Its function do runs beside the term, on a goroutine of its
// own, and touches nothing but its arguments and the body. The goroutine of the term
// calls the other functions.
type transfer struct {
	// what names the body that is moved, for errors.
	what string
	do   func(ctx context.Context, nc *nats.Conn) error
	// ended is called once: with nil, with an error that lasts, with any error of a
	// transfer that goes once, or with errTermOver.
	ended func(error)
	// needed reports whether anybody still waits for the body. Nil means that somebody
	// does.
	needed func() bool
	// may reports whether there is room for the body. Nil means that there is.
	may func() bool
	// put says that the body goes to the bucket. While it can't, no call begins.
	put bool
	// once says that the transfer is not tried again, since it does no harm if it fails.
	once bool

	err    error // of the last attempt
	failed bool  // the last attempt did
	wait   time.Duration
	again  time.Time
}

// transfers is a queue of bodies that are moved between this process and the object store,
// [bodiesAtOnce] at a time. One that fails waits, and is tried again. The goroutine of the
// term owns it.
type transfers struct {
	c       *Consumer
	waiting []*transfer // oldest first
	running int
	done    chan *transfer
	start   func(*transfer) // runs one attempt
	cancel  context.CancelFunc
	group   sync.WaitGroup
	tidyBy  time.Time // when a hand-over stops waiting for removals; zero without one
}

// open lets the transfers begin, until close.
func (q *transfers) open(ctx context.Context) {
	ctx, q.cancel = context.WithCancel(ctx)
	q.done = make(chan *transfer, bodiesAtOnce)
	q.start = func(t *transfer) {
		nc := q.c.nc
		q.group.Go(func() {
			t.err = t.do(ctx, nc)
			q.done <- t
		})
	}
}

// add begins a transfer as soon as it is its turn.
func (q *transfers) add(t *transfer) { q.waiting = append(q.waiting, t) }

// step begins the transfers that are due, and returns when to be called again.
func (q *transfers) step(now time.Time) (next time.Time) {
	if len(q.waiting) == 0 {
		return time.Time{}
	}
	dropped := false
	q.waiting = slices.DeleteFunc(q.waiting, func(t *transfer) bool {
		switch {
		case t.needed != nil && !t.needed():
			dropped = dropped || t.failed
			t.ended(errTermOver)
			return true
		case now.Before(t.again):
			next = soonest(next, t.again)
			return false
		case q.running == bodiesAtOnce, t.may != nil && !t.may():
			return false
		}
		q.running++
		q.start(t)
		return true
	})
	if dropped {
		q.report()
	}
	return next
}

// ended takes the outcome of an attempt.
func (q *transfers) ended(t *transfer, now time.Time) {
	q.running--
	over := t.err == nil || t.once || !t.put && objects.Lasts(t.err)
	if over {
		t.failed = false
		t.ended(t.err)
	} else {
		t.failed = true
		t.wait = min(max(2*t.wait, storeRetryFirst), storeRetryMost)
		t.again = now.Add(t.wait)
		q.waiting = append(q.waiting, t)
	}
	q.report()
}

// report reports the first that can't be put, and the first that can't be read.
func (q *transfers) report() {
	var put, got error
	for _, t := range q.waiting {
		switch {
		case !t.failed:
		case t.put && put == nil:
			put = fmt.Errorf("%s: %w", t.what, t.err)
		case !t.put && got == nil:
			got = fmt.Errorf("%s: %w", t.what, t.err)
		}
	}
	q.c.setUnstowed(put != nil)
	for area, err := range map[string]error{problemPut: put, problemGet: got} {
		if err != nil {
			q.c.problems.set(area, q.c.denied(err))
		} else {
			q.c.problems.clear(area)
		}
	}
}

// tidied reports whether no object waits to be removed, or the time for that is up.
func (q *transfers) tidied(now time.Time) bool {
	if q.running == 0 && !slices.ContainsFunc(q.waiting, func(t *transfer) bool { return t.once }) {
		return true
	}
	if q.tidyBy.IsZero() {
		q.tidyBy = now.Add(bodiesTidy)
	}
	return !now.Before(q.tidyBy)
}

// close cancels the transfers under way. The next term begins them again.
func (q *transfers) close() {
	q.cancel()
	q.group.Wait()
	for q.running > 0 {
		t := <-q.done
		q.running--
		if t.err == nil {
			t.ended(nil)
		} else {
			q.waiting = append(q.waiting, t)
		}
	}
	for _, t := range q.waiting {
		t.ended(errTermOver)
	}
	q.waiting = nil
	q.c.setUnstowed(false)
}

// errTermOver ends a transfer with its term, or once nobody needs its body.
var errTermOver = errors.New("the term has ended")
