package status

import (
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

func TestAReportOfTheLaneIsBounded(t *testing.T) {
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	var lanes []Lane
	for p := range 3 {
		l := Lane{Partition: p, Rows: map[LaneState]int{LaneSubmitted: 100}, Adopted: 1}
		for i := range laneBatchesMax {
			l.Batches = append(l.Batches, LaneBatch{Batch: fmt.Sprint(p, "-", i), State: LaneRunning, Since: now.Add(-time.Duration(i+p) * time.Minute)})
		}
		lanes = append(lanes, l)
	}
	sum := SumLanes(lanes, now)
	if sum.Open != 3*laneBatchesMax || len(sum.Batches) != laneBatchesMax || sum.Rows[LaneSubmitted] != 300 || sum.Adopted != 3 {
		t.Errorf("got %d open, %d listed, %v, %d adopted", sum.Open, len(sum.Batches), sum.Rows, sum.Adopted)
	}
	if first := sum.Batches[0]; first.Partition != 2 || first.AgeS != sum.OldestS || sum.OldestS != float64(60*(laneBatchesMax+1)) {
		t.Errorf("the oldest is not first: %+v, oldest %v s", first, sum.OldestS)
	}
	if lanes[1].Batches[0].Partition != 0 {
		t.Error("the lanes were changed")
	}
}

// A pause of one partition is not one of the lane.
func TestALaneIsPausedWhereAllItsPartitionsAre(t *testing.T) {
	const alice = "paused by alice@laptop"
	standby, working, paused := Lane{}, Lane{Owned: true}, Lane{Owned: true, Paused: alice}
	for _, tt := range []struct {
		lanes        []Lane
		paused, part string
	}{
		{[]Lane{standby, working, working}, "", ""},
		{[]Lane{standby, working, paused}, "", "1 of 2 partitions: " + alice},
		{[]Lane{standby, paused, paused}, alice, ""},
	} {
		if sum := SumLanes(tt.lanes, time.Now()); sum.Paused != tt.paused || sum.PartlyPaused != tt.part {
			t.Errorf("%+v: paused %q, partly %q", tt.lanes, sum.Paused, sum.PartlyPaused)
		}
	}
}

func TestAReportWithoutALaneHasNone(t *testing.T) {
	r := Report{}
	r.AddLanes(nil, time.Now())
	if r.Lane != nil {
		t.Errorf("got %+v", r.Lane)
	}
}

func TestTheLaneCountsWhatIsUnusual(t *testing.T) {
	var c LaneCounter
	for _, e := range []auditlog.Batch{
		{Phase: auditlog.BatchIntent},
		{Phase: auditlog.BatchSubmitted},
		{Phase: auditlog.BatchAdopted},
		{Phase: auditlog.BatchExpired, Lapsed: 300},
		{Phase: auditlog.BatchCancelled, Lapsed: 5},
		{Phase: auditlog.BatchEnded},
		{Phase: auditlog.BatchAbandoned, Lapsed: 7},
	} {
		c.Note(&e)
	}
	if adopted, lapsed := c.Counts(); adopted != 1 || lapsed != 305 {
		t.Errorf("got %d adopted, %d lapsed, want 1 and 305", adopted, lapsed)
	}
}
