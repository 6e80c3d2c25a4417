package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// crew is the workers, goroutines that make the calls: as many as calls were ever in
// flight at once. So a send on work, which is unbuffered, finds an idle one, or one that
// has reported the end of its call and is about to receive.
type crew struct {
	work  chan *task
	size  int
	wg    sync.WaitGroup
	inbox *inbox // takes the calls that have ended
}

// call hands t to an idle worker, or to a new one if all are busy. InFlight is the number
// of calls in flight, this one included.
func (c *crew) call(ctx context.Context, t *task, inFlight int) {
	if inFlight <= c.size {
		c.work <- t
		return
	}
	c.size++
	c.wg.Go(func() { c.serve(ctx, t) })
}

// dismiss ends the workers and waits for them.
func (c *crew) dismiss() {
	close(c.work)
	c.wg.Wait()
}

// serve is a worker: it makes attempts, the first of them at t, until there is no more
// work.
func (c *crew) serve(ctx context.Context, t *task) {
	for ok := true; ok; t, ok = <-c.work {
		c.attempt(ctx, t)
	}
}

// attempt makes the call for t and returns t to the scheduler, whatever the call does.
func (c *crew) attempt(ctx context.Context, t *task) {
	returned := false
	defer func() {
		if !returned {
			value := recover() // nil: runtime.Goexit, which ends this worker too
			t.exited = value == nil
			t.verdict = Verdict{Class: Permanent, Err: &PanicError{Value: value, Stack: debug.Stack()}}
		}
		t.ended = time.Now()
		c.inbox.end(t)
	}()
	t.verdict = t.work.attempt(ctx, t.att)
	returned = true
}

// PanicError is the error of a job whose call panicked or ended its goroutine.
type PanicError struct {
	// Value is what the call panicked with. It is nil if the call ended its goroutine
	// instead.
	Value any
	// Stack is the goroutine's stack at that moment, as debug.Stack prints it.
	Stack []byte
}

func isPanic(err error) bool {
	_, ok := errors.AsType[*PanicError](err)
	return ok
}

// Error reports the value without the stack.
func (e *PanicError) Error() string {
	if e.Value == nil {
		return "call ended its goroutine"
	}
	return fmt.Sprintf("call panicked: %v", e.Value)
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
