package stage

import (
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
)

func TestEveryStateOfABatchIsShown(t *testing.T) {
	for _, state := range lane.States() {
		if !slices.Contains(status.LaneBatchStates, status.LaneState(state)) {
			t.Errorf("a batch may be %s, of which status and metrics know nothing", state)
		}
	}
	if len(lane.States()) != len(status.LaneBatchStates) {
		t.Errorf("status and metrics know %v, a lane %v", status.LaneBatchStates, lane.States())
	}
}

// shownLane is a lane that has only a status.
type shownLane struct {
	batchLane
	status lane.Status
}

func (l shownLane) Status() lane.Status { return l.status }

func TestTheStatusHasTheLanesOfAllPartitions(t *testing.T) {
	s := &Stage{view: view{Cfg: stagetest.Config(t, "STAGE_LLM_PROVIDER", "mock")}}
	if got := s.lanes.status(s.Cfg.LLM.Provider); got != nil {
		t.Errorf("without a lane: got %+v", got)
	}
	since := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	s.lanes.all = []batchLane{
		shownLane{status: lane.Status{
			Owned: true, Paused: "no credit", Rows: lane.RowStatus{Gathering: 1, Waiting: 2, Submitted: 3, Answered: 4, Live: 5},
			Batches: []lane.BatchStatus{{Token: "t", BatchID: "b", Model: "m", State: lane.StateLooking, Rows: 3, Bytes: 9, Answered: -1, Since: since, Problem: "slow"}},
		}},
		shownLane{status: lane.Status{Problem: "no stream"}},
	}
	s.lanes.seen = make([]status.LaneCounter, 2)
	s.lanes.seen[0].Note(&auditlog.Batch{Phase: auditlog.BatchAdopted})
	sum := status.SumLanes(s.lanes.status(s.Cfg.LLM.Provider), since.Add(time.Minute))
	if sum.Paused != "no credit" || sum.Problem != "no stream" || sum.Adopted != 1 || sum.OldestS != 60 || len(sum.Batches) != 1 {
		t.Fatalf("got %+v", sum)
	}
	b := sum.Batches[0]
	if b.Batch != "t" || b.BatchID != "b" || b.Provider != "mock" || b.State != status.LaneLooking || b.Answered != -1 || b.Why != "slow" {
		t.Errorf("got %+v", b)
	}
	for i, state := range status.LaneRowStates {
		if sum.Rows[state] != i+1 {
			t.Errorf("%d rows are %s, want %d", sum.Rows[state], state, i+1)
		}
	}
}
