package stagetest

import "sync"

// Trap holds where a process is to die, until it does. Its zero value is not armed. Safe
// for concurrent use.
type Trap[T any] struct {
	mu  sync.Mutex
	set *T
}

// Arm sets the target.
func (t *Trap[T]) Arm(to T) { t.Spring(func(*T) *T { return &to }) }

// Disarm drops the target, and reports whether there was one.
func (t *Trap[T]) Disarm() (was bool) {
	t.Spring(func(set *T) *T {
		was = set != nil
		return nil
	})
	return was
}

// Armed reports whether there is a target.
func (t *Trap[T]) Armed() (armed bool) {
	t.Spring(func(set *T) *T {
		armed = set != nil
		return set
	})
	return armed
}

// Spring replaces the target, nil for none, by what f makes of it.
func (t *Trap[T]) Spring(f func(set *T) (next *T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set = f(t.set)
}
