package stage

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/stagetest"
)

// Of each row that has no result one kind says why, wherever it is: not yet taken, before the executor, in the queue,
// behind an equal row, in the pool, in flight, or answered behind another.
func TestARowThatWaitsSaysWhy(t *testing.T) {
	slow := llmtest.Config{Latency: 3 * time.Hour}
	firstSlow := llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if c.Prompt == "slow" {
			return &llmtest.Step{Delay: 3 * time.Hour}
		}
		return nil
	}}
	patient := func(vars ...string) map[string]string {
		all := map[string]string{"STAGE_LLM_TIMEOUT": "4h", "STAGE_STOP_TIMEOUT": "5h"}
		for i := 0; i < len(vars); i += 2 {
			all[vars[i]] = vars[i+1]
		}
		return all
	}
	for name, tt := range map[string]struct {
		llm  llmtest.Config
		vars map[string]string
		rows []string
		seq  uint64
		kind hold.Kind
		by   string
		do   string // a part of what to do
	}{
		"its call is in flight":     {slow, patient(), []string{"a"}, 1, hold.Call, "openai", "STAGE_LLM_TIMEOUT"},
		"every slot is taken":       {slow, patient("STAGE_POOL_SIZE", "2"), []string{"a", "b", "c"}, 3, hold.Slots, "", "STAGE_POOL_SIZE"},
		"an equal row is called":    {slow, patient("STAGE_DEDUPE", "inflight"), []string{"a", "b", "a"}, 3, hold.Shared, "row 1", "by itself"},
		"an earlier row is called":  {firstSlow, patient(), []string{"slow", "b", "c"}, 3, hold.Order, "row 1", "stage tail --row 1"},
		"the window is full":        {slow, patient("STAGE_WINDOW", "2"), []string{"a", "b", "c"}, 3, hold.Pending, "rows", "order of the stream"},
		"a limit per minute":        {llmtest.Config{}, patient("STAGE_LLM_RPM", "1", "STAGE_POOL_SIZE", "2"), []string{"a", "b", "c", "d", "e"}, 5, hold.Limit, "calls per minute", "STAGE_LLM_RPM"},
		"a bad key":                 {llmtest.Config{Errors: map[int]float64{401: 1}}, patient(), []string{"a", "b"}, 2, hold.Credentials, "openai", "correct the key"},
		"an outage":                 {llmtest.Config{Errors: map[int]float64{500: 1}}, patient(), []string{"a", "b", "c", "d", "e", "f"}, 6, hold.Outage, "openai", "status page"},
		"no capacity":               {llmtest.Config{Errors: map[int]float64{429: 1}, RetryAfter: time.Hour}, patient(), []string{"a"}, 1, hold.Capacity, "openai", "STAGE_ROW_TIMEOUT"},
		"an operator, a partition":  {llmtest.Config{}, patient("STAGE_CONTROL", "true"), []string{"a"}, 2, hold.Operator, "paused by alice", "stage resume"},
		"a row that has its result": {llmtest.Config{}, patient(), []string{"a"}, 1, "", "", ""},
		"a row that does not exist": {llmtest.Config{}, patient(), []string{"a"}, 9, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, tt.llm, tt.vars)
				l.load(tt.rows...)
				r := l.start(nil, Options{})
				if tt.kind == hold.Operator {
					l.await(1)
					r.steering.carryOut(t.Context(), &control.Order{Verb: control.Pause, Partition: new(0), By: control.By{User: "alice"}})
					l.load("b")
				}
				time.Sleep(90 * time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				h := r.RowHold(ctx, tt.seq)
				if tt.kind == "" {
					if h != nil {
						t.Errorf("got %+v, want nothing", h)
					}
				} else if h == nil || h.Scope != hold.Row || h.Name != hold.RowName(tt.seq) || h.Kind != tt.kind || !strings.HasPrefix(h.By, tt.by) || tt.by == "" && h.By != "" || !strings.Contains(h.Do, tt.do) {
					t.Errorf("got  %+v\nwant %s by %q, to do %q", h, tt.kind, tt.by, tt.do)
				}
				r.hard()
			})
		})
	}
}
