package lane

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/llm/batchapi"
)

const (
	// opsMax is how many requests may be under way, those to the stream included, for
	// another to the provider to begin. A cancellation does not wait for that.
	opsMax = 8
	// callTime bounds a small request to the provider.
	callTime = time.Minute
	// uploadTime bounds a request that carries lines, beyond the time that the lines take.
	uploadTime = 2 * time.Minute
)

// desk is everything that the lane knows in one term of ownership: the batches, the
// places of the rows, the records, and the provider's account. Its parts each keep an
// invariant of their own. The methods here are requests to the provider, and the steps of
// a batch that concern more than one part. The [keeper] owns it.
type desk struct {
	lane   *Lane
	cfg    *Config
	of     consumer.LaneTerm
	limits batchapi.Limits

	loop     loop
	standing standing
	book     book
	events   events
	batches  batchList
	places   places

	lost      lostBatches
	leftovers leftovers

	// stopping means that nothing new begins, closed that the term ends, and fenced that
	// another process owns the partition. Closed and fenced imply stopping.
	stopping, closed, fenced bool
}

// call makes a request to the provider for a batch. While the lane pauses, or is denied, the
// request is to find out whether that is over, so the key is read again before.
func (d *desk) call(ctx context.Context, b *batch, bound time.Duration, f func(context.Context) followUp) {
	b.busy = true
	probing := d.standing.pause.begin() || d.standing.denial.err != nil
	reload := d.cfg.ReloadKey
	d.loop.do(ctx, bound, func(ctx context.Context) followUp {
		if probing && reload != nil {
			if err := reload(); err != nil {
				return func(_ context.Context, now time.Time) {
					b.busy = false
					d.standing.pause.set(err, now, d.cfg.ProbeInterval)
				}
			}
		}
		then := f(ctx)
		return func(ctx context.Context, now time.Time) {
			b.busy = false
			d.standing.pause.over()
			then(ctx, now)
		}
	})
}

// mayCall reports whether a request to the provider may be made now.
func (d *desk) mayCall(now time.Time) bool {
	return d.loop.ops < opsMax && !d.loop.wait(d.standing.pause.next(now), now)
}

// succeeded notes the outcome of a request for a batch, and reports whether the batch goes
// on: there was no error, or one that makes a further request useless ([done]). Of another
// failure it decides what does not depend on the batch: whether the lane pauses, and when
// the request is made again.
func (d *desk) succeeded(r request, b *batch, err error, now time.Time) bool {
	if err == nil {
		d.standing.pause.clear()
		b.fine()
		return true
	}
	m := meaningOf(r, err)
	if m == noAPI {
		if b.noAPI++; b.noAPI >= noAPIMost {
			m, err = account, absentAPI(err)
		}
	}
	if m == account {
		d.standing.pause.set(err, now, d.cfg.ProbeInterval)
		d.standing.pause.fatal = err
		b.problem = err.Error()
		return false
	}
	class, after := classOf(err)
	if class != 0 && !errors.Is(err, errSuspended) {
		d.standing.pause.clear()
	}
	b.fail(err, now, after)
	return m == done
}

// reloadFor reads the key again for a batch that was submitted under another.
func (d *desk) reloadFor(ctx context.Context, b *batch, now time.Time) {
	b.problem, b.next = otherAccount, now.Add(d.cfg.ProbeInterval)
	reload := d.cfg.ReloadKey
	if reload == nil {
		return
	}
	b.busy = true
	d.loop.do(ctx, callTime, func(context.Context) followUp {
		err := reload()
		return func(_ context.Context, now time.Time) {
			if b.busy = false; err == nil && b.account == d.cfg.Account() {
				b.fine()
				b.lookUntil = now.Add(adoptTime(d.limits, b.bytes, d.cfg.Settings.AdoptWait))
			}
		}
	})
}

// fence ends the term's work: another owns the partition.
func (d *desk) fence(err error) {
	d.fenced, d.stopping = true, true
	d.lane.log.Warn("the batch lane is fenced", slog.Any("error", err))
	d.of.Fenced(err)
}

// found records that the provider has the batch.
func (d *desk) found(b *batch, remote batchapi.Batch, adopted bool, now time.Time) {
	d.freeBody(b)
	b.fine()
	b.remote, b.id, b.adopted, b.submitted, b.phase = remote, remote.ID, adopted, now, phaseFound
	b.tentative = adopted && !d.limits.Tokens && b.tentative
	b.missing = time.Time{}
	d.standing.capacity(b.model).accepted(d.batches.queued(b.model, nil), now)
	d.loop.vital++
	r := &Record{Kind: RecordSubmitted, Token: b.token, Time: now, BatchID: b.id, Adopted: adopted, Tentative: b.tentative}
	d.book.record(r, func(now time.Time) {
		d.loop.vital--
		b.phase, b.next = phaseRunning, now.Add(d.pollEvery(b))
		event := auditlog.BatchSubmitted
		if adopted {
			event = auditlog.BatchAdopted
		}
		d.events.changed(b, event, "")
	})
}

// pollEvery is the time until the next look at a batch.
func (d *desk) pollEvery(b *batch) time.Duration {
	every := d.cfg.Settings.Poll
	if b.remote.RetryAfter > 0 {
		every = b.remote.RetryAfter
	}
	if d.closed && b.futile() {
		every = max(closePoll, b.remote.RetryAfter)
	}
	every = max(every, d.limits.Poll)
	return every + rand.N(every/10+1)
}

// lookEvery is the time between two looks for a batch whose creation got no answer. With an
// AdoptWait of 60 s, which is how long a batch is looked for, it is 6 s.
func (d *desk) lookEvery() time.Duration {
	return max(d.cfg.Settings.AdoptWait/10, time.Millisecond, min(d.limits.Poll, time.Second))
}

// abandon gives a batch up. Once that is recorded, then decides where its rows go.
func (d *desk) abandon(b *batch, why string, uncertain bool, then func(*batch)) {
	d.freeBody(b)
	b.phase = phaseAbandoned
	r := &Record{Kind: RecordAbandoned, Token: b.token, Model: b.model, Reason: why, Uncertain: uncertain, RowCount: len(b.state)}
	d.book.record(r, func(now time.Time) {
		d.events.changed(b, auditlog.BatchAbandoned, why)
		d.settle(b, 0)
		d.standing.capacity(b.model).ended(0)
		if uncertain {
			d.lose(r, now)
			b.keep = true
		}
		then(b)
		d.close(b)
	})
}

// lose has a batch looked for that was given up though it may exist.
func (d *desk) lose(r *Record, now time.Time) {
	wait := d.cfg.Settings.AdoptWait
	dropped := d.lost.add(&lostBatch{
		token: r.Token, model: r.Model, rows: r.RowCount, since: r.Time, every: wait, next: now.Add(wait),
	})
	if dropped != "" {
		d.leftovers.add(dropped)
	}
}

// close begins to delete the remains of a batch: its end is recorded.
func (d *desk) close(b *batch) {
	d.freeBody(b)
	b.phase, b.busy = phaseClosed, false
	b.fine()
	b.forgetRows()
	b.seen, b.counted, b.settled = nil, nil, nil
	d.reindex()
}

// drop forgets a batch.
func (d *desk) drop(b *batch) {
	d.batches.remove(b)
	d.freeBody(b)
	d.reindex()
}

// freeBody frees the prompts of a batch, which makes room for another to gather.
func (d *desk) freeBody(b *batch) {
	d.places.intake.free(b.body)
	b.body = nil
}

// reindex tells [Lane.Holds] which batches hold which rows.
func (d *desk) reindex() {
	x := d.batches.index()
	d.lane.inBatch.Store(&x)
}

// settle replaces the reservation of a batch by the amount that was billed.
func (d *desk) settle(b *batch, usd float64) {
	if d.cfg.Settle != nil {
		d.cfg.Settle(b.token, usd)
		d.standing.noBudget.until = time.Time{} // the reserved money may be free now
	}
}
