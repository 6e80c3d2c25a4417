package executor

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/pool"
)

// prompts has the executor of a pool of size 1 run until stop is called. once makes a call of a prompt that takes d, and
// calls counts them.
func prompts(t *testing.T) (once func(ctx context.Context, d time.Duration) error, e *Executor, calls *atomic.Int32, stop func()) {
	t.Helper()
	e, calls = newRowWay(t).executor, new(atomic.Int32)
	done, ended := make(chan struct{}), make(chan error)
	go e.Run(t.Context(), done)
	go func() { ended <- e.Pool.Run(context.Background()) }()
	once = func(ctx context.Context, d time.Duration) error {
		return e.CallOnce(ctx, func() int64 { return 1 }, func(context.Context, pool.Attempt) pool.Verdict {
			calls.Add(1)
			time.Sleep(d)
			return pool.Verdict{}
		})
	}
	return once, e, calls, func() {
		close(done)
		e.Pool.Drain()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// One prompt waits in the pool, the others in the queue; none of them is sent once its caller has gone.
func TestAPromptThatIsGivenUpInTimeIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once, e, calls, stop := prompts(t)
		defer stop()
		first := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { first <- once(ctx, time.Minute) }()
		synctest.Wait()
		cause := errors.New("caller went home")
		gone := make(chan error, 100)
		for range 100 {
			go func() {
				ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, cause)
				defer cancel()
				gone <- once(ctx, time.Minute)
			}()
		}
		for range 100 {
			if err := <-gone; !errors.Is(err, cause) {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := e.Pool.Stats().Waiting; n != 0 {
			t.Errorf("%d prompts are still in line", n)
		}
		if err := <-first; err != nil {
			t.Errorf("the prompt in flight is not waited for: %v", err)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls, want the first alone", n)
		}
	})
}

func TestAPauseRefusesThePromptsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once, e, _, stop := prompts(t)
		defer stop()
		errs := make(chan error, 10)
		for range 10 {
			go func() { errs <- once(t.Context(), time.Hour) }()
		}
		synctest.Wait()
		e.Pool.Halt(errors.New("paused by alice"))
		synctest.Wait()
		if len(errs) != 9 {
			t.Fatalf("%d of 10 prompts have ended, want all but the one in flight", len(errs))
		}
		for range 9 {
			if err := <-errs; !errors.Is(err, pool.ErrPaused) {
				t.Error(err)
			}
		}
		if err := once(t.Context(), time.Hour); !errors.Is(err, pool.ErrPaused) {
			t.Errorf("a prompt that comes during the pause: %v", err)
		}
		e.Pool.Continue()
		if err := <-errs; err != nil {
			t.Error(err)
		}
		if err := once(t.Context(), time.Hour); err != nil {
			t.Errorf("after the pause: %v", err)
		}
	})
}
