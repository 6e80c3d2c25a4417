package app

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/consumer"
)

func TestStatusIsOneWordForAllThatIsGoingOn(t *testing.T) {
	started := epoch
	partition := func(role consumer.Role) partitionReport { return partitionReport{Role: string(role)} }
	for _, tt := range []struct {
		name    string
		report  statusReport
		starved time.Time
		want    stageState
		why     string
	}{
		{"nothing to do", statusReport{Ready: true, Partitions: []partitionReport{partition(consumer.Owner)}}, time.Time{}, stateIdle, ""},
		{"rows in the window", statusReport{Ready: true, Rows: rowsReport{Open: 1}, Partitions: []partitionReport{partition(consumer.Owner)}}, time.Time{}, stateWorking, ""},
		{"one partition of two", statusReport{Ready: true, Pool: poolReport{InFlight: 1}, Partitions: []partitionReport{partition(consumer.Standby), partition(consumer.Owner)}}, time.Time{}, stateWorking, ""},
		{"another owns all", statusReport{Ready: true, Partitions: []partitionReport{partition(consumer.Standby)}}, time.Time{}, stateStandby, ""},
		{"no owner yet", statusReport{Reason: "partition 0 is starting", Partitions: []partitionReport{partition(consumer.Starting)}}, time.Time{}, stateStarting, ""},
		{"all stopped", statusReport{Reason: "partition 0 is stopped", Partitions: []partitionReport{partition(consumer.Stopped)}}, time.Time{}, stateEnded, ""},
		{"audit full", statusReport{Reason: "audit: full", Partitions: []partitionReport{partition(consumer.Owner)}}, time.Time{}, stateHeld, "audit: full"},
		{"the start is held up", statusReport{Reason: "partition 0: no stream", Partitions: []partitionReport{{Role: string(consumer.Starting), Problem: "no stream"}}}, time.Time{}, stateHeld, "partition 0: no stream"},
		{"bad key", statusReport{Reason: "paused: bad key", Pool: poolReport{Paused: "bad key", PausedSince: &started}, Partitions: []partitionReport{partition(consumer.Owner)}}, time.Time{}, statePaused, "bad key"},
		{"asked to wait", statusReport{Ready: true, Pool: poolReport{Waiting: 3, LawPausedUntil: &started, LawPauseReason: aimd.PauseLimitReset}, Partitions: []partitionReport{partition(consumer.Owner)}}, time.Time{}, stateWaiting, "the provider said that no requests remain until its limit is renewed"},
		{"asked to wait, with nothing to ask", statusReport{Ready: true, Pool: poolReport{LawPausedUntil: &started}, Partitions: []partitionReport{partition(consumer.Owner)}}, time.Time{}, stateIdle, ""},
		{"only rejections", statusReport{Ready: true, Pool: poolReport{Waiting: 3}, Partitions: []partitionReport{partition(consumer.Owner)}}, started, stateStarved, "the provider has refused every call since its last answer"},
	} {
		r := tt.report
		r.judge(tt.starved)
		if r.State != tt.want || r.Why != tt.why {
			t.Errorf("%s: got %s %q, want %s %q", tt.name, r.State, r.Why, tt.want, tt.why)
		}
		if (r.Since != nil) != (tt.want == statePaused || tt.want == stateStarved) {
			t.Errorf("%s: since %v", tt.name, r.Since)
		}
	}
}
