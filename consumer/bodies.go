package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// A body that no message holds is an object of a bucket, and the message names it, see
// package objects. Four things have such bodies:
//
//   - a result goes to the bucket as soon as its row is answered, if the stage has one
//     ([Config.ResultBucket]). The result, and the entry of the journal, wait until the
//     object is stored, and name it;
//   - a reply that fits into a result but not into an entry of the journal goes there
//     when it must be kept, and the object is removed when the row is emitted;
//   - a row may be such a result of another stage. Its body is read before it starts;
//   - a reply that an earlier term has kept is read before its row starts.
//
// Only what the log names counts, so any step may be the last:
//
//	A stores the object of row 7, and is killed. Nobody names the object. B finds no reply in the journal, and calls again.
//	A stores the object and the entry of the journal, and is killed. B reads both, and stores the same result,
//	whose object is there already.
//	A is fenced, and stores its object of row 7 late. The name has the hash of the body, so B's object stays as it is.
//	A stores the result and is killed before it has removed an object that only the journal named. It stays.
//
// What stays is named by no result. It is as much as was in flight at each kill.

const (
	// bodiesAtOnce is how many bodies are on their way at once.
	bodiesAtOnce = 4
	// largestPart is the part of the window that one result may have. For example, with a
	// window of 256 MiB a result has at most 64 MiB, so four of the largest fit.
	largestPart = 4
	// bodiesTidy is how long a term that hands over waits until objects that nobody needs
	// are removed.
	bodiesTidy = streams.RequestTimeout
)

// resultForm is how the reply to a row, or to an element, is stored.
type resultForm struct {
	bare    bool        // the row's own headers leave no room for a result and are left out
	large   bool        // no message has room for the body: the result names an object
	object  objects.Ref // holds the reply's body, once it is stored
	putting bool        // the body is on its way to the bucket
	awaited bool        // the result waits for that as for an event, see [Row.eventStored]
}

// transfer is a body on its way. What it does runs beside the term, on a goroutine of its
// own, and touches nothing but its arguments. The goroutine of the term calls the other
// functions.
type transfer struct {
	// what is the body that is moved, for errors.
	what string
	do   func(ctx context.Context, nc *nats.Conn) error
	// ended is called once, with nil or an error that lasts.
	ended func(error)
	// needed reports whether anybody still waits for the body, and may whether there is
	// room for it. Nil: yes.
	needed, may func() bool
	// put says that it goes to the bucket. While it can't, no call begins.
	put bool
	// once says that it is not tried again: it is no harm if it fails.
	once bool

	err    error // of the last attempt
	failed bool  // the last attempt did
	wait   time.Duration
	again  time.Time
}

// bodies moves bodies between this process and the object store. The goroutine of the
// term owns it.
type bodies struct {
	c       *Consumer
	waiting []*transfer // oldest first
	running int
	done    chan *transfer
	start   func(*transfer) // runs one attempt
	cancel  context.CancelFunc
	group   sync.WaitGroup
	tidyBy  time.Time // not zero: the partition is about to be handed over

	// keys has the keys of rows in order by key whose bodies are objects: the key may be
	// in the body, which is read for it before the row enters. forKey is the row that is
	// being read for its key, or 0; no other is taken meanwhile.
	keys   map[uint64]string
	forKey uint64
	keyed  bool // it is read: the row must come again
}

func (b *bodies) open(ctx context.Context, c *Consumer) {
	ctx, b.cancel = context.WithCancel(ctx)
	b.c, b.done = c, make(chan *transfer, bodiesAtOnce)
	b.start = func(t *transfer) {
		nc := c.nc
		b.group.Go(func() {
			t.err = t.do(ctx, nc)
			b.done <- t
		})
	}
}

// close ends what is on its way. The next term begins it again.
func (b *bodies) close() {
	b.cancel()
	b.group.Wait()
	for b.running > 0 {
		t := <-b.done
		b.running--
		if t.err == nil {
			t.ended(nil)
		} else {
			b.waiting = append(b.waiting, t)
		}
	}
	for _, t := range b.waiting {
		t.ended(errTermOver)
	}
	b.waiting = nil
	b.c.setUnstowed(false)
}

// errTermOver ends a transfer with its term.
var errTermOver = errors.New("the term has ended")

// add begins a transfer as soon as it is its turn.
func (b *bodies) add(t *transfer) { b.waiting = append(b.waiting, t) }

// step begins what is due, and returns when to be called again.
func (b *bodies) step(now time.Time) (next time.Time) {
	if len(b.waiting) == 0 {
		return time.Time{}
	}
	dropped := false
	b.waiting = slices.DeleteFunc(b.waiting, func(t *transfer) bool {
		switch {
		case t.needed != nil && !t.needed():
			dropped = dropped || t.failed
			t.ended(errTermOver)
			return true
		case now.Before(t.again):
			next = earlier(next, t.again)
			return false
		case b.running == bodiesAtOnce, t.may != nil && !t.may():
			return false
		}
		b.running++
		b.start(t)
		return true
	})
	if dropped {
		b.report()
	}
	return next
}

// ended takes the outcome of an attempt.
func (b *bodies) ended(t *transfer, now time.Time) {
	b.running--
	over := t.err == nil || t.once || !t.put && objects.Lasts(t.err)
	if over {
		t.failed = false
		t.ended(t.err)
	} else {
		t.failed = true
		t.wait = min(max(2*t.wait, storeRetryFirst), storeRetryMost)
		t.again = now.Add(t.wait)
		b.waiting = append(b.waiting, t)
	}
	b.report()
}

// report reports the first that can't be put, and the first that can't be read.
func (b *bodies) report() {
	var put, got error
	for _, t := range b.waiting {
		switch {
		case !t.failed:
		case t.put && put == nil:
			put = fmt.Errorf("%s: %w", t.what, t.err)
		case !t.put && got == nil:
			got = fmt.Errorf("%s: %w", t.what, t.err)
		}
	}
	b.c.setUnstowed(put != nil)
	for area, err := range map[string]error{problemPut: put, problemGet: got} {
		if err != nil {
			b.c.problems.set(area, b.c.denied(err))
		} else {
			b.c.problems.clear(area)
		}
	}
}

// tidied reports whether no object waits to be removed, or the time for that is up.
func (b *bodies) tidied(now time.Time) bool {
	if b.running == 0 && !slices.ContainsFunc(b.waiting, func(t *transfer) bool { return t.once }) {
		return true
	}
	if b.tidyBy.IsZero() {
		b.tidyBy = now.Add(bodiesTidy)
	}
	return !now.Before(b.tidyBy)
}

// stow stores the body of the reply to a row, or an element, as an object. What waits for
// that is the result, if no message has room for it, and the entry of the journal.
func (t *term) stow(row *Row) {
	if row.form.putting || row.form.object.Name != "" {
		return
	}
	of, body := row, row.reply.Body
	if parent := row.element.parent; parent != nil {
		of = parent
	}
	bucket, name := t.c.cfg.ResultBucket, objects.Name(t.c.cfg.Name, of.Partition, of.Seq, body)
	var ref objects.Ref
	row.form.putting = true
	t.bodies.add(&transfer{
		what: rowsText(of.Seq, of.Seq) + ": put its body", put: true,
		needed: func() bool { return row.form.awaited || t.journal.unkept.has(row) },
		do: func(ctx context.Context, nc *nats.Conn) (err error) {
			t.c.at("stowing")
			ref, err = objects.Put(ctx, nc, bucket, name, body)
			return err
		},
		ended: func(err error) {
			row.form.putting = false
			if err == nil {
				row.form.object = ref
				t.c.at("stowed")
			}
			if row.form.awaited {
				row.form.awaited = false
				row.eventStored()
			}
			if now := time.Now(); t.journal.unkept.has(row) {
				row.journal.keepAt, t.journal.unkept.next = now, now
			}
		},
	})
}

// stowResult has a result wait for the object that holds its body, if that is not stored
// yet.
func (t *term) stowResult(row *Row) {
	if row.form.object.Name != "" {
		return
	}
	row.form.awaited = true
	row.unstored.Add(1)
	t.stow(row)
}

// stowForJournal implements [journalRows].
func (t *term) stowForJournal(row *Row, now time.Time) bool {
	if len(row.reply.Body) > t.c.messages.roomInBucket() || row.form.object.Name != "" {
		return false // also without a bucket, or where the event alone is too large
	}
	row.journal.keepAt = now.Add(journalRetry)
	t.stow(row)
	return true
}

// get reads an object that a row, or an entry of the journal about it, names.
func (b *bodies) get(seq uint64, what string, ref objects.Ref, needed, may func() bool, ended func([]byte, error)) {
	var body []byte
	most := b.c.cfg.WindowBytes
	b.add(&transfer{
		what: rowsText(seq, seq) + ": read " + what, needed: needed, may: may,
		do: func(ctx context.Context, nc *nats.Conn) (err error) {
			body, err = ref.Get(ctx, nc, most)
			return err
		},
		ended: func(err error) { ended(body, err) },
	})
}

// elsewhere returns the object that holds the body of a row, or nil: such a row is a
// result of another stage.
func elsewhere(m *nats.Msg) *objects.Ref {
	if len(m.Data) > 0 {
		return nil
	}
	ref, is := objects.RefOf(m.Header)
	if !is || streams.Upstream(m.Header) == "" {
		return nil
	}
	return &ref
}

// fetch reads the body of a row before it starts. It reports false while that is on its
// way, and where it has to wait for room. Where nobody will ever read it the row starts
// all the same, with the reason in [Row.Unreadable].
func (t *term) fetch(row *Row) bool {
	switch {
	case row.elsewhere == nil, len(row.Body) > 0, row.Unreadable != "":
		return true
	case row.term.fetching:
		return false
	}
	row.term.fetching = true
	needed := func() bool { return t.open[row.Seq] == row }
	t.bodies.get(row.Seq, "its body", *row.elsewhere, needed, t.admits(row), func(body []byte, err error) {
		row.term.fetching = false
		switch {
		case err == nil && needed():
			row.Body = body
			t.weighBody(row)
		case objects.Lasts(err):
			row.Unreadable = err.Error()
		}
	})
	return false
}

// admits says when there is room for the body of a row.
func (t *term) admits(row *Row) func() bool {
	return func() bool { return t.c.gate.admits(row) }
}

// weighBody counts a body that was read in the window.
func (t *term) weighBody(row *Row) {
	row.term.size += len(row.Body)
	t.buf.Grow(row.Seq, unansweredCounts*len(row.Body))
}

// keyKnown reports whether the key of a row is known before it enters. Where the key may
// be in a body that is an object it reads that, and the row must come again.
//
// No row is asked for meanwhile, but the pin is renewed.
func (t *term) keyKnown(seq uint64, m *nats.Msg) bool {
	b := &t.bodies
	if !t.c.order.byKey() || t.c.carried.rows[seq] != nil {
		return true
	}
	ref := elsewhere(m)
	if _, known := b.keys[seq]; ref == nil || known {
		return true
	}
	row := &Row{Seq: seq, Subject: m.Subject, Header: m.Header}
	b.forKey = seq
	b.get(seq, "its body, for its key", *ref, nil, nil, func(body []byte, err error) {
		if b.forKey = 0; errors.Is(err, errTermOver) {
			return
		}
		row.Body = body
		if b.keys == nil {
			b.keys = make(map[uint64]string)
		}
		b.keys[seq], b.keyed = strings.Clone(t.c.cfg.Key(row)), true
	})
	return false
}

// comesAgain has the row come again whose key is known now.
func (t *term) comesAgain(ctx context.Context) error {
	if !t.bodies.keyed {
		return nil
	}
	t.bodies.keyed = false
	return t.reset(ctx)
}

// removeUnnamed removes the objects of emitted rows that no result names: only the journal
// did, and nobody reads its entries about these rows any more.
func (t *term) removeUnnamed(rows []*Row) {
	for _, row := range rows {
		delete(t.bodies.keys, row.Seq)
		named := ""
		if row.form.large {
			named = row.form.object.Name
		}
		for _, ref := range row.objects() {
			if ref.Name == named {
				continue
			}
			t.bodies.add(&transfer{
				what: rowsText(row.Seq, row.Seq) + ": remove " + ref.String(), once: true,
				do:    func(ctx context.Context, nc *nats.Conn) error { return objects.Remove(ctx, nc, ref.Bucket, ref.Name) },
				ended: func(error) { t.c.at("tidied") },
			})
		}
	}
}

// objects returns the objects that hold replies to a row or its elements.
func (r *Row) objects() (refs []objects.Ref) {
	add := func(ref objects.Ref) {
		if ref.Name != "" && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	add(r.form.object)
	if r.Kept != nil {
		add(r.Kept.object)
	}
	for _, kept := range r.KeptItems {
		add(kept.object)
	}
	if r.hasItems() {
		for item := range r.eachItem() {
			add(item.form.object)
		}
	}
	return refs
}

// getForJournal implements [journalRows].
func (t *term) getForJournal(seq uint64, of *Kept, needed func() bool, kept func(*Kept)) {
	var may func() bool
	if row := t.open[seq]; row != nil { // else it comes back from the lane, and has room
		may = t.admits(row)
	}
	t.bodies.get(seq, "its kept reply", of.object, needed, may, func(body []byte, err error) {
		if err != nil {
			kept(nil)
			return
		}
		of.Reply.Body = body
		kept(of)
	})
}
