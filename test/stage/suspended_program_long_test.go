//go:build long

package stage_test

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// A process that was suspended makes no call until it has read the log: rows whose next attempt is due are handed back
// and started again, in the same term. The audit counts their calls from before.
func TestRowsStartedAgainKeepTheirAttempts(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	calls := make(map[int]int)
	o := newOut(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		mu.Lock()
		defer mu.Unlock()
		row := promptRow(c.Prompt)
		if calls[row]++; row%4 == 0 && calls[row] == 1 {
			return &llmtest.Step{Status: 500}
		}
		return nil
	}}, vars{"STAGE_RETRY_BASE_DELAY": "2s"})
	p := o.process()
	o.answered(o.rows / 2)
	p.signal(syscall.SIGSTOP)
	<-time.After(2 * time.Second) // all retries are due, and the process is in doubt about its ownership
	p.signal(syscall.SIGCONT)
	o.complete(p)
	o.verify()
}
