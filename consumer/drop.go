package consumer

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// dropEvery is the longest time between two looks for results that are too old.
	dropEvery = time.Minute
	// dropMost is how many messages of the log one record drops at most: more take
	// several, one after the other.
	dropMost = 10_000
)

// dropper removes results that are older than [Config.ResultMaxAge]. The stream's own max
// age would not do: it could take the end of the log, which says with which row to go on.
//
// It first stores a record, which says where the chain is with the last result that goes,
// and then purges up to there. A kill in between leaves results that the next owner purges
// by the same record.
//
// A fenced owner that does not know may store a record and purge as late as it likes. It
// purges by place, and what it found old in the same log is old for the next owner, too: the
// end of the log and the low-water mark only move away from there. A record takes the
// place of the one that its writer has read, or is refused, so no result is counted twice.
//
// It runs on a goroutine of its own, which owns it, and only reads what the term has: no
// row waits for it, and the end of the term cancels it.
type dropper struct {
	c       *Consumer
	cancel  context.CancelFunc
	running sync.WaitGroup

	finished uint64 // the record by which all was purged, or 0 if none is known
	problem  string
}

// open starts it, where results have a greatest age. It runs until close.
func (d *dropper) open(ctx context.Context, c *Consumer) {
	if c.cfg.ResultMaxAge <= 0 {
		return
	}
	d.c = c
	ctx, d.cancel = context.WithCancel(ctx)
	d.running.Go(func() { d.run(ctx) })
}

func (d *dropper) close() {
	if d.cancel != nil {
		d.cancel()
		d.running.Wait()
	}
}

func (d *dropper) run(ctx context.Context) {
	look := time.NewTicker(min(dropEvery, d.c.cfg.ResultMaxAge/10))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if err := d.drop(ctx); ctx.Err() == nil {
			d.report(err)
		}
	}
}

// report shows why old results stay.
func (d *dropper) report(err error) {
	why := ""
	if err != nil {
		why = d.c.problems.explain(err)
	}
	if why == d.problem {
		return
	}
	d.problem = why
	d.c.setStatus(func(s *Status) { s.DropProblem = why })
	if why == "" {
		d.c.log.Info("old results can be dropped again")
	} else {
		d.c.log.Warn("old results can't be dropped, and stay", slog.String("reason", why))
	}
}

// drop removes all results that are too old.
func (d *dropper) drop(ctx context.Context) error {
	l := d.c.results
	subject := streams.DroppedSubject(d.c.cfg.ResultSubject, d.c.cfg.Name, strconv.Itoa(d.c.cfg.Partition))
	last, at, err := streams.LastDropped(ctx, l.nc, d.c.cfg.ResultStream, subject)
	if err != nil {
		return err
	}
	if last == nil {
		last = new(streams.Dropped)
	}
	for {
		if at > d.finished {
			// No record goes before the last one's results have gone: there are two at most.
			if err := d.purge(ctx, last, subject, at); err != nil {
				return err
			}
			d.finished = at
			d.c.at("dropped")
		}
		next, err := d.find(ctx, last)
		if err != nil || next == nil {
			return err
		}
		body, err := json.Marshal(next)
		if err != nil {
			return err
		}
		d.c.at("dropping")
		stored, err := streams.Append(ctx, l.nc, []*nats.Msg{{Subject: subject, Data: body, Header: nats.Header{
			jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(at, 10)},
		}}})
		switch {
		case streams.Conflict(err): // another owner does it
			return nil
		case err != nil:
			return streams.Denied(l.nc, err, subject)
		}
		d.c.at("drop recorded")
		last, at = next, stored
	}
}

// purge removes what a record says, and the records before it last: verify needs one of
// them as long as results of both are there.
func (d *dropper) purge(ctx context.Context, r *streams.Dropped, subject string, at uint64) error {
	l := d.c.results
	for _, p := range []struct {
		subject string
		below   uint64
	}{{l.resultSubject, r.Sequence + 1}, {l.claimSubject, r.ClaimsBelow}, {subject, at}} {
		if p.below <= 1 { // nothing is below, and 0 would mean all
			continue
		}
		if err := streams.PurgeBelow(ctx, l.nc, d.c.cfg.ResultStream, p.subject, p.below); err != nil {
			return err
		}
	}
	return nil
}

// find returns the record of the results that are to go, up to [dropMost] messages behind
// the last record; nil where there are none. The last message of the log stays, and so do
// the last result, and the results of rows above the low-water mark. The last claim before
// the remaining results stays too, since it says who has stored them. A result without a
// chain goes with a later one that has one.
func (d *dropper) find(ctx context.Context, last *streams.Dropped) (next *streams.Dropped, err error) {
	l, stream := d.c.results, d.c.cfg.ResultStream
	before := time.Now().Add(-d.c.cfg.ResultMaxAge)
	first, err := streams.NextMessage(ctx, l.nc, stream, l.resultSubject, 1)
	if first == nil || err != nil || !first.Time.Before(before) { // as nearly always
		return nil, err
	}
	end, err := l.readEnd(ctx)
	if err != nil {
		return nil, err
	}
	newest, err := streams.LastMessage(ctx, l.nc, stream, l.resultSubject)
	if newest == nil || err != nil {
		return nil, err
	}
	keep := min(end.seq, newest.Sequence)
	if end.ahead > 0 {
		keep = min(keep, end.from)
	}
	found := *last
	found.Records, found.At = last.Records+1, time.Now().UTC()
	claims, n := uint64(0), 0
	err = l.eachMessage(ctx, stream, l.filter, 1, func(m *jetstream.RawStreamMsg) (bool, error) {
		if n++; m.Sequence >= keep || !m.Time.Before(before) || n > dropMost && next != nil {
			return false, nil
		}
		if m.Subject == l.claimSubject {
			if m.Sequence >= last.ClaimsBelow {
				claims++
				found.ClaimsBelow, found.Claims = m.Sequence, last.Claims+claims-1
			}
			return true, nil
		}
		if m.Subject != l.resultSubject || m.Sequence <= last.Sequence {
			return true, nil
		}
		found.Results++
		row, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
		if err != nil {
			return false, err
		}
		mark, err := readMark(m.Header, row)
		if err != nil || m.Header.Get(streams.HeaderChain) == "" {
			return err == nil, err
		}
		found.Sequence, found.Row, found.Stored, found.Chain = m.Sequence, row, m.Time, m.Header.Get(streams.HeaderChain)
		found.Low, found.Ahead = mark.low, mark.ahead
		next = new(streams.Dropped)
		*next = found
		return true, nil
	})
	return next, err
}
