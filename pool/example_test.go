package pool_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

func Example() {
	// A server that has no room for the first call, and knows no answer to the last.
	shout := func(_ context.Context, word string, a pool.Attempt) (string, pool.Verdict) {
		switch {
		case word == "one" && a.Number == 1:
			return "", pool.Verdict{Class: pool.Capacity, Err: errors.New("429 too many requests")}
		case word == "":
			return "", pool.Verdict{Class: pool.Permanent, Err: errors.New("nothing to shout")}
		}
		return word + "!", pool.Verdict{}
	}
	law, err := aimd.NewClassic(aimd.Default())
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := pool.New(pool.Config{Size: 5, Law: law, Retry: pool.DefaultRetry()}, shout)
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
	p.Drain()
	fmt.Println(err, <-ended)
	// Output:
	// "one!" <nil>, attempts 1, capacity retries 1
	// "two!" <nil>, attempts 1, capacity retries 0
	// "" nothing to shout, attempts 1, capacity retries 0
	// <nil> <nil>
}
