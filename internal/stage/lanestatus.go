package stage

import (
	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/status"
)

// noteBatch counts what an event of a batch says.
func (s *Stage) noteBatch(e *auditlog.Batch) { s.laneEvents.Note(e) }

// laneStatus returns what there is to see of the batch lanes; nil without any.
func (s *Stage) laneStatus() []status.Lane {
	var all []status.Lane
	for p, l := range s.lanes {
		shown := status.Lane{Partition: p}
		if l, ok := l.(interface{ Status() lane.Status }); ok {
			shown = newLaneStatus(p, s.Cfg.LLM.Provider, l.Status())
		}
		if p == 0 {
			shown.Adopted, shown.Lapsed = s.laneEvents.Counts()
		}
		all = append(all, shown)
	}
	return all
}

// newLaneStatus returns the lane of a partition as it is shown.
func newLaneStatus(partition int, provider string, s lane.Status) status.Lane {
	l := status.Lane{
		Partition: partition, Paused: s.Paused, Problem: s.Problem,
		Rows: map[status.LaneState]int{
			status.LaneGathering: s.Rows.Gathering, status.LaneWaiting: s.Rows.Waiting, status.LaneSubmitted: s.Rows.Submitted,
			status.LaneAnswered: s.Rows.Answered, status.LaneLive: s.Rows.Live,
		},
	}
	for i := range s.Batches {
		b := &s.Batches[i]
		l.Batches = append(l.Batches, status.LaneBatch{
			Batch: b.Token, BatchID: b.BatchID, Provider: provider, Model: b.Model, State: status.LaneState(b.State),
			Rows: b.Rows, Bytes: b.Bytes, Answered: b.Answered, Since: b.Since, Why: b.Problem,
		})
	}
	return l
}
