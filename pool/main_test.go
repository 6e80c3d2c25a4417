package pool_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// The tests' jobs are named by numbers and answered by numbers.
type (
	call   = pool.Func[int, int]
	result = pool.Result[int, int]
)

var (
	errBusy  = errors.New("busy")
	errReset = errors.New("connection reset")
	errBad   = errors.New("bad request")
	errKey   = errors.New("invalid key")

	ok        = pool.Verdict{}
	busy      = pool.Verdict{Class: pool.Capacity, Err: errBusy}
	reset     = pool.Verdict{Class: pool.Transient, Err: errReset}
	bad       = pool.Verdict{Class: pool.Permanent, Err: errBad}
	badKey    = pool.Verdict{Class: pool.Fatal, Err: errKey}
	cancelled = pool.Verdict{Class: pool.Cancelled, Err: context.Canceled}
)

// bubble runs a case of a test in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func newPool[In, Out any](tb testing.TB, cfg pool.Config, f pool.Func[In, Out]) *pool.Pool[In, Out] {
	tb.Helper()
	if cfg.Retry == (pool.RetryConfig{}) {
		cfg.Retry = pool.DefaultRetry()
	}
	p, err := pool.New(cfg, f)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// running returns a pool that runs in the test's bubble until its end, when it is drained and must stop without error.
func running[In, Out any](t *testing.T, cfg pool.Config, f pool.Func[In, Out]) *pool.Pool[In, Out] {
	t.Helper()
	p := newPool(t, cfg, f)
	run(t, p)
	return p
}

// run runs a pool until the test ends.
func run[In, Out any](t *testing.T, p *pool.Pool[In, Out]) {
	t.Helper()
	ended := make(chan error)
	go func() { ended <- p.Run(context.Background()) }()
	t.Cleanup(func() {
		p.Drain()
		if err := <-ended; err != nil {
			t.Errorf("Run after Drain: %v", err)
		}
	})
}

func submit[In, Out any](t *testing.T, p *pool.Pool[In, Out], in In, done func(pool.Result[In, Out])) {
	t.Helper()
	if err := p.Submit(t.Context(), in, done); err != nil {
		t.Fatalf("submit %v: %v", in, err)
	}
}

// batch executes the jobs 0 to n-1.
func batch(t *testing.T, p *pool.Pool[int, int], n int) []result {
	t.Helper()
	ins := make([]int, n)
	for i := range ins {
		ins[i] = i
	}
	return execute(t, p, ins)
}

// executeMost is how long jobs may take, in virtual time. Without a limit jobs that an outage holds for ever would let
// the test hang: the probes keep its time going.
const executeMost = 7 * 24 * time.Hour

// execute executes jobs, and returns once the pool has counted them: its goroutine hands out the last result before it
// publishes the statistics.
func execute[In, Out any](t *testing.T, p *pool.Pool[In, Out], ins []In) []pool.Result[In, Out] {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), executeMost, fmt.Errorf("%d jobs have no result after %v", len(ins), executeMost))
	defer cancel()
	results, err := p.ExecuteBatch(ctx, ins)
	if err != nil {
		t.Fatalf("%v; the pool is held by %q", err, reasonOf(p.Stats()))
	}
	synctest.Wait()
	return results
}

// pause waits for d, or until ctx is cancelled, and returns whether it was.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return false
	case <-ctx.Done():
		return true
	}
}

// sleeper returns a call that takes d and answers with twice its input.
func sleeper(d time.Duration) call {
	return func(ctx context.Context, in int, _ pool.Attempt) (int, pool.Verdict) {
		if pause(ctx, d) {
			return 0, cancelled
		}
		return 2 * in, ok
	}
}

// script returns a call that takes a millisecond and answers a job's attempts with these verdicts, then with OK.
func script(verdicts ...pool.Verdict) call {
	return func(_ context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
		time.Sleep(ms)
		if a.Number <= len(verdicts) {
			return 0, verdicts[a.Number-1]
		}
		return 2 * in, ok
	}
}

// gauge knows how many calls are in flight, and the most there ever were.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.most = max(g.most, g.now)
}

func (g *gauge) watch(f call) call {
	return func(ctx context.Context, in int, a pool.Attempt) (int, pool.Verdict) {
		g.add(1)
		defer g.add(-1)
		return f(ctx, in, a)
	}
}

// spaced returns a law that keeps attempts that far apart, whatever their verdicts.
func spaced(t *testing.T, d time.Duration) pool.Law {
	t.Helper()
	law, err := aimd.NewClassic(aimd.Config{MinDelay: d, MaxDelay: d, Multiplier: 2})
	if err != nil {
		t.Fatal(err)
	}
	return law
}

// reasonOf returns what holds the pool; empty while it runs.
func reasonOf(s pool.Stats) string {
	if s.Pause.Err == nil {
		return ""
	}
	return s.Pause.Err.Error()
}
