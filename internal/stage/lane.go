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

// batchLane is the batch lane of a partition, with the methods that its consumer, the
// executor and the pages need.
type batchLane interface {
	consumer.Lane
	executor.Lane
	Status() lane.Status
	Use(nc *nats.Conn)
}

// batchLanes are the batch lanes of a stage, and what the lanes share. The zero value has
// no lane. Each lane is owned by the term of its partition; seen and retries are safe for
// concurrent use.
type batchLanes struct {
	all  []batchLane          // by partition
	seen []status.LaneCounter // counts of adopted and lapsed batches, by partition
	// retries counts answers of batches that were refused for lack of capacity. The pool
	// does not see them, and they belong in the summary.
	retries atomic.Uint64

	*view
	ledger *cost.Ledger
	exit   bool // a fatal error ends the run
	cancel bool // a stop cancels the batches at the provider
}

// use makes the lanes work over another connection.
func (l *batchLanes) use(nc *nats.Conn) {
	for _, lane := range l.all {
		lane.Use(nc)
	}
}

// open creates the batch lane of each partition, where the configuration has one.
func (l *batchLanes) open(create func(*batchLanes, int) (batchLane, error)) error {
	if !l.Cfg.LaneOn() {
		return nil
	}
	if create == nil {
		create = (*batchLanes).newLane
	}
	l.seen = make([]status.LaneCounter, l.Cfg.Streams.Partitions)
	for p := range l.Cfg.Streams.Partitions {
		lane, err := create(l, p)
		if err != nil {
			return config.Invalid(fmt.Errorf("STAGE_LANE: %w", err))
		}
		l.all = append(l.all, lane)
	}
	l.executor.Lanes = func(partition int) executor.Lane { return l.all[partition] }
	return nil
}

// newLane returns the batch lane of a partition. It calls the first provider alone:
// fallbacks are for live calls.
func (l *batchLanes) newLane(partition int) (batchLane, error) {
	to := l.caller.At(0)
	api, err := batchapi.New(to.Client)
	if err != nil {
		return nil, err
	}
	return lane.New(lane.Config{
		NC: l.Conn.NC(), Name: l.Cfg.Name, Partition: partition, Settings: l.Cfg.Lane,
		Provider: to.Provider(), API: api, Account: to.Fingerprint, Forgets: to.BuiltIn(),
		ProbeInterval: l.Cfg.Rows.FatalProbeInterval,
		ReloadKey:     func() error { _, err := l.caller.ReloadKey(); return err },
		Record:        l.recordBatch,
		Reserve:       l.ledger.Reserve,
		ReserveAgain:  l.ledger.ReserveAgain,
		Settle:        l.ledger.Settle,
		Exhausted:     l.ledger.Exhausted,
		Read: func(model string, line *batchapi.Line) (*auditlog.Usage, *llm.Error) {
			return l.caller.ReadLine(model, line.Status, line.Body)
		},
		Unused:       func(u *lane.Unused, stored func()) { l.recordUnused(partition, u, stored) },
		Collect:      l.Cfg.LaneCollects(),
		FailFatal:    l.Cfg.Rows.OnFatal == "fail",
		Paused:       l.lanePaused,
		Halted:       func() error { return cmp.Or(l.steering.halted(partition), l.Conn.Full()) },
		CancelOnStop: func() bool { return l.cancel },
		Logger:       l.Log,
	})
}

// lanePaused ends a run that must end at a fatal error of the provider or at the ceiling,
// where a row of the batch lane meets it first: the pool only sees live calls. It must
// not block.
func (l *batchLanes) lanePaused(why error) {
	if !l.exit {
		return
	}
	if !errors.Is(why, cost.ErrCeiling) {
		why = fmt.Errorf("fatal provider error: %w", why)
	}
	l.ending.stop(&FatalError{Err: why})
}

// recordBatch records a change in the life of a batch, and counts the changes that alerts
// are about. again says that the event was recorded before, by an earlier owner: it is
// not counted twice.
func (l *batchLanes) recordBatch(e *auditlog.Batch, again bool, stored func()) {
	e.RunID, e.Stage = l.runID, l.Cfg.Name
	l.recorder.RecordBatch(e, stored)
	if !again {
		l.seen[e.Partition].Note(e)
	}
}

// recordUnused records a reply in a batch that no row takes, for example because its row
// was called live at its deadline. It is billed, so it counts like any other call. A line
// whose model can't be one makes no event, and stored is called at once.
func (l *batchLanes) recordUnused(partition int, u *lane.Unused, stored func()) {
	o, ok := l.caller.UnusedLine(u.Model, u.Line.Status, u.Line.Body, u.Line.ID, u.BatchID)
	if !ok {
		stored()
		return
	}
	e := o.Event
	e.Partition, e.Owner, e.Sequence = auditlog.Partition(partition), u.Owner, u.Seq
	e.StateID = auditlog.StateID(l.Cfg.Name, l.Cfg.Input.Stream, e.Partition, u.Seq)
	l.recorder.RecordCall(e, stored)
	l.caller.Count(o)
}

// status returns the batch lanes at a provider as pages show them, or nil without lanes.
func (l *batchLanes) status(provider string) []status.Lane {
	var lanes []status.Lane
	for p, lane := range l.all {
		st := lane.Status()
		adopted, lapsed := l.seen[p].Counts()
		shown := status.Lane{
			Partition: p, Owned: st.Owned, Adopted: adopted, Lapsed: lapsed,
			Paused: st.Paused, Problem: st.Problem, Retry: st.Retry, Rows: map[status.LaneState]int{
				status.LaneGathering: st.Rows.Gathering, status.LaneWaiting: st.Rows.Waiting,
				status.LaneSubmitted: st.Rows.Submitted,
				status.LaneAnswered:  st.Rows.Answered, status.LaneLive: st.Rows.Live,
			},
		}
		for _, b := range st.Batches {
			shown.Batches = append(shown.Batches, status.LaneBatch{
				Partition: p, Batch: b.Token, BatchID: b.BatchID, Provider: provider,
				Model: b.Model, State: status.LaneState(b.State),
				Rows: b.Rows, Bytes: b.Bytes, Answered: b.Answered, Since: b.Since, Why: b.Problem,
			})
		}
		lanes = append(lanes, shown)
	}
	return lanes
}
