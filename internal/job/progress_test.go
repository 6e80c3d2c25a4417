package job

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/status"
)

func TestAPauseIsInTheProgressLine(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 4, 32, 0, time.UTC)
	next := now.Add(4 * time.Second)
	r := status.Report{Time: now, Pool: status.PoolReport{PauseReason: status.PauseOutage, NextProbe: &next}}
	if got, want := pauseProgress(&r), "PAUSED: outage, next probe in 4 s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
