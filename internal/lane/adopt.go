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
	// lostAge is how long a batch that was given up without certainty is looked for, lostMax how many are.
	lostAge = 48 * time.Hour
	lostMax = 1000
	// lostEvery is the longest time between two looks for one.
	lostEvery = time.Hour
	// otherAccount is the problem of a batch that nobody can look for.
	otherAccount = "it was submitted under another address or key, under which alone it can be found: start with that one, " +
		"or see to it that the batch does not exist and cancel it with `stage lane cancel`"
)

func (t *term) lookEvery() time.Duration {
	return max(t.cfg.Settings.AdoptWait/10, time.Millisecond, min(t.limits.Poll, time.Second))
}

// look searches the provider for a batch whose creation is in doubt.
func (t *term) look(ctx context.Context, b *batch, now time.Time) {
	if b.account != t.cfg.Account() {
		t.reloadFor(ctx, b, now)
		return
	}
	since, known := b.intent.Add(-clockSkew), t.known(b)
	last := !now.Before(b.lookUntil) // what is not listed now is absent
	t.call(ctx, b, callTime, func(ctx context.Context) func(context.Context, time.Time) {
		all, err := t.cfg.API.Find(ctx, b.token, since, len(b.state))
		var mine []batchapi.Batch
		var sure bool
		if err == nil {
			mine, sure, err = t.l.choose(ctx, b.token, all, known)
		}
		return func(ctx context.Context, now time.Time) {
			switch {
			case !t.succeeded(finding, b, err, now):
			case len(mine) > 0:
				b.tentative = !sure
				t.found(b, mine[0], true, now)
				for _, other := range mine[1:] {
					t.cancelDouble(ctx, b, other)
				}
			case !last:
				b.next = now.Add(t.lookEvery())
			default:
				t.absent(ctx, b)
			}
		}
	})
}

// reloadFor reads the key again for a batch that was submitted under another.
func (t *term) reloadFor(ctx context.Context, b *batch, now time.Time) {
	b.problem, b.next = otherAccount, now.Add(t.cfg.ProbeInterval)
	reload := t.cfg.ReloadKey
	if reload == nil {
		return
	}
	b.busy = true
	t.do(ctx, callTime, func(context.Context) func(context.Context, time.Time) {
		err := reload()
		return func(_ context.Context, now time.Time) {
			if b.busy = false; err == nil && b.account == t.cfg.Account() {
				b.fine()
				b.lookUntil = now.Add(adoptTime(t.limits, b.bytes, t.cfg.Settings.AdoptWait))
			}
		}
	})
}

// idUse is what an id of the provider is to a batch that is looked for; 0: nothing is known of it.
type idUse uint8

const (
	// idDoubted: another batch may be it.
	idDoubted idUse = iota + 1
	// idTaken: it is another batch, or turned out not to be this one.
	idTaken
)

// known returns the ids that can't be, or may not be, those of a batch. Of two that may be either, both have to look
// again once one of them is known for sure.
func (t *term) known(b *batch) map[string]idUse {
	ids := make(map[string]idUse)
	for _, other := range t.batches {
		switch {
		case other == b || other.id == "":
		case other.ours():
			ids[other.id] = idTaken
		default:
			ids[other.id] = max(ids[other.id], idDoubted)
		}
	}
	for id := range b.excluded {
		ids[id] = idTaken
	}
	return ids
}

// takenByOther reports whether another batch is surely the one that a batch was taken for.
func (t *term) takenByOther(b *batch) bool {
	return b.tentative && (b.stage == stageRunning || b.stage == stageOver) && (t.pass == nil || t.pass.batch != b) && t.known(b)[b.id] == idTaken
}

// choose returns those of the provider's batches that are the one of the token, the first created first, and whether
// that is sure. Where the list shows no token the ids of the results tell, and one that has none yet may be it.
func (l *Lane) choose(ctx context.Context, token string, all []batchapi.Batch, known map[string]idUse) (mine []batchapi.Batch, sure bool, err error) {
	if l.cfg.API.Limits().Tokens {
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
		ours, err := l.firstIs(ctx, b, token)
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
func (l *Lane) firstIs(ctx context.Context, b batchapi.Batch, token string) (ours bool, err error) {
	err = l.cfg.API.Results(ctx, b, func(line batchapi.Line) error {
		ours = strings.HasPrefix(line.ID, token+"-")
		return errFirstRead
	})
	if errors.Is(err, errFirstRead) {
		err = nil
	}
	return ours, err
}

// absent goes on when a batch has not been listed for long enough. Where its creation needs a file, that is deleted
// first, for it may be on its way from a process that was suspended; then the list is watched a little longer.
func (t *term) absent(ctx context.Context, b *batch) {
	switch {
	case t.limits.Inline:
		t.abandon(b, "the provider does not list it; nothing can prevent that a creation on its way still arrives", true, t.release)
	case b.withdrawn:
		t.abandon(b, "the provider does not list it, and has no file to create it from", false, t.release)
	default:
		since := b.intent.Add(-clockSkew)
		t.call(ctx, b, callTime, func(ctx context.Context) func(context.Context, time.Time) {
			certain, err := t.cfg.API.Withdraw(ctx, b.token, since)
			return func(_ context.Context, now time.Time) {
				tried := b.tried
				switch {
				case !t.succeeded(withdrawing, b, err, now):
				case certain:
					b.withdrawn = true
					b.lookUntil = now.Add(t.cfg.Settings.AdoptWait / 2)
					b.next = now.Add(t.lookEvery())
				case tried < withdrawTries:
					b.fail(errors.New("its file can't be deleted for certain"), now, 0)
				default:
					t.abandon(b, "the provider does not list it; whether its file is deleted is not certain", true, t.release)
				}
			}
		})
	}
}

// abandon gives a batch up. Once that is recorded, then decides where its rows go.
func (t *term) abandon(b *batch, why string, uncertain bool, then func(*batch)) {
	t.freeBody(b)
	b.stage = stageAbandoned
	r := &Record{Kind: RecordAbandoned, Token: b.token, Model: b.model, Reason: why, Uncertain: uncertain, RowCount: len(b.state)}
	t.record(r, func(now time.Time) {
		t.audit(b, t.event(b, auditlog.BatchAbandoned, why))
		t.settle(b, 0)
		t.capacityOf(b.model).ended(0)
		if uncertain {
			t.lose(r, now)
			b.keep = true
		}
		then(b)
		t.close(b)
	})
}

// lostToken is a batch that was given up though it may exist.
type lostToken struct {
	token string
	model string
	rows  int
	since time.Time
	next  time.Time
	every time.Duration
	busy  bool
}

func (t *term) lose(r *Record, now time.Time) {
	rows := r.RowCount
	t.lost = append(t.lost, &lostToken{token: r.Token, model: r.Model, rows: rows, since: r.Time, every: t.cfg.Settings.AdoptWait, next: now.Add(t.cfg.Settings.AdoptWait)})
	if len(t.lost) > lostMax {
		t.left = append(t.left, t.lost[0].token)
		t.lost = t.lost[1:]
	}
}

// lookForLost looks for batches that were given up. One that turns up is cancelled, for its rows are in others.
func (t *term) lookForLost(ctx context.Context, now time.Time) {
	for len(t.lost) > 0 && now.Sub(t.lost[0].since) > lostAge {
		t.left = append(t.left, t.lost[0].token)
		t.lost = t.lost[1:]
	}
	for _, lost := range t.lost {
		if lost.busy || t.wait(lost.next, now) || !t.mayCall(now) {
			continue
		}
		t.lookForOne(ctx, lost)
	}
}

func (t *term) lookForOne(ctx context.Context, lost *lostToken) {
	b := &batch{token: lost.token, model: lost.model, intent: lost.since}
	known := t.known(b)
	lost.busy = true
	t.call(ctx, b, callTime, func(ctx context.Context) func(context.Context, time.Time) {
		all, err := t.cfg.API.Find(ctx, lost.token, lost.since.Add(-2*t.cfg.Settings.AdoptWait-clockSkew), lost.rows)
		var mine []batchapi.Batch
		var sure bool
		if err == nil {
			mine, sure, err = t.l.choose(ctx, lost.token, all, known)
		}
		return func(ctx context.Context, now time.Time) {
			lost.busy = false
			lost.every = min(2*lost.every, lostEvery)
			lost.next = now.Add(lost.every)
			if !t.succeeded(finding, b, err, now) || len(mine) == 0 || !sure {
				return // one that runs may be another's: it is not touched
			}
			t.lost = slices.DeleteFunc(t.lost, func(other *lostToken) bool { return other == lost })
			t.left = append(t.left, lost.token)
			for _, m := range mine {
				t.cancelDouble(ctx, b, m)
			}
		}
	})
}

// cancelDouble cancels a batch whose rows are in another.
func (t *term) cancelDouble(ctx context.Context, b *batch, m batchapi.Batch) {
	e := t.event(b, auditlog.BatchCancelled, "it turned up after its rows had gone into others")
	e.BatchID, e.Rows = m.ID, max(m.Rows, 0)
	t.audit(b, e)
	if m.State.Over() {
		return
	}
	t.do(ctx, callTime, func(ctx context.Context) func(context.Context, time.Time) {
		err := t.cfg.API.Cancel(ctx, m.ID)
		return func(context.Context, time.Time) {
			if err != nil {
				b.problem = "cancel batch " + m.ID + ": " + err.Error()
			}
		}
	})
}
