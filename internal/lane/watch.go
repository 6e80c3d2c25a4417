package lane

import (
	"context"
	"fmt"
	"time"

	"github.com/llm-stage/stage/llm/batchapi"
)

// unknownFor is for how long a provider may say that it does not know a batch until the
// batch is looked for again.
const unknownFor = 10 * time.Minute

// watcher follows the batches that the provider works on until they are over.
type watcher struct {
	*desk
	refusals *refusals
}

// poll looks at a batch that the provider works on.
func (w *watcher) poll(ctx context.Context, b *batch, now time.Time) {
	if b.account != w.cfg.Account() {
		w.reloadFor(ctx, b, now)
		return
	}
	w.call(ctx, b, callTime, func(ctx context.Context) followUp {
		remote, err := w.cfg.API.Get(ctx, b.id)
		w.lane.step("polled")
		return func(_ context.Context, now time.Time) {
			if err != nil && meaningOf(polling, err) == unknown {
				w.unknown(b, err, now)
				return
			}
			if !w.succeeded(polling, b, err, now) {
				b.next = maxTime(b.next, now.Add(w.limits.Poll))
				return
			}
			b.missing = time.Time{}
			w.polled(b, remote, now)
		}
	})
}

func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// polled goes on with what the provider has said of a batch.
func (w *watcher) polled(b *batch, remote batchapi.Batch, now time.Time) {
	b.remote = remote
	switch {
	case remote.State == batchapi.Refused:
		w.refusals.refused(b, remote.Refusal, now)
	case remote.State.Over():
		b.phase, b.overSince = phaseOver, now
		w.standing.capacity(b.model).ended(b.tokens)
		w.refusals.inRow = 0
	default:
		if remote.Answered > 0 {
			w.refusals.inRow = 0
		}
		b.next = now.Add(w.pollEvery(b))
	}
}

// unknown goes on where the provider does not know a batch that it has created. Right after
// the creation this proves nothing, since a provider may take a while to show a new batch
// everywhere. After unknownFor, or twice the time set for adoption if that is longer, the
// batch is looked for in the provider's list.
func (w *watcher) unknown(b *batch, err error, now time.Time) {
	w.standing.pause.clear()
	if b.missing.IsZero() {
		b.missing = now
	}
	if w.cfg.Forgets {
		b.phase, b.tried, b.lookUntil = phaseLooking, 0, now
		return
	}
	b.fail(fmt.Errorf("look at batch %s: %w", b.id, err), now, w.limits.Poll)
	switch long := now.Sub(b.missing) > max(unknownFor, 2*w.cfg.Settings.AdoptWait); {
	case !long:
	case b.tentative: // it was another's, who has deleted it
		b.notOurs(now)
	default:
		b.phase, b.tried = phaseLooking, 0
		b.lookUntil = now.Add(adoptTime(w.limits, b.bytes, w.cfg.Settings.AdoptWait))
	}
}

// cancel asks the provider to end a batch. What it has answered by then is read.
func (w *watcher) cancel(ctx context.Context, b *batch) {
	b.cancelled = true
	w.loop.vital++
	w.call(ctx, b, callTime, func(ctx context.Context) followUp {
		err := w.cfg.API.Cancel(ctx, b.id)
		return func(_ context.Context, now time.Time) {
			w.loop.vital--
			if w.succeeded(cancelling, b, err, now) {
				b.next = now.Add(w.pollEvery(b))
			}
		}
	})
}

// cancelOnStop cancels a batch at a stop, where the settings want that.
func (w *watcher) cancelOnStop(ctx context.Context, b *batch) {
	if b.phase == phaseRunning && b.ours() && !b.cancelled && w.cfg.CancelOnStop != nil && w.cfg.CancelOnStop() {
		w.cancel(ctx, b)
	}
}
