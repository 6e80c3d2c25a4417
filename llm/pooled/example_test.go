package pooled_test

import (
	"context"
	"fmt"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
)

// Every prompt is answered, although the server refuses the first calls.
func Example() {
	server, err := llmtest.New(llmtest.Config{Script: llmtest.Steps(
		llmtest.Step{Status: 429}, llmtest.Step{Status: 503},
	)})
	if err != nil {
		fmt.Println(err)
		return
	}
	pipe, stop := server.Pipe()
	defer stop()
	client, err := llm.NewProvider(llm.Mock, llm.ProviderConfig{BaseURL: pipe.URL(), DialContext: pipe.DialContext})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	law, err := aimd.NewAdaptive(aimd.DefaultAdaptive(4))
	if err != nil {
		fmt.Println(err)
		return
	}
	call := func(ctx context.Context, p *llm.Prepared, _ pool.Attempt) (*llm.Reply, pool.Verdict) {
		x, err := client.Do(ctx, p)
		return x.Reply, pooled.Verdict(x, err)
	}
	calls, err := pool.New(pool.Config{Size: 4, Law: law, Retry: pool.DefaultRetry()}, call)
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error)
	go func() { ended <- calls.Run(context.Background()) }()

	var prompts []*llm.Prepared
	for _, text := range []string{"Say hello.", "Say goodbye."} {
		p, err := client.Prepare(&llm.Request{Prompt: text})
		if err != nil {
			fmt.Println(err)
			return
		}
		prompts = append(prompts, p)
	}
	results, err := calls.ExecuteBatch(context.Background(), prompts)
	for _, r := range results {
		fmt.Println(r.Out.Text, r.Err)
	}
	calls.Finish()
	fmt.Println(err, <-ended)
	// Output:
	// Answer fc8a6122 to: Say hello. <nil>
	// Answer daa778b7 to: Say goodbye. <nil>
	// <nil> <nil>
}
