package stage

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
	"github.com/nats-io/nats.go"
)

// batchLane is the batch lane of a partition, as its consumer, the executor and the pages
// know it.
type batchLane interface {
	consumer.Lane
	executor.Lane
	Status() lane.Status
	Use(nc *nats.Conn)
}

// batchLanes are the batch lanes of a stage. The zero value is that there is none.
type batchLanes struct {
	all     []batchLane          // by partition
	seen    []status.LaneCounter // by partition: what became of batches
	retries atomic.Uint64        // answers of batches for lack of capacity, which the pool does not count
}

// use has the lanes work over another connection.
func (l *batchLanes) use(nc *nats.Conn) {
	for _, lane := range l.all {
		lane.Use(nc)
	}
}

// addLanes creates the batch lane of each partition, where the configuration has one.
func (s *Stage) addLanes(opts Options) error {
	if !s.Cfg.LaneOn() {
		return nil
	}
	create := opts.lane
	if create == nil {
		create = (*Stage).newLane
	}
	s.lanes.seen = make([]status.LaneCounter, s.Cfg.Streams.Partitions)
	for p := range s.Cfg.Streams.Partitions {
		lane, err := create(s, p)
		if err != nil {
			return config.Invalid(fmt.Errorf("STAGE_LANE: %w", err))
		}
		s.lanes.all = append(s.lanes.all, lane)
	}
	s.executor.Lanes = func(partition int) executor.Lane { return s.lanes.all[partition] }
	return nil
}

// newLane returns the batch lane of a partition. It calls the first provider alone:
// fallbacks are for live calls.
func (s *Stage) newLane(partition int) (batchLane, error) {
	to := s.caller.At(0)
	api, err := batchapi.New(to.Client)
	if err != nil {
		return nil, err
	}
	return lane.New(lane.Config{
		NC: s.nc, Name: s.Cfg.Name, Partition: partition, Settings: s.Cfg.Lane,
		Provider: to.Provider(), API: api, Account: to.Fingerprint, Forgets: to.BuiltIn(),
		ProbeInterval: s.Cfg.Rows.FatalProbeInterval, ReloadKey: s.caller.ReloadKey,
		Record:  s.recordBatch,
		Reserve: s.ledger.Reserve, ReserveAgain: s.ledger.ReserveAgain, Settle: s.ledger.Settle, Exhausted: s.ledger.Exhausted,
		Read: func(model string, line *batchapi.Line) (*auditlog.Usage, *llm.Error) {
			return s.caller.ReadLine(model, line.Status, line.Body)
		},
		Unused:       func(u *lane.Unused, stored func()) { s.recordUnused(partition, u, stored) },
		Collect:      s.Cfg.LaneCollects(),
		FailFatal:    s.Cfg.Rows.OnFatal == "fail",
		Paused:       s.lanePaused,
		Halted:       func() error { return cmp.Or(s.steering.halted(partition), s.Conn.Full()) },
		CancelOnStop: func() bool { return s.opts.CancelBatches },
		Logger:       s.Log,
	})
}

// lanePaused ends a run that is to end at a fatal error of the provider, or at the
// ceiling, also where rows of the batch lane find it out. It must not block.
func (s *Stage) lanePaused(why error) {
	if !s.opts.ExitOnFatal && s.Cfg.Rows.OnFatal != "exit" {
		return
	}
	if !errors.Is(why, cost.ErrCeiling) {
		why = fmt.Errorf("fatal provider error: %w", why)
	}
	s.ending.stop(&FatalError{Err: why})
}

// recordBatch records a change in the life of a batch, and counts what alerts are about.
func (s *Stage) recordBatch(e *auditlog.Batch, again bool, stored func()) {
	e.RunID, e.Stage = s.runID, s.Cfg.Name
	s.recorder.RecordBatch(e, stored)
	if !again {
		s.lanes.seen[e.Partition].Note(e)
	}
}

// recordUnused records a reply in a batch that no row takes, and counts it like any other
// call.
func (s *Stage) recordUnused(partition int, u *lane.Unused, stored func()) {
	o, ok := s.caller.UnusedLine(u.Model, u.Line.Status, u.Line.Body, u.Line.ID, u.BatchID)
	if !ok {
		stored()
		return
	}
	e := o.Event
	e.Partition, e.Owner, e.Sequence = auditlog.Partition(partition), u.Owner, u.Seq
	e.StateID = auditlog.StateID(s.Cfg.Name, s.Cfg.Input.Stream, e.Partition, u.Seq)
	s.recorder.RecordCall(e, stored)
	s.caller.Count(o)
}

// status is what the pages show of the batch lanes at a provider, or nil.
func (l *batchLanes) status(provider string) []status.Lane {
	var lanes []status.Lane
	for p, lane := range l.all {
		st := lane.Status()
		adopted, lapsed := l.seen[p].Counts()
		shown := status.Lane{Partition: p, Adopted: adopted, Lapsed: lapsed, Paused: st.Paused, Problem: st.Problem, Retry: st.Retry, Rows: map[status.LaneState]int{
			status.LaneGathering: st.Rows.Gathering, status.LaneWaiting: st.Rows.Waiting, status.LaneSubmitted: st.Rows.Submitted,
			status.LaneAnswered: st.Rows.Answered, status.LaneLive: st.Rows.Live,
		}}
		for _, b := range st.Batches {
			shown.Batches = append(shown.Batches, status.LaneBatch{
				Partition: p, Batch: b.Token, BatchID: b.BatchID, Provider: provider, Model: b.Model, State: status.LaneState(b.State),
				Rows: b.Rows, Bytes: b.Bytes, Answered: b.Answered, Since: b.Since, Why: b.Problem,
			})
		}
		lanes = append(lanes, shown)
	}
	return lanes
}
