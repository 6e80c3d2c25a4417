package stage

import (
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/stagetest"
)

func TestThePauseOfAPartitionIsAMetric(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: 100 * time.Millisecond}, map[string]string{"STAGE_CONTROL": "true"})
		l.load("q")
		r := l.start(nil, Options{})
		l.await(1) // it owns the partition with its first row
		ask := func(verb control.Verb) {
			if outcome, text := r.steering.carryOut(t.Context(), &control.Order{Verb: verb, Partition: new(0)}); outcome != control.Done {
				t.Errorf("%s: %s: %s", verb, outcome, text)
			}
		}
		shows := func(want ...string) {
			t.Helper()
			page := r.page()
			if got := stagetest.Lines(page, "llm_stage_partition_paused{"); !slices.Equal(got, want) {
				t.Errorf("metrics: %q, want %q", got, want)
			}
		}
		shows(`llm_stage_partition_paused{partition="0"} 0`)
		ask(control.Pause)
		shows(`llm_stage_partition_paused{partition="0"} 1`)
		ask(control.Resume)
		shows(`llm_stage_partition_paused{partition="0"} 0`)
		r.stop()
	})
}
