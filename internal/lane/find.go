package lane

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm/batchapi"
)

const (
	// clockSkew is how far the provider's clock may be behind ours.
	clockSkew = 2 * time.Minute
	// withdrawTries is how often a file is tried to be deleted for certain.
	withdrawTries = 5
	// lostAge is how long a batch that was given up without certainty is looked for,
	// lostMax how many are.
	lostAge = 48 * time.Hour
	lostMax = 1000
	// lostEvery is the longest time between two looks for one.
	lostEvery = time.Hour
	// otherAccount is the problem of a batch that nobody can look for.
	otherAccount = "it was submitted under another address or key, under which alone it can be found: start with that one, " +
		"or see to it that the batch does not exist and cancel it with `stage lane cancel`"
)

// finder finds out what the provider has: batches whose creation got no answer, and
// batches that were given up though they may exist.
type finder struct{ *desk }

// look searches the provider for a batch whose creation is in doubt.
func (f *finder) look(ctx context.Context, b *batch, now time.Time) {
	if b.account != f.cfg.Account() {
		f.reloadFor(ctx, b, now)
		return
	}
	since, known := b.intent.Add(-clockSkew), f.batches.known(b)
	last := !now.Before(b.lookUntil) // a batch that is not listed now is absent
	f.call(ctx, b, callTime, func(ctx context.Context) followUp {
		all, err := f.cfg.API.Find(ctx, b.token, since, len(b.state))
		var mine []batchapi.Batch
		var sure bool
		if err == nil {
			mine, sure, err = f.choose(ctx, b.token, all, known)
		}
		return func(ctx context.Context, now time.Time) {
			switch {
			case !f.succeeded(finding, b, err, now):
			case len(mine) > 0:
				b.tentative = !sure
				f.found(b, mine[0], true, now)
				for _, other := range mine[1:] {
					f.cancelDouble(ctx, b, other)
				}
			case !last:
				b.next = now.Add(f.lookEvery())
			default:
				f.absent(ctx, b)
			}
		}
	})
}

// choose returns the provider's batches that belong to the token, the first created
// first, and whether that is sure. If the list shows no tokens, the ids of the results
// decide; a batch without results may be it.
func (f *finder) choose(ctx context.Context, token string, all []batchapi.Batch, known map[string]idUse) (mine []batchapi.Batch, sure bool, err error) {
	if f.cfg.API.Limits().Tokens {
		for _, b := range all {
			if b.Token == token && known[b.ID] != idTaken {
				mine = append(mine, b)
			}
		}
		slices.SortStableFunc(mine, func(a, b batchapi.Batch) int { return a.Created.Compare(b.Created) })
		return mine, true, nil
	}
	var maybe []batchapi.Batch
	for _, b := range all {
		if known[b.ID] == idTaken {
			continue
		}
		if !b.State.Over() {
			maybe = append(maybe, b)
			continue
		}
		ours, err := f.firstIs(ctx, b, token)
		switch {
		case errors.Is(err, batchapi.ErrNotFound): // for a moment, or for good: reading it as if it were ours finds out
			maybe = append(maybe, b)
		case err != nil:
			return nil, false, err
		case ours:
			return []batchapi.Batch{b}, true, nil
		}
	}
	if len(maybe) == 0 {
		return nil, false, nil
	}
	slices.SortStableFunc(maybe, func(a, b batchapi.Batch) int {
		return cmp.Or(cmp.Compare(known[a.ID], known[b.ID]), a.Created.Compare(b.Created))
	})
	return maybe[:1], false, nil
}

var errFirstRead = errors.New("the first line is read")

// firstIs reports whether the first line of a batch's results has an id of the token.
func (f *finder) firstIs(ctx context.Context, b batchapi.Batch, token string) (ours bool, err error) {
	err = f.cfg.API.Results(ctx, b, func(line batchapi.Line) error {
		ours = strings.HasPrefix(line.ID, token+"-")
		return errFirstRead
	})
	if errors.Is(err, errFirstRead) {
		err = nil
	}
	return ours, err
}

// absent goes on when a batch has not been listed for long enough. Its creation may still
// be on its way from a process that was suspended. Where a creation needs a file, that is
// deleted first, and then the list is watched a little longer.
func (f *finder) absent(ctx context.Context, b *batch) {
	switch {
	case f.limits.Inline:
		f.abandon(b, "the provider does not list it; nothing can prevent that a creation on its way still arrives", true, f.places.release)
	case b.withdrawn:
		f.abandon(b, "the provider does not list it, and has no file to create it from", false, f.places.release)
	default:
		since := b.intent.Add(-clockSkew)
		f.call(ctx, b, callTime, func(ctx context.Context) followUp {
			certain, err := f.cfg.API.Withdraw(ctx, b.token, since)
			return func(_ context.Context, now time.Time) {
				tried := b.tried
				switch {
				case !f.succeeded(withdrawing, b, err, now):
				case certain:
					b.withdrawn = true
					b.lookUntil = now.Add(f.cfg.Settings.AdoptWait / 2)
					b.next = now.Add(f.lookEvery())
				case tried < withdrawTries:
					b.fail(errors.New("its file can't be deleted for certain"), now, 0)
				default:
					f.abandon(b, "the provider does not list it; whether its file is deleted is not certain", true, f.places.release)
				}
			}
		})
	}
}

// lookForLost looks for batches that were given up. One that turns up is cancelled, for
// its rows are in others.
func (f *finder) lookForLost(ctx context.Context, now time.Time) {
	for token := f.lost.expire(now); token != ""; token = f.lost.expire(now) {
		f.leftovers.add(token)
	}
	for _, lost := range f.lost.all {
		if lost.busy || f.loop.wait(lost.next, now) || !f.mayCall(now) {
			continue
		}
		f.lookForOne(ctx, lost)
	}
}

// lookForOne looks for one batch that was given up.
func (f *finder) lookForOne(ctx context.Context, lost *lostBatch) {
	b := &batch{sealed: sealed{token: lost.token, model: lost.model, intent: lost.since}}
	known := f.batches.known(b)
	lost.busy = true
	f.call(ctx, b, callTime, func(ctx context.Context) followUp {
		all, err := f.cfg.API.Find(ctx, lost.token, lost.since.Add(-2*f.cfg.Settings.AdoptWait-clockSkew), lost.rows)
		var mine []batchapi.Batch
		var sure bool
		if err == nil {
			mine, sure, err = f.choose(ctx, lost.token, all, known)
		}
		return func(ctx context.Context, now time.Time) {
			lost.busy = false
			lost.every = min(2*lost.every, lostEvery)
			lost.next = now.Add(lost.every)
			if !f.succeeded(finding, b, err, now) || len(mine) == 0 || !sure {
				return // one that runs may be another's: it is not touched
			}
			f.lost.remove(lost)
			f.leftovers.add(lost.token)
			for _, m := range mine {
				f.cancelDouble(ctx, b, m)
			}
		}
	})
}

// cancelDouble cancels a batch whose rows are in another.
func (f *finder) cancelDouble(ctx context.Context, b *batch, m batchapi.Batch) {
	e := f.events.about(b, auditlog.BatchCancelled, "it turned up after its rows had gone into others")
	e.BatchID, e.Rows = m.ID, max(m.Rows, 0)
	f.events.report(b, e)
	if m.State.Over() {
		return
	}
	f.loop.do(ctx, callTime, func(ctx context.Context) followUp {
		err := f.cfg.API.Cancel(ctx, m.ID)
		return func(context.Context, time.Time) {
			if err != nil {
				b.problem = "cancel batch " + m.ID + ": " + err.Error()
			}
		}
	})
}
