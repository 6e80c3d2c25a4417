package lane

import (
	"context"
	"slices"
	"time"
)

const (
	// closeGrace is how long the end of a term waits for a creation and its record, so
	// that the next owner need not look for the batch. In the same time it finishes
	// batches that nobody needs any more, since there may be no next owner.
	closeGrace = 2 * time.Second
	// closePoll is the least time between two looks at a batch during the end of a term.
	closePoll = 200 * time.Millisecond
)

// tidy finishes, at the end of the term, the batches that nobody needs any more: they are
// cancelled, counted, recorded as done, and deleted. With [Config.CancelOnStop] the
// batches that were created just now are cancelled, too.
func (k *keeper) tidy(ctx context.Context, now time.Time) {
	if k.graceEnd.IsZero() {
		k.graceEnd = now.Add(closeGrace)
		for _, b := range k.batches.all {
			if b.futile() && b.tried == 0 {
				b.next = time.Time{}
			}
		}
	}
	for _, b := range slices.Clone(k.batches.all) {
		switch {
		case b.busy:
		case !b.futile():
			k.advance(ctx, b, now)
		case k.loop.wait(b.next, now) || !k.mayCall(now):
		case b.cancelled:
			k.watcher.poll(ctx, b, now)
		default:
			k.watcher.cancel(ctx, b)
		}
	}
	k.collector.startPass(ctx, now)
	k.sweeper.sweep(ctx, now)
	k.book.write(ctx, now)
}

// tidying reports whether a batch may still be finished before the grace ends.
func (k *keeper) tidying() bool {
	if k.fenced || k.standing.pause.why != "" {
		return false
	}
	return slices.ContainsFunc(k.batches.all, func(b *batch) bool {
		switch b.phase {
		case phaseRunning:
			return b.futile() && b.tried == 0 && (b.busy || b.next.Before(k.graceEnd))
		case phaseOver:
			return !b.wanted() && b.tried == 0 && (k.collector.pass == nil || k.collector.pass.batch == b)
		case phaseDone:
			return k.book.problem == ""
		case phaseClosed:
			return b.tried == 0
		case phaseSealed, phaseRecorded, phaseUploaded, phaseLooking, phaseFound, phaseSettling, phaseAbandoned:
		}
		return false
	})
}
