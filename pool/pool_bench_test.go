package pool_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/llm-stage/stage/pool"
)

// BenchmarkPool measures what the pool adds to a call that takes no time.
func BenchmarkPool(b *testing.B) {
	instant := func(_ context.Context, in int, _ pool.Attempt) (int, pool.Verdict) { return in, pool.Verdict{} }
	for _, size := range []int{1, 16, 64, 512} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			p, err := pool.New(pool.Config{Size: size, Retry: pool.DefaultRetry()}, instant)
			if err != nil {
				b.Fatal(err)
			}
			ended := make(chan error)
			go func() { ended <- p.Run(b.Context()) }()
			var open sync.WaitGroup
			done := func(pool.Result[int, int]) { open.Done() }
			b.ReportAllocs()
			for b.Loop() {
				open.Add(1)
				if err := p.Submit(b.Context(), 1, done); err != nil {
					b.Fatal(err)
				}
			}
			open.Wait()
			p.Drain()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}
