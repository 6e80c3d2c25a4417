package lane

import (
	"context"
	"sync"
	"time"
)

// loop makes the requests of a term and remembers when to look again. Requests run in
// goroutines of their own and touch nothing that the keeper owns: each returns a
// [followUp], which the keeper runs. So all state changes in one goroutine, one after the
// other, and needs no lock.
type loop struct {
	running *sync.WaitGroup
	done    chan followUp
	// ops counts the requests that are under way. vital counts those among them that the
	// end of the term waits for: a creation, the record of one, a cancellation.
	ops, vital int

	// now is when the present turn of the keeper began.
	now time.Time
	// wake is when something is due next.
	wake time.Time
	// dirty says that something has changed, so that the keeper must look at everything.
	dirty bool
}

// followUp is the rest of a request: the keeper runs it when the answer has come.
type followUp func(ctx context.Context, now time.Time)

// do has f make requests in a goroutine of its own, for no longer than bound. The keeper
// runs what f returns. When the term has ended nobody does.
func (l *loop) do(ctx context.Context, bound time.Duration, f func(context.Context) followUp) {
	l.ops++
	l.running.Go(func() {
		doing, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		then := f(doing)
		select {
		case l.done <- then:
		case <-ctx.Done():
		}
	})
}

// wait reports whether at is in the future. If so, the keeper looks again then, so the
// caller may simply return.
func (l *loop) wait(at, now time.Time) bool {
	if at.IsZero() || !now.Before(at) {
		return false
	}
	if at.Before(l.wake) {
		l.wake = at
	}
	return true
}

// again has the keeper look at everything once more, at once.
func (l *loop) again(now time.Time) { l.dirty, l.wake = true, now }
