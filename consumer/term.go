package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// silence is how long nothing may come, with room in the window, before the consumer is looked at: rows that were sent
	// to somebody else, or into a connection that broke, would otherwise come only after AckWait.
	silence = 2 * time.Second
	// ackEvery bounds the rows between two acks where one ack covers all before it.
	ackEvery = 64
)

// term is one term of ownership. The goroutine of [Consumer.Run] owns it; only the emitter runs beside it.
type term struct {
	c       *Consumer
	owner   string
	durable jetstream.Consumer
	ackAll  bool // an ack covers all rows before it
	end     logEnd
	buf     *sequencer.Buffer[*Row]
	open    map[uint64]*Row // the rows in buf
	pull    *puller

	accepted  uint64 // stream sequence of the last row taken
	delivered uint64 // consumer sequence of the last delivery; 0: none since the reset
	pin       string // that came with it
	lastRow   time.Time
	headSeq   uint64
	headSince time.Time

	stopping   bool
	handedBack int // rows in buf that the executor gave back

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
// before it is fenced. And the reset never goes to a row that may have been acked: an ack from before the reset, arriving
// late, would lift the ack floor to its old, higher delivery number, and the server would ignore every later ack.
func (c *Consumer) begin(ctx context.Context, durable jetstream.Consumer, pin string) (*term, error) {
	input, err := c.js.Stream(ctx, c.cfg.InputStream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", c.cfg.InputStream, err)
	}
	info, err := durable.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at consumer %s: %w", c.durable, err)
	}
	results, err := c.js.Stream(ctx, c.cfg.ResultStream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", c.cfg.ResultStream, err)
	}
	end, err := c.readEnd(ctx)
	if err != nil {
		return nil, err
	}
	created := input.CachedInfo().Created
	if end, err = c.checkInput(ctx, end, info.AckFloor.Stream, created); err != nil {
		return nil, err
	}
	owner := c.newOwner()
	if end, err = c.claim(ctx, owner, end, created); err != nil {
		return nil, err
	}
	c.log.Info("claimed the partition", slog.String("owner", owner), slog.Uint64("high_water_mark", end.mark))
	c.recordRun("claim", owner, "")
	buf, err := sequencer.New[*Row](sequencer.Limits{Rows: c.cfg.WindowRows, Bytes: c.cfg.WindowBytes})
	if err != nil {
		return nil, fatal(fmt.Errorf("consumer: window: %w", err))
	}
	t := &term{
		c:       c,
		owner:   owner,
		durable: durable,
		ackAll:  info.Config.AckPolicy == jetstream.AckAllPolicy,
		end:     end,
		buf:     buf,
		open:    make(map[uint64]*Row),
		pin:     pin,
		groups:  make(chan []*Row, 1),
		stored:  make(chan emitted, 1),
	}
	t.accepted = end.mark
	if err := t.reset(ctx); err != nil {
		return nil, err
	}
	ectx, cancel := context.WithCancel(ctx)
	t.cancel = cancel
	e := &emitter{c: c, owner: owner, end: end, batch: results.CachedInfo().Config.AllowAtomicPublish,
		single: cost(singleCostGuess), group: cost(batchCostGuess)}
	t.emitter.Go(func() { e.run(ectx, t.groups, t.stored) })
	for seq := range c.held {
		if seq <= end.mark {
			delete(c.held, seq) // somebody emitted it
		}
	}
	c.setStatus(func(s *Status) { s.Role, s.Owner, s.HighWaterMark = Owner, owner, end.mark })
	return t, nil
}

// close waits for the emitter. A group under way is left to the log: the next term reads whether it was stored.
func (t *term) close() {
	t.cancel()
	close(t.groups)
	t.emitter.Wait()
	if t.pull != nil {
		t.pull.close()
	}
}

// reset sets the durable consumer to the row after the last one taken, and listens to what comes after that only.
func (t *term) reset(ctx context.Context) error {
	if t.pull != nil {
		t.pin = t.pull.pin
		t.pull.close()
	}
	var err error
	if t.pull, err = newPuller(t.c.nc, t.c.apiPrefix, t.c.cfg.InputStream, t.c.durable, t.pin, t.c.renewEvery()); err != nil {
		return err
	}
	if err := t.c.resetDurable(ctx, t.accepted+1); err != nil {
		return err
	}
	t.delivered, t.lastRow = 0, time.Now()
	return nil
}

// renewEvery leaves room for one lost request within the pin's life.
func (c *Consumer) renewEvery() time.Duration { return c.cfg.PinnedTTL * 2 / 5 }

// run takes, completes and emits rows until the term ends.
func (t *term) run(soft, hard context.Context, lost <-chan nats.Status) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := soft.Done()
	for {
		if t.stopping && t.drained() {
			return t.handOver(hard)
		}
		next, err := t.request()
		if err != nil {
			return err
		}
		timer.Reset(time.Until(next))
		select {
		case <-hard.Done():
			return context.Cause(hard)
		case <-lost:
			return errConnectionLost
		case <-stop:
			stop, t.stopping = nil, true
		case m := <-t.pull.msgs:
			err = t.received(hard, m)
		case <-t.c.mail.signal:
			err = t.collect()
			t.emit()
		case e := <-t.stored:
			if err = t.emitted(e); err == nil {
				t.emit()
			}
		case <-timer.C:
			err = t.watch(hard)
		}
		if err != nil {
			return err
		}
		t.publishStatus()
	}
}

// request asks for the rows that there is room for.
func (t *term) request() (next time.Time, err error) {
	now := time.Now()
	if t.stopping {
		return now.Add(time.Hour), nil
	}
	rows := t.c.cfg.WindowRows - t.buf.Len()
	bytes := t.c.cfg.WindowBytes - t.buf.Bytes()
	next, err = t.pull.step(now, rows, bytes, t.buf.Len() == 0 && t.pull.notUntil.After(t.pull.asked))
	if watch := t.lastRow.Add(silence); rows > 0 && watch.Before(next) && watch.After(now) {
		next = watch
	}
	return next, err
}

// received takes one message of the pull request: a row, or the server's word on it.
func (t *term) received(ctx context.Context, m *nats.Msg) error {
	row, err := t.pull.received(m, time.Now())
	switch {
	case err != nil:
		return err
	case row:
		return t.accept(ctx, m)
	case t.pull.pinLost:
		// The pin went to somebody else, who may have claimed the partition, or to nobody: a new leader forgets it.
		t.pull.pinLost = false
		return t.stillOurs(ctx)
	}
	return nil
}

// stillOurs reads the log and returns ErrFenced when somebody else has claimed the partition.
func (t *term) stillOurs(ctx context.Context) error {
	now, err := t.c.readEnd(ctx)
	if err != nil {
		return err
	}
	if now.owner != t.owner {
		return fmt.Errorf("%w: claimed by %s", ErrFenced, now.owner)
	}
	return nil
}

// accept takes a row that follows the last one taken, and nothing else: a row may be missing between them because the
// consumer was reset by somebody else, or a delivery got lost.
//
// Rows that were deleted, or that the filter leaves out, are no gap. Two deliveries with consecutive numbers, both first
// deliveries under one pin, prove that nothing lies between them. The first delivery after a reset proves nothing: a
// rival's reset may have come after ours, and the numbers begin at 1 for both. Then the stream is asked.
func (t *term) accept(ctx context.Context, m *nats.Msg) error {
	md, err := m.Metadata()
	if err != nil {
		return nil //nolint:nilerr // not a delivery
	}
	t.lastRow = time.Now()
	seq := md.Sequence.Stream
	proven := t.delivered > 0 && md.NumDelivered == 1 && md.Sequence.Consumer == t.delivered+1 && t.pull.pin == t.pin
	t.delivered, t.pin = md.Sequence.Consumer, t.pull.pin
	t.c.setStatus(func(s *Status) { s.Pending = md.NumPending })
	if t.stopping {
		return nil // the hand-over sets the consumer back to it
	}
	if seq <= t.accepted {
		if seq <= t.end.mark {
			t.c.setStatus(func(s *Status) { s.Skipped++ })
			t.ack(m.Reply)
		}
		return nil
	}
	if seq != t.accepted+1 && !proven {
		next, err := t.c.nextInput(ctx, t.accepted+1)
		if err != nil {
			return err
		}
		if next != 0 && next < seq {
			t.c.log.Info("rows are missing, setting the consumer back", slog.Uint64("sequence", seq), slog.Uint64("missing", next))
			return t.reset(ctx)
		}
	}
	if t.buf.Full(len(m.Data)) {
		// More than was asked for: a request that had been given up answered after all. The row comes again.
		return t.reset(ctx)
	}
	return t.take(seq, m)
}

// take opens the row and starts the work on it.
func (t *term) take(seq uint64, m *nats.Msg) error {
	index, err := t.buf.Open(seq, len(m.Data))
	if err != nil {
		return fmt.Errorf("open row %d: %w", seq, err)
	}
	t.accepted = seq
	row, known := t.c.held[seq]
	if known {
		delete(t.c.held, seq)
	} else {
		row = t.c.newRow(seq, m)
	}
	row.submitIndex, row.ackReply, row.done = index, m.Reply, false
	row.tenure.Store(&tenure{owner: t.owner})
	row.wanted.Store(true)
	t.open[seq] = row
	switch {
	case !known:
		t.c.cfg.Executor.Start(row)
	case row.answered:
		t.complete(row)
		t.emit()
	}
	return nil
}

func (c *Consumer) newRow(seq uint64, m *nats.Msg) *Row {
	m.Header.Del(headerPinID)
	row := &Row{
		Partition: c.cfg.Partition, Seq: seq, Subject: m.Subject, Header: m.Header, Body: m.Data,
		StateID: auditlog.StateID(c.cfg.Name, c.cfg.InputStream, auditlog.Partition(c.cfg.Partition), seq),
		Taken:   time.Now(), mail: c.mail, recorder: c.cfg.Recorder,
	}
	row.MaxBodyBytes = maxBody(int(c.maxMessage.Load()), c.resultSubject, row)
	return row
}

// collect takes the answered rows into the sequencer.
func (t *term) collect() error {
	rows := t.c.mail.take(t.spare)
	for _, row := range rows {
		if _, ours := t.open[row.Seq]; !ours {
			delete(t.c.held, row.Seq)
			if !row.reply.HandedBack && row.Seq > t.end.mark {
				row.answered = true
				t.c.held[row.Seq] = row // of an earlier term; it will be taken again
			}
			continue
		}
		if !row.reply.HandedBack {
			row.answered = true
			t.complete(row)
			continue
		}
		if t.stopping {
			t.handedBack++
			continue
		}
		// Given back in the moment between two terms, and wanted again since.
		t.c.cfg.Executor.Start(row)
	}
	clear(rows)
	t.spare = rows
	return nil
}

// complete puts the answer into the sequencer and its row event on the way. The event is stored before the result.
func (t *term) complete(row *Row) {
	index, err := t.buf.Complete(row.Seq, row, len(row.Body)+len(row.reply.Body))
	if err != nil {
		panic(fmt.Sprintf("consumer: executor answered row %d twice: %v", row.Seq, err))
	}
	e := row.reply.Event
	e.Header = auditlog.Header{Time: time.Now(), RunID: t.c.cfg.RunID, Stage: t.c.cfg.Name, Partition: auditlog.Partition(t.c.cfg.Partition)}
	e.StateID, e.Owner, e.Sequence = row.StateID, t.owner, row.Seq
	e.SubmitIndex, e.CompleteIndex = row.submitIndex, index
	e.Status = statusSuccess
	if row.reply.Failed {
		e.Status = statusError
	}
	row.unstored.Add(1)
	row.done = true
	t.c.cfg.Recorder.recordRow(&e, row.eventStored)
}

// emit hands the contiguous head to the emitter, if it is free. What gathers while one group is under way is the next.
func (t *term) emit() {
	if t.emitting {
		return
	}
	var group []*Row
	bytes := 0
	for i := range groupRowsMax {
		entry, ok := t.buf.Ready(i)
		if !ok || !entry.Value.emittable() {
			break
		}
		if bytes += entry.Bytes; bytes > groupBytesMax && len(group) > 0 {
			break
		}
		group = append(group, entry.Value)
	}
	if len(group) == 0 {
		return
	}
	t.emitting = true
	t.groups <- group
}

// emitted releases what is stored and acks it. Only now: an ack before the result is stored would lose the row in a crash.
func (t *term) emitted(e emitted) error {
	t.emitting = false
	if e.err != nil {
		return e.err
	}
	t.end = e.end
	t.buf.Release(len(e.rows))
	failed := 0
	for i, row := range e.rows {
		delete(t.open, row.Seq)
		if row.reply.Failed {
			failed++
		}
		if !t.ackAll || i == len(e.rows)-1 || i%ackEvery == ackEvery-1 {
			t.ack(row.ackReply)
		}
		if o := t.c.cfg.Observer; o != nil {
			o.RowEmitted(t.c.cfg.Partition, row.reply.Failed, e.at.Sub(row.Taken), e.at.Sub(row.reply.Event.FinishedAt))
		}
	}
	t.c.setStatus(func(s *Status) {
		s.Emitted += uint64(len(e.rows))
		s.Failed += uint64(failed)
		s.HighWaterMark = e.end.mark
	})
	return nil
}

// ack needs no answer: an ack that gets lost is made good by the next one, or by the reset of the next term.
func (t *term) ack(reply string) {
	if err := t.c.nc.Publish(reply, ackBody); err != nil {
		t.c.log.Debug("ack not sent", slog.Any("error", err))
	}
}

var ackBody = []byte("+ACK")

// watch looks at the consumer after a silence: when rows wait and none came, it is set back to the row after the last.
func (t *term) watch(ctx context.Context) error {
	if t.stopping || t.buf.Len() >= t.c.cfg.WindowRows || time.Since(t.lastRow) < silence {
		return nil
	}
	t.lastRow = time.Now()
	info, err := t.durable.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at consumer %s: %w", t.c.durable, err)
	}
	t.c.setStatus(func(s *Status) { s.Pending = info.NumPending })
	if info.NumPending == 0 && info.NumAckPending <= t.buf.Len() {
		return nil
	}
	if t.buf.Bytes() >= t.c.cfg.WindowBytes {
		return nil
	}
	if err := t.stillOurs(ctx); err != nil {
		return err
	}
	t.c.log.Info("rows wait but none come, setting the consumer back", slog.Uint64("after", t.accepted), slog.Uint64("pending", info.NumPending))
	return t.reset(ctx)
}

// drained tells whether a stopping term has nothing left that it may wait for.
func (t *term) drained() bool {
	if t.emitting || t.buf.Completed()+t.handedBack < t.buf.Len() {
		return false
	}
	head, ok := t.buf.Ready(0)
	return !ok || !head.Value.done // what is complete behind a row handed back stays
}

// handOver leaves the consumer at the row after the last one emitted, and the pin to whoever asks first. Without the
// reset, rows taken and not emitted would come again only after AckWait.
func (t *term) handOver(ctx context.Context) error {
	t.accepted = t.end.mark
	if err := t.c.resetDurable(ctx, t.accepted+1); err != nil {
		return err
	}
	input, err := t.c.js.Stream(ctx, t.c.cfg.InputStream)
	if err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	if err := input.UnpinConsumer(ctx, t.c.durable, pinGroup); err != nil {
		t.c.log.Debug("not unpinned, the pin runs out by itself", slog.Any("error", err))
	}
	return nil
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
