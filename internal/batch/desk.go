package batch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// storedMax bounds the deferred batches of a stage that are stored, over or not. Each
	// replica knows all of them, at some 500 bytes each.
	storedMax = 1000
	// termsMax bounds the deferred batches that a process works on. Each holds its request
	// in memory, and their prompts take turns. The others wait, the oldest first.
	termsMax = 16
	// beatEvery is the time between two signs of life of a term. Without one for sureMax a
	// term begins no call, and after silentMax another replica takes the batch over. What
	// lies between is for clocks that do not run alike, and for a reading that is late.
	beatEvery = 2 * time.Second
	sureMax   = 6 * time.Second
	silentMax = 10 * time.Second
	// claimDelay is how long a process waits with a claim for each batch that it works on
	// already, so that one with fewer is faster.
	claimDelay = 50 * time.Millisecond
	// deskEvery is the time between two looks at what is due.
	deskEvery = time.Second
	// readAgainFirst and readAgainMost bound the wait before the stream is read again
	// after an error.
	readAgainFirst = time.Second
	readAgainMost  = time.Minute
	// removeAgain is the wait before a batch is removed once more.
	removeAgain = time.Minute
)

// errNotReady says that the stream has not been read yet.
var errNotReady = errors.New("the stage has just started, and has not read its stream of " +
	"deferred batches yet")

// news is what the reading has for the desk.
type news struct {
	began  bool // the stream is read from its beginning
	msg    *jetstream.RawStreamMsg
	synced bool // all that was stored has been read
}

// desk decides which deferred batches this process works on. It reads what all replicas
// store about batches, and so knows without asking which are new, which have lost their
// owner, and which may be removed. One goroutine owns it, but for the table.
//
// A batch belongs to the term that has stored its last claim. A claim is stored only if
// the claim before it is still the last one, so of two replicas one gets the batch. And
// what a term stores is stored only if its own claim is still the last, so a process that
// was suspended stores nothing once it was replaced.
type desk struct {
	service *Service
	streams streams.Config
	shelf   *shelf
	table   *table

	news  chan news
	ended chan *term     // has room for all terms
	gone  chan removed   // has room for all removals
	busy  sync.WaitGroup // terms, removals and ends of old batches

	synced   bool
	seen     map[string]bool // batches that the present reading has found, until it is synced
	terms    map[string]*term
	runs     map[string]*run      // of batches that this process has worked on
	notYet   map[string]time.Time // when a batch may be claimed or removed
	removing int
}

// removed is the end of a removal.
type removed struct {
	id      string
	request uint64 // sequence of its request, or 0
	err     error
}

// removingMax bounds the removals under way.
const removingMax = 4

func newDesk(s *Service, of streams.Config) *desk {
	return &desk{
		service: s, streams: of, shelf: newShelf(s.conn.NC, s.cfg.Batch.Stream, s.cfg.Name),
		table: newTable(),
		news:  make(chan news), ended: make(chan *term, termsMax),
		gone:  make(chan removed, removingMax),
		terms: make(map[string]*term), runs: make(map[string]*run),
		notYet: make(map[string]time.Time),
	}
}

// run works on batches until soft ends, and then waits for the calls in flight. When hard
// ends it stores no more.
func (d *desk) run(soft, hard context.Context) {
	defer d.busy.Wait()
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() { d.read(soft) })
	tick := time.NewTicker(deskEvery)
	defer tick.Stop()
	for {
		select {
		case <-soft.Done():
			return
		case n := <-d.news:
			d.take(n)
		case t := <-d.ended:
			delete(d.terms, t.id)
			d.notYet[t.id] = time.Now().Add(deskEvery) // by then its claim has been read
			if t.gone {
				d.forget(t.id)
			}
		case r := <-d.gone:
			d.removed(r)
		case <-tick.C:
		}
		d.step(soft, hard, time.Now())
	}
}

// read reads the stream until ctx ends, again and again. That the connection is lost, or the
// server restarts, is nothing to warn of: it is read again soon.
func (d *desk) read(ctx context.Context) {
	warned := ""
	for ctx.Err() == nil {
		synced := false
		for range streams.Retry(ctx, readAgainFirst, readAgainMost) {
			err := d.follow(ctx, &synced)
			if ctx.Err() != nil {
				return
			}
			err = d.service.conn.Explain(err)
			d.table.setProblem(err)
			if synced {
				warned = ""
				break // what it meets next is another trouble
			}
			if text := explained(err); text != warned {
				warned = text
				d.service.log.Warn("deferred batches are not served: rows and other requests do "+
					"not depend on it",
					slog.String("stream", d.shelf.stream), slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(readAgainFirst):
		}
	}
}

// follow creates the stream if it is missing, and reads it until something fails. It sets
// synced once it has read all that was stored.
func (d *desk) follow(ctx context.Context, synced *bool) error {
	if err := streams.EnsureBatches(ctx, d.shelf.conn(), d.streams); err != nil {
		return err
	}
	reading, err := d.shelf.read(ctx)
	if err != nil {
		return err
	}
	defer reading.Close()
	d.send(ctx, news{began: true})
	for {
		if !*synced && reading.Left == 0 {
			*synced = true
			d.send(ctx, news{synced: true})
		}
		m, err := reading.Next(ctx, nil)
		if err != nil {
			return err
		}
		if m != nil {
			d.send(ctx, news{msg: m})
		}
	}
}

func (d *desk) send(ctx context.Context, n news) {
	select {
	case d.news <- n:
	case <-ctx.Done():
	}
}

// take takes news of the stream.
func (d *desk) take(n news) {
	now := time.Now()
	switch {
	case n.began:
		d.synced, d.seen = false, make(map[string]bool)
	case n.synced:
		for id := range d.table.entries {
			if !d.seen[id] {
				d.forget(id)
			}
		}
		d.synced, d.seen = true, nil
		d.table.setProblem(nil)
	default:
		id, p, ok := d.shelf.parse(n.msg.Subject)
		if !ok {
			return
		}
		if d.seen != nil {
			d.seen[id] = true
		}
		e := d.table.note(id, p, n.msg, now)
		switch {
		case p == partRequest:
			d.notYet[id] = now.Add(claimDelay*time.Duration(len(d.terms)) + rand.N(claimDelay))
		case p == partEnd && d.terms[id] != nil:
			d.terms[id].stop(endedBy(e.state))
		}
	}
}

// forget drops a batch that is not in the stream any more.
func (d *desk) forget(id string) {
	if t := d.terms[id]; t != nil {
		t.stop(errGone)
	}
	d.table.remove(id)
	delete(d.runs, id)
	delete(d.notYet, id)
}

// step does what is due.
func (d *desk) step(soft, hard context.Context, now time.Time) {
	if !d.synced {
		return
	}
	var claimable []*entry
	for id, e := range d.table.entries {
		switch {
		case now.Before(d.notYet[id]):
		case e.request == 0 || e.state != "" && now.Sub(e.ended) >= e.keep:
			d.remove(soft, e, now)
		case e.state != "" || d.terms[id] != nil:
		case now.Sub(e.submitted) >= streams.BatchRunMax:
			d.notYet[id] = now.Add(removeAgain)
			// If this fails, the next look tries it again.
			d.busy.Go(func() { _ = d.shelf.end(soft, id, StateDone, whyTooOld) })
		case e.owner == d.service.caller.RunID(), e.stateAt(now) == StateQueued:
			claimable = append(claimable, e)
		}
	}
	slices.SortFunc(claimable, func(a, b *entry) int { return cmp.Compare(a.request, b.request) })
	for _, e := range claimable[:min(len(claimable), termsMax-len(d.terms))] {
		d.begin(soft, hard, e)
	}
}

// begin begins a term, which claims the batch first.
func (d *desk) begin(soft, hard context.Context, e *entry) {
	r := d.runs[e.id]
	if r == nil {
		r = d.service.newRun()
		r.id, r.deferred = e.id, true
		d.runs[e.id] = r
	}
	ctx, stop := context.WithCancelCause(soft)
	t := &term{
		service: d.service, shelf: d.shelf, run: r, id: e.id, before: e.claim, stop: stop,
		hard: func() context.Context { return hard }, writing: make(chan struct{}, 1),
	}
	d.terms[e.id] = t
	d.busy.Go(func() {
		defer stop(nil)
		t.work(ctx)
		d.ended <- t
	})
}

// remove removes a batch from the stream.
func (d *desk) remove(ctx context.Context, e *entry, now time.Time) {
	if d.removing == removingMax {
		return
	}
	d.removing++
	id, request := e.id, e.request
	d.notYet[id] = now.Add(removeAgain)
	d.busy.Go(func() { d.gone <- removed{id, request, d.shelf.remove(ctx, id, request)} })
}

func (d *desk) removed(r removed) {
	d.removing--
	if r.err != nil {
		d.service.log.Warn("deferred batch not removed after its time, trying again",
			slog.String("batch_id", r.id), slog.Any("error", r.err))
		return
	}
	if e := d.table.entries[r.id]; e != nil && e.request == r.request {
		// It is still the batch that was removed: no client has submitted the id again.
		d.forget(r.id)
	}
}

// validID reports whether a client may give a batch this id: it is one token of a subject.
func validID(id string) bool {
	const most = 64
	return id != "" && len(id) <= most && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r != '-' &&
			r != '_'
	})
}

// explained is the text of an error as users read it.
func explained(err error) string { return config.Explain(err) }
