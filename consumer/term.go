package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// term is one term of ownership. The goroutine of [Consumer.Run] owns it; only the emitter runs beside it.
type term struct {
	c       *Consumer
	owner   string
	durable *streams.Durable
	ackAll  bool // an ack covers all rows before it
	end     logEnd
	buf     *sequencer.Buffer[*Row]
	open    map[uint64]*Row // the rows in buf
	pull    *puller
	journal *journal

	accepted   uint64        // stream sequence of the last row taken
	delivered  uint64        // consumer sequence of the last delivery; 0: none since the reset
	pin        string        // that came with it
	quietSince time.Time     // last row or result: with either there was room again, or movement
	quiet      time.Duration // how long that may be before the consumer is looked at
	doubtSince time.Time     // when a gap was noticed, see pulse; zero: the partition is ours as far as is known
	lastReset  time.Time
	silent     int       // resets in a row that brought no row
	checked    time.Time // last append, or when the log was last asked whether the partition is still ours
	headSeq    uint64
	headSince  time.Time

	unstarted  []*Row // rows that wait until the journal is read, or the log after a gap
	stopping   bool
	released   bool // to another replica, with stopping
	handedBack int  // rows in buf that the executor gave back
	collected  int  // rows from the mailbox that are not counted yet, see mailbox

	groups   chan []*Row
	stored   chan emitted
	emitting bool
	cancel   context.CancelFunc
	emitter  sync.WaitGroup
	spare    []*Row
}

// begin claims the partition and sets the durable consumer to the row after the last one emitted.
//
// The order matters. The claim goes first: an owner that is still alive would lose rows that it holds if a reset came
// before it is fenced. And the reset never goes to a row that may have been acked: an ack from before the reset,
// arriving late, would lift the ack floor to its old, higher delivery number, and the server would ignore every later
// ack.
func (c *Consumer) begin(ctx context.Context, durable *streams.Durable, pin string) (t *term, err error) {
	input, err := c.js.Stream(ctx, c.cfg.InputStream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", c.cfg.InputStream, c.denied(err))
	}
	info, err := durable.Info(ctx)
	if err != nil {
		return nil, err
	}
	results, err := c.js.Stream(ctx, c.cfg.ResultStream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", c.cfg.ResultStream, c.denied(err))
	}
	end, err := c.readEnd(ctx)
	if err != nil {
		return nil, err
	}
	if end, err = c.checkInput(ctx, end, durable, info, input.CachedInfo()); err != nil {
		return nil, err
	}
	owner := c.newOwner()
	c.at("claiming")
	claiming := time.Now()
	if end, err = c.claim(ctx, owner, end, input.CachedInfo().Created); err != nil {
		return nil, err
	}
	c.at("claimed")
	c.log.Info("claimed the partition", slog.String("owner", owner), slog.Uint64("high_water_mark", end.mark))
	c.recordRun("claim", owner, "")
	buf, err := sequencer.New[*Row](sequencer.Limits{Rows: c.cfg.WindowRows, Bytes: c.cfg.WindowBytes})
	if err != nil {
		return nil, fatal(fmt.Errorf("consumer: window: %w", err))
	}
	c.forget(end.mark, input.CachedInfo().Created)
	t = &term{
		c:       c,
		owner:   owner,
		durable: durable,
		ackAll:  info.Config.AckPolicy == jetstream.AckAllPolicy,
		end:     end,
		buf:     buf,
		open:    make(map[uint64]*Row),
		pin:     pin,
		checked: time.Now(),
		groups:  make(chan []*Row, 1),
		stored:  make(chan emitted, 1),
	}
	t.accepted = end.mark
	c.pulse.begin(claiming)
	if err := t.reset(ctx); err != nil {
		if t.pull != nil {
			t.pull.close()
		}
		return nil, err
	}
	c.at("set back")
	t.journal = c.openJournal(owner, end.mark, time.Now())
	ectx, cancel := context.WithCancel(ctx)
	t.cancel = cancel
	e := newEmitter(c, owner, end, results.CachedInfo().Config)
	t.emitter.Go(func() { e.run(ectx, t.groups, t.stored) })
	c.setStatus(func(s *Status) { s.Role, s.Owner, s.HighWaterMark, s.JournalProblem = Owner, owner, end.mark, "" })
	return t, nil
}

// close waits for the emitter. A group under way is left to the log: the next term reads whether it was stored.
func (t *term) close() {
	t.cancel()
	close(t.groups)
	t.emitter.Wait()
	t.pull.close()
	t.journal.close()
}

// reset sets the durable consumer to the row after the last one taken, and listens to what comes after that only.
func (t *term) reset(ctx context.Context) error {
	if t.pull != nil {
		t.pin = t.pull.pin
		t.pull.close()
		if err := t.outlive(ctx); err != nil {
			return err
		}
	}
	pull, err := newPuller(t.c.nc, jetstream.DefaultAPIPrefix, t.c.cfg.InputStream, t.durable.Name, t.pin, t.c.renewEvery(), t.durable.Handle.CachedInfo().Config.MaxRequestBatch)
	if err != nil {
		return err
	}
	t.pull = pull
	t.c.at("setting back")
	if err := t.durable.SetBack(ctx, t.accepted+1); err != nil {
		return err
	}
	now := time.Now()
	t.delivered, t.lastReset = 0, now
	t.moved(now)
	return nil
}

// outlive waits for the end of the last request, where the reset is not the first in a short time. The server drops a
// request that nobody listens to; but while somebody listens to everything (nats sub '>'), it gives that one the first
// rows after the reset: they are missing, which calls for another reset, and so on.
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
	shares, partition := t.c.cfg.Spread, t.c.cfg.Partition
	turn := shares.Changes(partition)
	if !shares.Should(partition) { // since we stood by
		t.release()
	}
	for {
		t.c.at("turn")
		now := time.Now()
		t.beat(now)
		if t.stopping && t.drained() && t.journal.flushed(now) {
			err := t.handOver(hard)
			if err == nil && t.released && soft.Err() == nil {
				err = errReleased
			}
			return err
		}
		next, err := t.request(now)
		if err != nil {
			return err
		}
		if step := t.journal.step(now, t.blocker()); !step.IsZero() && step.Before(next) {
			next = step
		}
		t.startWaiting()
		timer.Reset(min(next.Sub(now), t.c.pulse.limit/2))
		select {
		case <-hard.Done():
			return context.Cause(hard)
		case <-lost:
			return errConnectionLost
		case <-stop:
			stop, t.stopping = nil, true
		case <-turn:
			if !shares.Should(partition) {
				t.release()
			}
		case m := <-t.pull.msgs:
			err = t.received(hard, m)
		case m := <-t.journal.messages():
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
		t.c.resumeIf(t.c.mail.count(t.collected, t.journal.lossy()))
		t.collected = 0
		t.publishStatus()
	}
}

// request asks for the rows that there is room for; a stopping term asks for none and renews its pin.
func (t *term) request(now time.Time) (next time.Time, err error) {
	if t.stopping {
		return t.pull.step(now, 0, 0, false)
	}
	rows := t.c.cfg.WindowRows - t.buf.Len()
	next, err = t.pull.step(now, rows, t.roomBytes(), t.buf.Len() == 0 && t.pull.notUntil.After(t.pull.asked))
	if watch := t.quietSince.Add(t.quiet); rows > 0 && watch.Before(next) && watch.After(now) {
		next = watch
	}
	return next, err
}

// roomBytes is how many bytes of rows may still be taken.
func (t *term) roomBytes() int64 { return (t.c.cfg.WindowBytes - t.buf.Bytes()) / unansweredCounts }

// blocker is the first row that is not answered; rows before it wait for no other.
func (t *term) blocker() uint64 {
	if seq, ok := t.buf.Blocker(); ok {
		return seq
	}
	return math.MaxUint64
}

// publishStatus makes the window visible, and since when its head is the head.
func (t *term) publishStatus() {
	head, _ := t.buf.Head()
	if head != t.headSeq {
		t.headSeq, t.headSince = head, time.Now()
	}
	t.c.setStatus(func(s *Status) {
		s.Window, s.Buffered, s.BufferedBytes = t.buf.Len(), t.buf.Completed(), t.buf.Bytes()
		s.Head, s.HeadSince = t.headSeq, t.headSince
	})
}
