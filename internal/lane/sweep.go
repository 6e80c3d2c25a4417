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

// sweeper deletes the remains of finished batches: their files at the provider, and then
// their records. The partition's last record always stays, since the fence is conditional
// on it.
type sweeper struct{ *desk }

// leftovers are the tokens whose records could not be purged when their batch was, since
// one of them was the last record of the partition, or came from an earlier term. One
// purge is under way at a time.
type leftovers struct {
	tokens  []string
	purging bool
	next    time.Time // after a failure
}

func (l *leftovers) add(token string) { l.tokens = append(l.tokens, token) }

// sweep takes the next step with batches that are closed.
func (s *sweeper) sweep(ctx context.Context, now time.Time) {
	for _, b := range slices.Clone(s.batches.all) {
		switch {
		case b.phase != phaseClosed || b.busy || b.unstored > 0 || s.loop.wait(b.next, now):
		case b.cleaned:
			s.purge(ctx, b)
		case b.account != s.cfg.Account():
			b.cleaned = true // with this key the files can't be reached
			s.loop.again(now)
		case s.mayCall(now):
			s.clean(ctx, b)
		}
	}
}

// clean deletes the files of a batch at the provider, or the batch where results live in
// it.
func (s *sweeper) clean(ctx context.Context, b *batch) {
	since := b.intent.Add(-clockSkew)
	remote, id, api := b.remote, b.id, s.cfg.API
	s.call(ctx, b, callTime, func(ctx context.Context) followUp {
		s.lane.step("deleting")
		var err error
		switch {
		case id == "" && !s.limits.Inline:
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
		s.lane.step("deleted")
		return func(_ context.Context, now time.Time) {
			if tried := b.tried; s.succeeded(deleting, b, err, now) || tried+1 >= cleanTries {
				if err != nil {
					s.lane.log.Warn("files of a batch could not be deleted at the provider",
						slog.String("token", b.token), slog.String("batch_id", id), slog.Any("error", err))
				}
				b.fine()
				b.cleaned = true
			}
		}
	})
}

// purge removes the records of a batch.
func (s *sweeper) purge(ctx context.Context, b *batch) {
	keep := b.keep || s.book.endToken == b.token
	b.busy = true
	s.loop.do(ctx, 2*streams.RequestTimeout, func(ctx context.Context) followUp {
		err := s.purgeSubject(ctx, s.book.prefix+b.token, keep)
		if err == nil {
			s.lane.step("purged")
		}
		return func(_ context.Context, now time.Time) {
			b.busy = false
			if err != nil {
				b.fail(err, now, 0)
				return
			}
			if keep && !b.keep {
				s.leftovers.add(b.token)
			}
			s.drop(b)
		}
	})
}

// purgeLeft removes records that could not be purged while they were the end of the log.
func (s *sweeper) purgeLeft(ctx context.Context, now time.Time) {
	left := &s.leftovers
	if left.purging {
		return
	}
	at := slices.IndexFunc(left.tokens, func(token string) bool { return token != s.book.endToken })
	if at < 0 || s.loop.wait(left.next, now) {
		return
	}
	token := left.tokens[at]
	left.purging = true
	s.loop.do(ctx, 2*streams.RequestTimeout, func(ctx context.Context) followUp {
		err := s.purgeSubject(ctx, s.book.prefix+token, token == claimToken)
		return func(_ context.Context, now time.Time) {
			left.purging, left.next = false, time.Time{}
			if err != nil {
				left.next = now.Add(time.Minute)
				return
			}
			left.tokens = slices.DeleteFunc(left.tokens, func(other string) bool { return other == token })
		}
	})
}

// purgeSubject removes the messages of a subject, all or all but the last. A process that
// is fenced and does not know it yet does no harm with that. The end of the batch was
// recorded under the fence, and a message that was not the last one never will be again.
func (s *sweeper) purgeSubject(ctx context.Context, subject string, keepLast bool) error {
	stream, err := streams.Look(ctx, s.cfg.jetStream(), s.cfg.Settings.Stream)
	if err != nil {
		return err
	}
	opts := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(subject)}
	if keepLast {
		opts = append(opts, jetstream.WithPurgeKeep(1))
	}
	return stream.Purge(ctx, opts...)
}
