package job

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/status"
)

func TestAStopIsInTheProgressLine(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 4, 32, 0, time.UTC)
	for left, want := range map[time.Duration]string{130 * time.Second: "2m10s", -time.Second: "0s"} {
		r := status.Report{Time: now, Stop: &status.StopReport{By: now.Add(left), Calls: 3, Results: 5}}
		if got, want := stopProgress(&r), "STOPPING: 3 in flight, 5 to store, at most "+want; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAPauseIsInTheProgressLine(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 4, 32, 0, time.UTC)
	next := now.Add(4 * time.Second)
	r := status.Report{Time: now, Pool: status.PoolReport{PauseReason: status.PauseOutage, NextProbe: &next}}
	if got, want := pauseProgress(&r), "PAUSED: outage, next probe in 4 s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
