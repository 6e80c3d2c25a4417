package llm

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAttemptsShareATimeLimitInTurn(t *testing.T) {
	errLate := errors.New("too late")
	synctest.Test(t, func(t *testing.T) {
		limits := &timeLimits{most: 1}
		begin := func(ctx context.Context) *timeLimit {
			_, limit := limits.begin(ctx, time.Second, errLate)
			return limit
		}
		parent, cancel := context.WithCancel(t.Context())
		first := begin(parent)
		time.Sleep(900 * time.Millisecond)
		limits.end(first)
		time.Sleep(time.Hour)
		if second := begin(parent); second != first || second.ctx.Err() != nil {
			t.Error("an attempt does not go on with the limit of the one before")
		}
		other := begin(parent)
		time.Sleep(time.Second)
		synctest.Wait() // the timers go off at this instant, too
		if a, b := context.Cause(first.ctx), context.Cause(other.ctx); !errors.Is(a, errLate) || !errors.Is(b, errLate) {
			t.Errorf("two attempts that take too long end with %v and %v, want %v", a, b, errLate)
		}
		limits.end(first)
		limits.end(other)
		third, fourth := begin(parent), begin(parent)
		if third.ctx.Err() != nil || fourth.ctx.Err() != nil {
			t.Error("an attempt begins with the limit of one that took too long")
		}
		limits.end(third)
		limits.end(fourth)
		if third.ctx.Err() != nil || fourth.ctx.Err() == nil {
			t.Error("of two limits with room for one, not the second alone has ended")
		}
		type key struct{}
		if valued := begin(context.WithValue(parent, key{}, 1)); valued.ctx.Value(key{}) != 1 || third.ctx.Err() == nil {
			t.Error("an attempt has the limit of one with another context")
		}
		limits.end(begin(parent))
		cancel()
		if late := begin(parent); late.ctx.Err() == nil {
			t.Error("an attempt outlives its context")
		} else {
			limits.end(late)
		}
		limits.drop()
	})
}

// uncomparable is a context that panics when it is compared.
type uncomparable struct {
	context.Context //nolint:containedctx // it is one
	_               func()
}

func TestATimeLimitComparesNoContextThatCannotBe(t *testing.T) {
	limits := &timeLimits{most: 1}
	for range 2 {
		_, limit := limits.begin(uncomparable{Context: t.Context()}, time.Second, context.Canceled)
		limits.end(limit)
	}
}
