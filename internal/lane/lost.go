package lane

import (
	"slices"
	"time"
)

// lostBatch is a batch that was given up though it may exist at the provider.
type lostBatch struct {
	token string
	model string
	rows  int
	since time.Time     // when it was given up
	next  time.Time     // when it is looked for again
	every time.Duration // the wait after the next look, which doubles up to lostEvery
	busy  bool
}

// lostBatches are the batches that were given up without certainty, the earliest first.
// One that turns up is cancelled, because its rows are in other batches. No more than
// lostMax are looked for, and none for longer than lostAge: their last record, which
// would have the next term look for them, is purged then.
type lostBatches struct {
	all []*lostBatch
}

// add takes a batch, and returns the token of another that is no longer looked for, or "".
func (l *lostBatches) add(b *lostBatch) (dropped string) {
	if l.all = append(l.all, b); len(l.all) > lostMax {
		dropped = l.all[0].token
		l.all = l.all[1:]
	}
	return dropped
}

// expire removes a batch that was looked for long enough, and returns its token, or "".
func (l *lostBatches) expire(now time.Time) (token string) {
	if len(l.all) == 0 || now.Sub(l.all[0].since) <= lostAge {
		return ""
	}
	token = l.all[0].token
	l.all = l.all[1:]
	return token
}

func (l *lostBatches) remove(b *lostBatch) {
	l.all = slices.DeleteFunc(l.all, func(other *lostBatch) bool { return other == b })
}
