package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// aheadReadMost bounds the reading of the log at a take-over, with all attempts at
	// it.
	aheadReadMost = time.Minute
	// aheadAskMost is how long an answer to the request to read may take: while servers
	// elect a leader it is lost.
	aheadAskMost = 2 * time.Second
)

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
		if row := t.c.held[seq]; row != nil {
			delete(t.c.held, seq)
			row.abandon()
		}
	}
	limits := t.c.order.limits(&t.c.cfg)
	if t.buf, err = sequencer.New[place](limits, t.own.end.low, finished); err != nil {
		return fatal(fmt.Errorf("consumer: window: %w", err))
	}
	if limits.Shared || limits.Parked > 0 { // in any other case no row is ever away
		t.returns, err = t.c.newReturns()
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
	err = t.whilePinned(ctx, soft, lost, func(ctx context.Context) (err error) {
		finished, err = t.c.finishedAhead(ctx, t.own.end, &t.own.ahead)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.c.at("ahead read")
	return finished, nil
}

// whilePinned waits for f, and renews the pin meanwhile.
func (t *term) whilePinned(ctx, soft context.Context, lost <-chan nats.Status,
	f func(context.Context) error,
) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f(ctx)
	}()
	for {
		next, broken := t.in.pull.step(time.Now(), 0, 0, false)
		if broken == nil {
			select {
			case <-done:
				return err
			case <-soft.Done():
				broken = context.Cause(soft)
			case <-lost:
				broken = errConnectionLost
			case m := <-t.in.pull.msgs:
				_, broken = t.in.pull.received(m, time.Now()) // no row fits the request
			case <-time.After(time.Until(next)):
			}
		}
		if broken != nil {
			cancel()
			<-done
			return broken
		}
	}
}

// finishedAhead returns the rows above the low-water mark that have results, sorted, and
// notes where these are. A replica that answers may lag behind the log, so it is asked
// again while there are fewer than the end of the log says.
func (c *Consumer) finishedAhead(ctx context.Context, end logEnd, where *aheadLog) (rows []uint64, err error) {
	for wait := range streams.Retry(ctx, storeRetryFirst, streams.RequestTimeout) {
		*where, rows = aheadLog{}, rows[:0]
		err = c.eachResult(ctx, end.from, end.seq, func(at, row uint64) {
			if row > end.low {
				where.add(at, row)
				rows = append(rows, row)
			}
		})
		slices.Sort(rows)
		rows = slices.Compact(rows)
		switch {
		case err == nil && len(rows) >= end.ahead:
			return rows, nil
		case err == nil && wait > streams.RequestTimeout/2:
			c.resultsLost = true
			lost := fmt.Errorf("%w: %d rows above the low-water mark, row %d, have results, and stream %s holds %d of them on %s from sequence %d on: restore it from a backup, or start under another name: the others would be answered twice",
				ErrResumePointLost, end.ahead, end.low, c.cfg.ResultStream, len(rows), c.resultSubject, end.from)
			if !c.served {
				return nil, fatal(lost)
			}
			return nil, unfit(lost)
		case err != nil && wait > streams.RequestTimeout/2:
			return nil, err
		}
	}
	return nil, errors.Join(context.Cause(ctx), err)
}

// eachResult calls f with each result of the partition from one sequence of the results
// stream to another, and the row that it is of.
func (c *Consumer) eachResult(ctx context.Context, from, to uint64, f func(at, row uint64)) error {
	return c.eachHeader(ctx, c.cfg.ResultStream, c.resultSubject, from, to, func(at uint64, h nats.Header) error {
		row, err := strconv.ParseUint(h.Get(streams.HeaderSourceSeq), 10, 64)
		if err != nil {
			return fmt.Errorf("message %d is no result", at)
		}
		f(at, row)
		return nil
	})
}

// eachHeader calls f with the headers of each message on a subject, from one sequence of
// a stream to another. Bodies are not read.
func (c *Consumer) eachHeader(ctx context.Context, stream, subject string, from, to uint64, f func(at uint64, h nats.Header) error) error {
	asking, cancel := context.WithTimeout(ctx, aheadAskMost)
	defer cancel()
	reading, err := streams.Read(asking, c.js, stream, jetstream.ConsumerConfig{
		FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		HeadersOnly: true, InactiveThreshold: streams.RequestTimeout,
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, c.denied(err))
	}
	defer reading.Close()
	for m, err := range reading.All(ctx) {
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, c.denied(err))
		}
		if m.Sequence > to {
			return nil
		}
		if err := f(m.Sequence, m.Header); err != nil {
			return err
		}
	}
	return nil
}
