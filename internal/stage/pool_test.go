package stage

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/pool"
)

// One call in five is refused. To a stage that is alone the refusals are random and it keeps its pool full; while other
// replicas are known they may be theirs, and it yields, and once they are gone it no longer does.
func TestAStageYieldsToItsOtherReplicas(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		cfg, err := config.Source{Environ: map[string]string{
			"STAGE_NAME": "s", "STAGE_TEMPLATE": "{{ row }}", "STAGE_LLM_PROVIDER": "mock", "STAGE_POOL_SIZE": "32",
		}}.Load(t.Context(), config.NeedCalls)
		if err != nil {
			t.Fatal(err)
		}
		s := &Stage{view: view{Cfg: cfg}}
		made := stagetest.Value(s.newLaw())(t)
		law, ok := made.(*replicaLaw)
		if !ok || law.others() != 0 {
			t.Fatalf("the law of a stage without spread is %T", made)
		}
		var others, calls, done atomic.Int64
		law.others = func() int { return int(others.Load()) }
		p, err := pool.New(pool.Config{Size: 32, Law: law, Retry: pool.DefaultRetry()}, func(ctx context.Context, _ int, _ pool.Attempt) (int, pool.Verdict) {
			refused := rand.New(rand.NewPCG(uint64(calls.Add(1)), 0)).IntN(5) == 0 //nolint:gosec // a count
			wait := time.Second
			if refused {
				wait = 60 * time.Millisecond
			}
			select {
			case <-ctx.Done():
				return 0, pool.Verdict{Class: pool.Cancelled, Err: ctx.Err()}
			case <-time.After(wait):
			}
			if refused {
				return 0, pool.Verdict{Class: pool.Capacity, Err: errors.New("429")}
			}
			done.Add(1)
			return 0, pool.Verdict{}
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = p.Run(ctx) // ends by the cancellation
		}()
		go func() {
			var err error
			for row := 0; err == nil; row++ {
				err = p.Submit(ctx, row, func(pool.Result[int, int]) {})
			}
		}()
		perSec := func() float64 {
			time.Sleep(10 * time.Minute) // to find out
			before := done.Load()
			time.Sleep(time.Minute)
			return float64(done.Load()-before) / 60
		}
		alone := perSec()
		others.Store(1)
		known := perSec()
		others.Store(0)
		again := perSec()
		if alone < 25 || known > alone/2 || again < 25 {
			t.Errorf("%.1f calls a second alone, %.1f beside others, %.1f alone again; want about 30, less than half, 30", alone, known, again)
		}
		cancel()
		<-ended
	})
}
