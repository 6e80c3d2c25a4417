package status

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/consumer"
)

func TestStatusIsOneWordForAllThatIsGoingOn(t *testing.T) {
	started := epoch
	partition := func(role consumer.Role) PartitionReport { return PartitionReport{Role: string(role)} }
	for _, tt := range []struct {
		name    string
		report  Report
		starved time.Time
		want    State
		why     string
	}{
		{"nothing to do", Report{Ready: true, Partitions: []PartitionReport{partition(consumer.Owner)}}, time.Time{}, StateIdle, ""},
		{"rows in the window", Report{Ready: true, Rows: rowsReport{Open: 1}, Partitions: []PartitionReport{partition(consumer.Owner)}}, time.Time{}, StateWorking, ""},
		{"one partition of two", Report{Ready: true, Pool: PoolReport{InFlight: 1}, Partitions: []PartitionReport{partition(consumer.Standby), partition(consumer.Owner)}}, time.Time{}, StateWorking, ""},
		{"another owns all", Report{Ready: true, Partitions: []PartitionReport{partition(consumer.Standby)}}, time.Time{}, StateStandby, "another replica owns the partitions, or no row has come yet"},
		{"no owner yet", Report{Reason: "partition 0 is starting", Partitions: []PartitionReport{partition(consumer.Starting)}}, time.Time{}, StateStarting, ""},
		{"all stopped", Report{Reason: "partition 0 is stopped", Partitions: []PartitionReport{partition(consumer.Stopped)}}, time.Time{}, StateEnded, ""},
		{"stopping", Report{Time: started, Reason: "stopping", Stop: &StopReport{Since: started, By: started.Add(90 * time.Second), Calls: 1, Results: 2}, Partitions: []PartitionReport{partition(consumer.Owner), partition(consumer.Stopped)}}, time.Time{}, StateStopping, "waiting for 1 call in flight and 2 results to store, at most 1m30s"},
		{"stopping while paused", Report{Time: started.Add(time.Minute), Pool: PoolReport{Paused: "bad key", PausedSince: &started}, Stop: &StopReport{Since: started, By: started.Add(time.Minute)}, Partitions: []PartitionReport{partition(consumer.Owner)}}, time.Time{}, StateStopping, "waiting for the last events to be stored"},
		{"all stopped after a stop", Report{Stop: &StopReport{Since: started}, Partitions: []PartitionReport{partition(consumer.Stopped)}}, time.Time{}, StateEnded, ""},
		{"audit full", Report{Reason: "audit: full", Partitions: []PartitionReport{partition(consumer.Owner)}}, time.Time{}, StateHeld, "audit: full"},
		{"the start is blocked", Report{Reason: "partition 0: no stream", Partitions: []PartitionReport{{Role: string(consumer.Starting), Problem: "no stream"}}}, time.Time{}, StateHeld, "partition 0: no stream"},
		{"bad key", Report{Reason: "paused: bad key", Pool: PoolReport{Paused: "bad key", PausedSince: &started}, Partitions: []PartitionReport{partition(consumer.Owner)}}, time.Time{}, StatePaused, "bad key"},
		{"asked to wait", Report{Ready: true, Pool: PoolReport{Waiting: 3, LawPausedUntil: &started, LawPauseReason: aimd.PauseLimitReset}, Partitions: []PartitionReport{partition(consumer.Owner)}}, time.Time{}, StateWaiting, "the provider reported that no requests remain until its limit resets"},
		{"asked to wait, with nothing to ask", Report{Ready: true, Pool: PoolReport{LawPausedUntil: &started}, Partitions: []PartitionReport{partition(consumer.Owner)}}, time.Time{}, StateIdle, ""},
		{"only rejections", Report{Ready: true, Pool: PoolReport{Waiting: 3}, Partitions: []PartitionReport{partition(consumer.Owner)}}, started, StateStarved, "the provider has rejected every call since its last answer"},
	} {
		r := tt.report
		r.Judge(tt.starved)
		if r.State != tt.want || r.Why != tt.why {
			t.Errorf("%s: got %s %q, want %s %q", tt.name, r.State, r.Why, tt.want, tt.why)
		}
		if (r.Since != nil) != (tt.want == StatePaused || tt.want == StateStarved || tt.want == StateStopping) {
			t.Errorf("%s: since %v", tt.name, r.Since)
		}
	}
}
