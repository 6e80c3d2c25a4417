package pool_test

import (
	"context"
	"fmt"

	"github.com/llm-stage/stage/pool"
)

func ExamplePool_ExecuteBatch() {
	p, err := pool.New(pool.Config{Size: 5, Retry: pool.DefaultRetry()}, shout)
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error)
	go func() { ended <- p.Run(context.Background()) }()

	results, err := p.ExecuteBatch(context.Background(), []string{"one", "two", ""})
	for _, r := range results {
		fmt.Printf("%q %v, attempts %d, capacity retries %d\n", r.Out, r.Err, r.Attempts, r.CapacityRetries)
	}
	p.Finish()
	fmt.Println(err, <-ended)
	// Output:
	// "one!" <nil>, attempts 1, capacity retries 1
	// "two!" <nil>, attempts 1, capacity retries 0
	// "" nothing to shout, attempts 1, capacity retries 0
	// <nil> <nil>
}
