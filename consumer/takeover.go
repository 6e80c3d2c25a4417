package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// aheadReadMost bounds the reading of the log at a take-over, with all attempts at it.
const aheadReadMost = time.Minute

// begin claims the partition and sets the durable consumer to the row after the last one
// emitted.
//
// The order matters. The claim goes first: an owner that is still alive would lose rows
// that it works on if a reset came before it is fenced. And the reset never goes to a row
// that may have been acked: an ack from before the reset, arriving late, would lift the
// ack floor to its old, higher delivery number, and the server would ignore every later
// ack.
func (c *Consumer) begin(
	ctx, soft context.Context, lost <-chan nats.Status, durable *streams.Durable, pin string,
) (*term, error) {
	found, err := c.survey(ctx, durable)
	if err != nil {
		return nil, err
	}
	old, err := c.beforeClaim(ctx, found)
	if err != nil {
		return nil, err
	}
	owner := c.newOwner()
	c.at("claiming")
	claiming := time.Now()
	end, err := c.results.claim(ctx, owner, found.end, found.input.Created)
	if err != nil {
		return nil, err
	}
	c.at("claimed")
	c.log.Info("claimed the partition", slog.String("owner", owner), slog.Uint64("high_water_mark", end.low))
	c.recordRun("claim", owner, "")
	c.carried.forget(end.low, found.input.Created)
	t := c.newTerm(owner, durable, pin, end, old.keptStream)
	c.pulse.begin(claiming)
	if err := t.prepare(ctx, soft, lost, &old); err != nil {
		t.in.close()
		t.returns.close()
		t.lane.close()
		if soft.Err() != nil && c.results.stillEndsAt(ctx, end) == nil {
			_ = durable.Unpin(ctx) // the next owner need not wait until the pin has run out
		}
		return nil, err
	}
	t.open(ctx, found.results.Config)
	c.results.served = true
	claimed := t.own.end.seq
	c.setStatus(func(s *Status) {
		s.Role, s.Taking, s.Owner, s.Claim = Owner, false, owner, claimed
		s.HighWaterMark, s.JournalProblem = end.low, ""
	})
	return t, nil
}

// beforeClaim takes the steps that must come before a claim. It returns an error where the
// partition can't be served for now: this process tries again and again then, and a claim
// with each attempt would fill the results stream.
func (c *Consumer) beforeClaim(ctx context.Context, found *survey) (old oldReplies, err error) {
	if c.results.lost { // until they are back
		if _, err := c.results.finishedAhead(ctx, found.end, new(aheadLog)); err != nil {
			return old, err
		}
		c.results.lost = false
	}
	kept := &keptStream{connection: c.connection, cfg: &c.cfg, created: found.input.Created}
	if found.end.newInput {
		kept.purgeOldInput(ctx, c.log)
	}
	old = kept.oldReplies(ctx)
	return old, old.mayMove(ctx)
}

// newTerm returns a term that has claimed the partition at end and has taken no row.
func (c *Consumer) newTerm(
	owner string, durable *streams.Durable, pin string, end logEnd, kept *keptStream,
) *term {
	now := time.Now()
	t := &term{
		c: c, owner: owner, refitAt: now,
		window: &window{
			cfg: &c.cfg, order: c.order, shared: c.shared,
			open: make(map[uint64]*Row), acksDelete: durable.AcksDelete,
		},
		acks: acks{nc: c.nc, log: c.log, all: c.order.ackAll(durable.Handle.CachedInfo().Config.AckPolicy)},
		in:   intake{c: c, durable: durable, pin: pin, accepted: end.low},
		own:  ownership{c: c, end: end, checked: now},
	}
	t.journal = newJournal(t, kept)
	t.bodies = bodies{transfers: transfers{c: c}, window: t.window, unkept: &t.journal.unkept}
	t.lane = newLaneRows(t)
	t.journal.unkept.lane = t.lane
	return t
}

// prepare sets the durable consumer to the row after the end of the log, and reads what the
// term must know before it takes a row.
func (t *term) prepare(ctx, soft context.Context, lost <-chan nats.Status, old *oldReplies) error {
	if err := t.reset(ctx); err != nil {
		return err
	}
	t.c.at("set back")
	if err := t.lineUp(ctx, soft, lost); err != nil {
		return err
	}
	if old.count > 0 {
		err := t.in.whilePinned(ctx, soft, lost, func(ctx context.Context) error {
			old.move(ctx, t.window.finished, t.c.log)
			return nil
		})
		if err != nil {
			return err
		}
	}
	if t.lane == nil {
		return nil
	}
	return t.in.whilePinned(ctx, soft, lost, func(ctx context.Context) error {
		return t.lane.open(ctx, t.owner, t.own.end.low)
	})
}

// lineUp makes the reorder buffer of the term. Where rows above the low-water mark are
// emitted, it finds out which from the log: they come again behind the reset, and must
// not be answered again.
func (t *term) lineUp(ctx, soft context.Context, lost <-chan nats.Status) (err error) {
	var finished []uint64
	if t.own.end.ahead > 0 {
		if finished, err = t.readAhead(ctx, soft, lost); err != nil {
			return err
		}
	}
	for _, seq := range finished {
		t.c.carried.emitted(seq)
	}
	limits := t.c.order.limits(&t.c.cfg)
	if t.window.buf, err = sequencer.New[place](limits, t.own.end.low, finished); err != nil {
		return fatal(fmt.Errorf("consumer: window: %w", err))
	}
	if limits.Shared || limits.Parked > 0 { // in any other case no row is ever away
		err = openReturns(t)
	}
	return err
}

// readAhead reads the log from the first result of a row above the low-water mark on.
// Meanwhile the pin is renewed, because reading may take longer than it lasts:
//
//	A takes over and reads for two seconds. Its pin runs out after one.
//	B finds nobody pinned, claims the partition, and reads as well. A is fenced.
//	B's pin runs out while it reads. A claims again, and so on.
//
// The reading ends at once when the stage stops or the connection is lost: as long as the
// pin is renewed nobody else could take over.
func (t *term) readAhead(ctx, soft context.Context, lost <-chan nats.Status) (
	finished []uint64, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, aheadReadMost)
	defer cancel()
	err = t.in.whilePinned(ctx, soft, lost, func(ctx context.Context) (err error) {
		finished, err = t.c.results.finishedAhead(ctx, t.own.end, &t.own.ahead)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.c.at("ahead read")
	return finished, nil
}

// open starts the parts that work beside the term, until close.
func (t *term) open(ctx context.Context, results jetstream.StreamConfig) {
	t.journal.open(time.Now())
	for _, row := range t.c.carried.rows {
		t.journal.unkept.waitOf(row, time.Now())
	}
	t.out.open(ctx, newEmitter(t.c, t.owner, t.own.end, results))
	t.bodies.open(ctx)
	t.drops.open(ctx, t.c)
}
