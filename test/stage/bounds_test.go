package stage_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// blocked answers every call at once except the first, the head of the line, which takes longer than all the others.
func blocked(c llmtest.Call) *llmtest.Step {
	if c.Prompt == "Row 1" {
		return &llmtest.Step{Delay: 100 * time.Second}
	}
	return &llmtest.Step{Delay: 10 * time.Millisecond}
}

// metric reads one of the replica's metrics.
func (r *replica) metric(name string) int {
	r.t.Helper()
	_, text := r.get("/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v := stagetest.Value(strconv.ParseFloat(strings.TrimSpace(value), 64))(r.t)
			return int(v)
		}
	}
	r.t.Fatalf("no metric %s", name)
	return 0
}

// Rows that finish behind an unfinished head are held, with their results: bytes bound them, however many rows the
// window allows.
func TestABlockedHeadKeepsToTheWindowsBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const (
			rows        = 100
			rowBytes    = 16 << 10
			windowBytes = 1 << 20
		)
		s := newSite(t, llmtest.Config{Script: blocked})
		s.newInput()
		for n := range rows {
			s.publish(fmt.Sprintf(`{"n":%d,"text":%q}`, n+1, strings.Repeat("x", rowBytes)), nil)
		}
		r := s.start(vars{"STAGE_WINDOW": "1000", "STAGE_WINDOW_BYTES": strconv.Itoa(windowBytes)})
		time.Sleep(80 * time.Second)
		held, finished := r.metric(`llm_stage_window_rows{partition="0"}`), r.metric(`llm_stage_reorder_buffer_rows{partition="0"}`)
		if finished != held-1 {
			t.Errorf("%d of %d rows have finished, want all but the first", finished, held)
		}
		// Computed from the rows themselves, not from what the stage counts. A finished row counts twice, because its
		// result contains it.
		if bytes := 2 * finished * rowBytes; bytes > windowBytes || bytes < windowBytes*3/4 {
			t.Errorf("%d rows have finished and hold %d bytes of rows and results, want most of %d and no more", finished, bytes, windowBytes)
		}
		if counted := r.metric(`llm_stage_reorder_buffer_bytes{partition="0"}`); counted > windowBytes {
			t.Errorf("the stage counts %d bytes, want at most %d", counted, windowBytes)
		}
		s.await(rows)
		r.stop()
		s.verify()
	})
}
