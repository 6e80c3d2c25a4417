package lane

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// cleanTries is how often the files of a batch are tried to be deleted.
const cleanTries = 5

// close begins to delete what is left of a batch: its end is recorded.
func (t *term) close(b *batch) {
	t.freeBody(b)
	b.stage, b.busy = stageClosed, false
	b.fine()
	b.rows, b.state, b.count, b.wasIn, b.seen, b.counted, b.settled = Rows{}, nil, [rowStates]int{}, nil, nil, nil, nil
	t.reindex()
}

// sweep deletes files at the provider, and purges records. The partition's last record stays: the fence is conditional
// on it.
func (t *term) sweep(ctx context.Context, now time.Time) {
	if t.fenced {
		return
	}
	t.sweepClosed(ctx, now)
	if t.stopping {
		return
	}
	if !t.purging {
		t.purgeLeft(ctx, now)
	}
	t.lookForLost(ctx, now)
}

func (t *term) sweepClosed(ctx context.Context, now time.Time) {
	for _, b := range slices.Clone(t.batches) {
		switch {
		case b.stage != stageClosed || b.busy || b.untold > 0 || t.wait(b.next, now):
		case b.cleaned:
			t.purge(ctx, b)
		case b.account != t.cfg.Account():
			b.cleaned, t.dirty, t.wake = true, true, now
		case t.mayCall(now):
			t.clean(ctx, b)
		}
	}
}

// tidy does at the end of the term what is left to do of batches of which nothing is wanted any more: they are cancelled,
// counted, recorded as done, and deleted. With [Config.CancelOnStop] those are cancelled that were created just now.
func (t *term) tidy(ctx context.Context, now time.Time) {
	if t.graceEnd.IsZero() {
		t.graceEnd = now.Add(closeGrace)
		for _, b := range t.batches {
			if b.futile() && b.tried == 0 {
				b.next = time.Time{}
			}
		}
	}
	for _, b := range slices.Clone(t.batches) {
		switch {
		case b.busy:
		case !b.futile():
			t.advance(ctx, b, now)
		case t.wait(b.next, now) || !t.mayCall(now):
		case b.cancelled:
			t.poll(ctx, b, now)
		default:
			t.cancel(ctx, b)
		}
	}
	t.startPass(ctx, now)
	t.sweepClosed(ctx, now)
	t.write(ctx, now)
}

// tidying reports whether something of that may yet be done in time.
func (t *term) tidying() bool {
	if t.fenced || t.pause.why != "" {
		return false
	}
	return slices.ContainsFunc(t.batches, func(b *batch) bool {
		switch b.stage {
		case stageRunning:
			return b.futile() && b.tried == 0 && (b.busy || b.next.Before(t.graceEnd))
		case stageOver:
			return !b.wanted() && b.tried == 0 && (t.pass == nil || t.pass.batch == b)
		case stageDone:
			return t.book.problem == ""
		case stageClosed:
			return b.tried == 0
		case stageSealed, stageRecorded, stageUploaded, stageLooking, stageFound, stageSettling, stageAbandoned:
		}
		return false
	})
}

// clean deletes the files of a batch at the provider, or the batch where results live in it.
func (t *term) clean(ctx context.Context, b *batch) {
	since := b.intent.Add(-clockSkew)
	remote, id, api := b.remote, b.id, t.cfg.API
	t.call(ctx, b, callTime, func(ctx context.Context) func(context.Context, time.Time) {
		t.l.step("deleting")
		var err error
		switch {
		case id == "" && !t.limits.Inline:
			_, err = api.Withdraw(ctx, b.token, since)
		case id == "":
		case !remote.State.Over():
			if remote, err = api.Get(ctx, id); err == nil {
				err = api.Delete(ctx, remote)
			}
		default:
			err = api.Delete(ctx, remote)
		}
		if meaningOf(deleting, err) == done {
			err = nil
		}
		t.l.step("deleted")
		return func(_ context.Context, now time.Time) {
			if tried := b.tried; t.succeeded(deleting, b, err, now) || tried+1 >= cleanTries {
				if err != nil {
					t.l.log.Warn("files of a batch could not be deleted at the provider",
						slog.String("token", b.token), slog.String("batch_id", id), slog.Any("error", err))
				}
				b.fine()
				b.cleaned = true
			}
		}
	})
}

// purge removes the records of a batch.
func (t *term) purge(ctx context.Context, b *batch) {
	keep := b.keep || t.book.endToken == b.token
	b.busy = true
	t.do(ctx, 2*streams.RequestTimeout, func(ctx context.Context) func(context.Context, time.Time) {
		err := t.l.purge(ctx, t.book.prefix+b.token, keep)
		if err == nil {
			t.l.step("purged")
		}
		return func(_ context.Context, now time.Time) {
			b.busy = false
			if err != nil {
				b.fail(err, now, 0)
				return
			}
			if keep && !b.keep {
				t.left = append(t.left, b.token)
			}
			t.drop(b)
		}
	})
}

// purgeLeft removes what was left of a batch while it was the end of the log.
func (t *term) purgeLeft(ctx context.Context, now time.Time) {
	at := slices.IndexFunc(t.left, func(token string) bool { return token != t.book.endToken })
	if at < 0 || t.wait(t.purgeNext, now) {
		return
	}
	token := t.left[at]
	t.purging = true
	t.do(ctx, 2*streams.RequestTimeout, func(ctx context.Context) func(context.Context, time.Time) {
		err := t.l.purge(ctx, t.book.prefix+token, token == claimToken)
		return func(_ context.Context, now time.Time) {
			t.purging, t.purgeNext = false, time.Time{}
			if err != nil {
				t.purgeNext = now.Add(time.Minute)
				return
			}
			t.left = slices.DeleteFunc(t.left, func(other string) bool { return other == token })
		}
	})
}

// purge removes the messages of a subject, all or all but the last. Whoever is fenced and does not know it yet does no
// harm: that a batch is done was recorded under the fence, and what was not the last message never will be again.
func (l *Lane) purge(ctx context.Context, subject string, keepLast bool) error {
	stream, err := streams.Look(ctx, l.cfg.jetStream(), l.cfg.Settings.Stream)
	if err != nil {
		return err
	}
	opts := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(subject)}
	if keepLast {
		opts = append(opts, jetstream.WithPurgeKeep(1))
	}
	return stream.Purge(ctx, opts...)
}
