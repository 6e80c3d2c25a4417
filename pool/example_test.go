package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool"
)

// shout is a server that has no room for the first call, and knows no answer to the empty word.
func shout(_ context.Context, word string, a pool.Attempt) (string, pool.Verdict) {
	switch {
	case word == "one" && a.Number == 1:
		return "", pool.Verdict{Class: pool.Capacity, Err: errors.New("429 too many requests")}
	case word == "":
		return "", pool.Verdict{Class: pool.Permanent, Err: errors.New("nothing to shout")}
	}
	return word + "!", pool.Verdict{}
}

// A whole job: every word is shouted, whatever the server refuses meanwhile.
func Example() {
	law, err := aimd.NewAdaptive(aimd.DefaultAdaptive(5))
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := pool.New(pool.Config{Size: 5, Law: law, Retry: pool.DefaultRetry()}, shout)
	if err != nil {
		fmt.Println(err)
		return
	}
	var lines []string
	go func() {
		for _, word := range []string{"one", "two", ""} {
			err := p.Submit(context.Background(), word, func(r pool.Result[string, string]) {
				lines = append(lines, fmt.Sprintf("%q: %q, %v", r.In, r.Out, r.Err))
			})
			if err != nil {
				fmt.Println(err)
			}
		}
		p.Finish()
	}()
	if err := p.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	slices.Sort(lines) // they are in the order in which they were done
	for _, line := range lines {
		fmt.Println(line)
	}
	// Output:
	// "": "", nothing to shout
	// "one": "one!", <nil>
	// "two": "two!", <nil>
}
