package job

import (
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
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
	r := status.Report{Time: now, Pool: status.PoolReport{PauseReason: hold.Outage, NextProbe: &next}}
	if got, want := pauseProgress(&r), "PAUSED: outage, next probe in 4 s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheProgressLineBeginsWithWhatMatters(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 4, 32, 0, time.UTC)
	next, tokens := now.Add(4*time.Second), int64(900)
	busy := status.Report{Time: now, Pool: status.PoolReport{InFlight: 8, DelayMS: 40, CapacityRetries: 3}}
	busy.Usage.TotalTokens = &tokens
	paused, asked, stopping := busy, busy, busy
	paused.Pool.Paused, paused.Pool.PauseReason, paused.Pool.NextProbe = "outage", hold.Outage, &next
	asked.Pool.LawPausedUntil = &next
	stopping.Stop = &status.StopReport{By: next, Calls: 8}
	for _, tt := range []struct {
		name        string
		r           status.Report
		done, total int64
		short       bool
		first, more string
	}{
		{"busy", busy, 100, 720, false, "10.0 rows/s|ETA 1m2s", "8 in flight|delay 40 ms|3 retries|900 tokens"},
		{"busy for hours", busy, 100, 100_000, false, "10.0 rows/s|ETA 2h47m", "8 in flight|delay 40 ms|3 retries|900 tokens"},
		{"narrow", busy, 100, 720, true, "10.0/s|ETA 1m2s", "8 in flight|delay 40 ms|3 retries|900 tokens"},
		{"of unknown length", busy, 100, 0, false, "10.0 rows/s", "8 in flight|delay 40 ms|3 retries|900 tokens"},
		{"before the first row", busy, 0, 720, false, "0.0 rows/s", "8 in flight|delay 40 ms|3 retries|900 tokens"},
		{"done", busy, 720, 720, false, "72.0 rows/s", "8 in flight|delay 40 ms|3 retries|900 tokens"},
		{"paused", paused, 100, 720, false, "PAUSED: outage, next probe in 4 s|10.0 rows/s", "8 in flight|delay 40 ms|3 retries|900 tokens"},
		{"asked to wait", asked, 100, 720, false, "10.0 rows/s|provider asked to wait 4.00 s", "8 in flight|delay 40 ms|3 retries|900 tokens"},
		{"stopping", stopping, 100, 720, false, "STOPPING: 8 in flight, 0 to store, at most 4s", ""},
	} {
		tt.r.Rows.Succeeded = uint64(tt.done) //nolint:gosec // small
		got := progressLine(&tt.r, tt.done, tt.total, 10*time.Second, tt.short)
		if first, more := strings.Join(got.First, "|"), strings.Join(got.More, "|"); first != tt.first || more != tt.more {
			t.Errorf("%s:\ngot  %s, then %s\nwant %s, then %s", tt.name, first, more, tt.first, tt.more)
		}
	}
	busy.Rows.Succeeded = 50
	if got := progressLine(&busy, 600, 720, 10*time.Second, false).First; strings.Join(got, "|") != "5.0 rows/s|ETA 24s" {
		t.Errorf("resumed: got %q", got)
	}
}
