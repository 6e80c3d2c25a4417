package consumer

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// term is one term of ownership. The goroutine of [Consumer.Run] owns it; only the
// emitter runs beside it. What happens to a row, from the request to the ack, is in
// rows.go.
type term struct {
	c       *Consumer
	owner   string
	durable *streams.Durable
	journal *journal
	acks    acks
	gauges  gauges

	// The window: the rows that were taken and are neither away nor emitted. len(open) +
	// len(takenBack) is always buf.Len().
	buf  *sequencer.Buffer[place]
	open map[uint64]*Row // the rows held in buf, but for those taken back, by sequence
	// unstarted are rows of open that nobody works on: they wait until the journal is
	// read, or the log after a gap.
	unstarted []*Row
	// takenBack are the rows whose places in buf are empty; only a stopping term takes
	// any back. Nobody works on them, but some may have replies to elements.
	takenBack []*Row
	// collected rows have left the mailbox and are not counted yet, see mailbox; 0 at the
	// end of each turn.
	collected int
	spare     []*Row // the mailbox's next list

	returns *returns  // reads rows that were away; nil where no row is ever away
	lane    *laneRows // nil where there is no lane

	// The intake: each row of the input up to accepted is in buf, or was emitted.
	pull     *puller // of the last reset: what came to an earlier one is not seen
	accepted uint64  // stream sequence of the last row taken; never less than end.low
	// delivered is the consumer sequence of the last delivery since the reset, and pin
	// the pin that came with it; 0 means that none came, so the next proves nothing about
	// the rows before it.
	delivered uint64
	ackForm   string // subject of the ack of some row
	pin       string
	lastReset time.Time
	// quietSince is when a row last came or a result last went: with either there was
	// room again, or movement. After quiet, from silence to silenceMost, the consumer is
	// looked at.
	quietSince time.Time
	quiet      time.Duration
	silent     int // resets in a row, after a silence, that brought no row

	// The hold on the partition.
	end     logEnd    // of the log, by this term's claim or its last append: the condition of the next
	ahead   aheadLog  // where in it the rows above the low-water mark are
	checked time.Time // when the log was last known to end there
	fit     time.Time // when the durable consumer was last known to be as it must be
	// doubtSince is when a gap was noticed, see pulse; while it is set no row is started.
	// Zero: the partition is ours as far as is known.
	doubtSince time.Time

	// A stopping term takes no more rows and drains. Once set, stopping and released stay
	// set.
	stopping bool
	released bool // to another replica; implies stopping
	held     bool // no row is started, see [Consumer.Hold] and [storable]

	// The emitter, and what passes to and from it. While emitting, one group is on its
	// way and its outcome was not taken yet; so neither channel, of one place each, ever
	// blocks the term.
	groups   chan []*Row
	stored   chan emitted
	emitting bool
	cancel   context.CancelFunc
	emitter  sync.WaitGroup
}

// begin claims the partition and sets the durable consumer to the row after the last one
// emitted.
//
// The order matters. The claim goes first: an owner that is still alive would lose rows
// that it holds if a reset came before it is fenced. And the reset never goes to a row
// that may have been acked: an ack from before the reset, arriving late, would lift the
// ack floor to its old, higher delivery number, and the server would ignore every later
// ack.
func (c *Consumer) begin(ctx, soft context.Context, lost <-chan nats.Status, durable *streams.Durable, pin string) (*term, error) {
	input, results, end, err := c.survey(ctx, durable)
	if err != nil {
		return nil, err
	}
	if c.resultsLost { // no claim for each attempt until they are back
		if _, err := c.finishedAhead(ctx, end, new(aheadLog)); err != nil {
			return nil, err
		}
		c.resultsLost = false
	}
	owner := c.newOwner()
	c.at("claiming")
	claiming := time.Now()
	if end, err = c.claim(ctx, owner, end, input.Created); err != nil {
		return nil, err
	}
	c.at("claimed")
	c.log.Info("claimed the partition", slog.String("owner", owner), slog.Uint64("high_water_mark", end.low))
	c.recordRun("claim", owner, "")
	c.forget(end.low, input.Created)
	t := c.newTerm(owner, durable, pin, end)
	c.pulse.begin(claiming)
	err = t.reset(ctx)
	if err == nil {
		c.at("set back")
		err = t.lineUp(ctx, soft, lost)
	}
	if err == nil {
		err = t.openLane(ctx, soft, lost)
	}
	if err != nil {
		if t.pull != nil {
			t.pull.close()
		}
		t.returns.close()
		t.closeLane()
		if soft.Err() != nil && c.stillEndsAt(ctx, end) == nil { // the next owner need not wait until the pin has run out
			_ = durable.Unpin(ctx)
		}
		return nil, err
	}
	t.journal = c.openJournal(owner, t, time.Now())
	ectx, cancel := context.WithCancel(ctx)
	t.cancel = cancel
	e := newEmitter(c, owner, end, results.Config)
	t.emitter.Go(func() { e.run(ectx, t.groups, t.stored) })
	c.served = true
	claimed := t.end.seq
	c.setStatus(func(s *Status) {
		s.Role, s.Taking, s.Owner, s.Claim, s.HighWaterMark, s.JournalProblem = Owner, false, owner, claimed, end.low, ""
	})
	return t, nil
}

// survey looks at the streams and the durable consumer, and returns the place to go on
// at.
func (c *Consumer) survey(ctx context.Context, durable *streams.Durable) (input, results *jetstream.StreamInfo, end logEnd, err error) {
	if err := c.cfg.Streams.Look(ctx); err != nil {
		return nil, nil, end, err
	}
	in, err := streams.Look(ctx, c.js, c.cfg.InputStream)
	if err != nil {
		return nil, nil, end, err
	}
	info, err := durable.Info(ctx)
	if err != nil {
		return nil, nil, end, err
	}
	out, err := streams.Look(ctx, c.js, c.cfg.ResultStream)
	if err != nil {
		return nil, nil, end, err
	}
	if end, err = c.readEnd(ctx); err != nil {
		return nil, nil, end, err
	}
	end, err = c.checkInput(ctx, end, durable, info, in.CachedInfo())
	return in.CachedInfo(), out.CachedInfo(), end, err
}

// newTerm returns a term that has claimed the partition at end and has taken no row.
func (c *Consumer) newTerm(owner string, durable *streams.Durable, pin string, end logEnd) *term {
	return &term{
		c: c, owner: owner, durable: durable, pin: pin,
		acks: acks{nc: c.nc, log: c.log, all: c.order.ackAll(durable.Handle.CachedInfo().Config.AckPolicy)},
		open: make(map[uint64]*Row), accepted: end.low, end: end, checked: time.Now(), fit: time.Now(),
		groups: make(chan []*Row, 1), stored: make(chan emitted, 1),
	}
}

// close waits for the emitter. A group in flight is left to the log: the next term reads
// whether it was stored.
func (t *term) close() {
	t.cancel()
	close(t.groups)
	t.emitter.Wait()
	t.pull.close()
	t.returns.close()
	t.closeLane()
	t.journal.close()
}

// reset sets the durable consumer to the row after the last one taken, and listens to
// what comes after that only.
func (t *term) reset(ctx context.Context) error {
	if t.pull != nil {
		t.pin = t.pull.pin
		t.pull.close()
		t.acks.flush()
		if err := t.outlive(ctx); err != nil {
			return err
		}
	}
	pull, err := t.c.newPuller(t.durable, t.pin, t.c.renewEvery())
	if err != nil {
		return err
	}
	t.pull = pull
	t.c.at("setting back")
	if err := t.durable.Reset(ctx, t.accepted+1); err != nil {
		return err
	}
	now := time.Now()
	t.delivered, t.lastReset = 0, now
	t.moved(now)
	return nil
}

// outlive waits for the end of the last request, where the reset is not the first in a
// short time. The server drops a request that nobody listens to; but while somebody
// listens to everything (nats sub '>'), it gives that one the first rows after the reset:
// they are missing, which calls for another reset, and so on.
func (t *term) outlive(ctx context.Context) error {
	left := time.Until(t.pull.ends)
	if left <= 0 || time.Since(t.lastReset) > 2*silence {
		return nil
	}
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// renewEvery leaves room for one lost request within the pin's life.
func (c *Consumer) renewEvery() time.Duration { return c.cfg.PinnedTTL * 2 / 5 }

// run takes, completes and emits rows until the term ends.
func (t *term) run(soft, hard context.Context, lost <-chan nats.Status) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := soft.Done()
	turn := t.c.cfg.Spread.Changes(t.c.cfg.Partition)
	t.steered() // since we stood by
	for {
		t.c.at("turn")
		now := time.Now()
		t.beat(now)
		t.hold()
		t.acks.step(now)
		if t.stopping && t.drained() && t.journal.flushed(now) {
			return t.finish(soft, hard)
		}
		if err := cmp.Or(t.c.cfg.Streams.Verdict(), t.lookAtDurable(hard, now)); err != nil {
			return err // nothing may be stored meanwhile: each result could push out another
		}
		next, err := t.request(now)
		if err != nil {
			return err
		}
		if err := t.bringBack(now); err != nil {
			return err
		}
		t.journal.askIndex(hard)
		t.stopLane()
		t.unstashDue()
		next = earlier(earlier(next, t.journal.step(now)), t.acks.by)
		if t.held {
			next = earlier(next, now.Add(fullLook))
		}
		t.start()
		timer.Reset(min(next.Sub(now), t.c.pulse.limit/2))
		select {
		case <-hard.Done():
			return context.Cause(hard)
		case <-lost:
			return errConnectionLost
		case <-stop:
			stop, t.stopping = nil, true
		case <-turn:
			t.steered()
		case <-t.c.steer.changed:
			t.steered()
		case m := <-t.pull.msgs:
			err = t.received(hard, m)
		case m := <-t.returns.received():
			err = t.cameBack(m, time.Now())
		case <-t.laneSignal():
		case read := <-t.journal.indexed:
			t.journal.readIndex(read)
		case m := <-t.journal.answers:
			t.journal.received(m, t.open, time.Now())
		case <-t.c.mail.signal:
			t.collect()
			t.emit()
		case e := <-t.stored:
			if err = t.emitted(e); err == nil {
				t.emit()
			}
		case <-timer.C:
			t.recall()
			err = t.watch(hard)
		}
		if err != nil {
			return err
		}
		t.checkOwner(now)
		t.setGate()
		t.countReplies()
		t.gauges.publish(t)
	}
}

// finish hands the partition over, after the term has drained.
func (t *term) finish(soft, hard context.Context) error {
	t.acks.flush()    // the reset makes up for it, if it succeeds
	t.journal.purge() // there may be no next owner that would
	if err := t.handOver(hard); err != nil {
		return err
	}
	if t.released && soft.Err() == nil {
		return errReleased
	}
	return nil
}

// countReplies reports to the mailbox how many replies a crash would lose.
func (t *term) countReplies() {
	t.c.resumeIf(t.c.mail.count(t.collected, t.journal.lossy()))
	t.collected = 0
}
