//go:build long

package stage

import (
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
)

// What a stage that is paused, or has ended, does not use of a budget goes to the others.
func TestAStageThatIsPausedLeavesTheBudgetToTheOthers(t *testing.T) {
	for _, onFatal := range []string{"pause", "exit"} {
		t.Run(onFatal, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				const rpm = 120
				l := newLab(t, refusing("sk-revoked-key"), map[string]string{"STAGE_BUDGET": "team", "STAGE_LLM_RPM": fmt.Sprint(rpm)})
				l.load(times("q", 4*rpm)...)
				r := l.startSeveral(parallel(nil, map[string]string{"STAGE_LLM_API_KEY": "sk-revoked-key", "STAGE_ON_FATAL": onFatal})...)
				time.Sleep(30 * time.Second) // until the pause is known
				before := stagetest.Stored(t, l.js, "RESULTS", "results.first.0.rows")
				time.Sleep(2 * time.Minute)
				if n := stagetest.Stored(t, l.js, "RESULTS", "results.first.0.rows") - before; n < 2*rpm*9/10 || n > 2*rpm*11/10 {
					t.Errorf("%d rows in two minutes, want all of the budget, about %d", n, 2*rpm)
				}
				r.soft()
				if err := <-r.done; (err != nil) != (onFatal == "exit") {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}
