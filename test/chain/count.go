package chain

import (
	"fmt"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// Counter is the script of the LLM for a chain: it counts the attempts of each call. Make
// it with [NewCounter]. It is safe for concurrent use.
type Counter struct {
	pipeline Pipeline
	slow     time.Duration

	mu       sync.Mutex
	attempts map[Ask]int
	failed   int // attempts that failed as they should, so that another is made
	wrong    []string
	moved    chan struct{}
}

// NewCounter returns a counter; slow is how long a slow call takes.
func NewCounter(p Pipeline, slow time.Duration) *Counter {
	return &Counter{pipeline: p, slow: slow, attempts: make(map[Ask]int), moved: make(chan struct{})}
}

// wrongKept is how many prompts of no row are kept.
const wrongKept = 5

// Script implements [llmtest.Config.Script].
func (c *Counter) Script(call llmtest.Call) *llmtest.Step {
	ask, err := Parse(call.Prompt)
	if err == nil && c.pipeline.Row(ask.N).Prompts[ask] != call.Prompt {
		err = fmt.Errorf("%+v was asked with another prompt: %.300s", ask, call.Prompt)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && len(c.wrong) < wrongKept {
		c.wrong = append(c.wrong, err.Error())
	}
	c.attempts[ask]++
	first := c.attempts[ask] == 1
	if first {
		close(c.moved)
		c.moved = make(chan struct{})
		if c.pipeline.Fails(ask) != 0 {
			c.failed++
		}
	}
	return c.pipeline.Step(ask, first, c.slow)
}

// Asked is how many different calls were made so far, and a channel that is closed when
// there are more.
func (c *Counter) Asked() (n int, more <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.attempts), c.moved
}

// Paid is how many attempts were made, how many of them beyond one for each call and one
// more for each that failed, and the first prompts that are those of no row.
func (c *Counter) Paid() (attempts, again int, wrong []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.attempts {
		attempts += n
	}
	return attempts, attempts - len(c.attempts) - c.failed, c.wrong
}
