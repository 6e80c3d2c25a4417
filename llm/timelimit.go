package llm

import (
	"context"
	"reflect"
	"sync"
	"time"
)

// timeLimits are the contexts of attempts. One serves many attempts in turn, until its
// time runs out. A context for each attempt would register with its parent and set a
// timer of its own, and the transport would make a list of its children: that takes a
// microsecond. Safe for concurrent use.
type timeLimits struct {
	most int // that are kept

	mu   sync.Mutex
	idle []*timeLimit
}

// timeLimit is a child of a context that ends with it, or when its time runs out.
type timeLimit struct {
	ctx    context.Context //nolint:containedctx // it goes from attempt to attempt
	parent context.Context //nolint:containedctx // to compare it with that of the next attempt
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// begin returns a child of ctx for an attempt, which is cancelled for cause once d has
// passed. The limit must be passed to end.
func (l *timeLimits) begin(
	ctx context.Context, d time.Duration, cause error,
) (context.Context, *timeLimit) {
	if t := l.take(); t != nil {
		if t.parent == ctx && ctx.Err() == nil {
			t.timer.Reset(d)
			return t.ctx, t
		}
		t.cancel(nil)
	}
	t := &timeLimit{parent: ctx}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.timer = time.AfterFunc(d, func() { t.cancel(cause) })
	return t.ctx, t
}

func (l *timeLimits) take() *timeLimit {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return nil
	}
	t := l.idle[last]
	l.idle[last] = nil
	l.idle = l.idle[:last]
	return t
}

// end takes back what begin returned, once the attempt has ended.
func (l *timeLimits) end(t *timeLimit) {
	if !t.timer.Stop() || !reflect.ValueOf(t.parent).Comparable() || !l.keep(t) {
		t.cancel(nil)
	}
}

func (l *timeLimits) keep(t *timeLimit) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) == l.most {
		return false
	}
	l.idle = append(l.idle, t)
	return true
}

// drop ends those that are kept.
func (l *timeLimits) drop() {
	for t := l.take(); t != nil; t = l.take() {
		t.cancel(nil)
	}
}
