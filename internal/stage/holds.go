package stage

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/ops/tail"
)

// holdMemory remembers since when holds last. Safe for concurrent use.
type holdMemory struct {
	mu     sync.Mutex
	memory hold.Memory
}

func (m *holdMemory) fill(l hold.List, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.memory.Fill(l, now)
}

// snapshot returns what gauges and pages show, with all holds.
func (s *Stage) snapshot() status.Snapshot {
	now := time.Now()
	snap := s.look(s.consumers...)
	snap.Budgets, snap.Lanes = s.sharing.all(), s.lanes.status(s.Cfg.LLM.Provider)
	if calls := s.caller.InFlight(); len(calls) > 0 {
		snap.OldestCall = calls[0].Since
	}
	snap.Collect(now)
	s.lasting.fill(snap.Holds, now)
	return snap
}

// gauges returns what the metrics show: the snapshot, with the row that answered rows wait
// for, which the report finds.
func (s *Stage) gauges() status.Snapshot {
	snap := s.snapshot()
	r := s.report(snap, time.Now())
	if late := r.Holds.First(func(h *hold.Hold) bool { return h.Kind == hold.Order }); late != nil {
		snap.Holds = append(snap.Holds, *late)
	}
	return snap
}

// look returns the state of the pool, of the process and of these partitions.
func (s *Stage) look(consumers ...*consumer.Consumer) status.Snapshot {
	snap := status.Snapshot{Pool: s.executor.Pool.Stats(), Process: s.process(time.Now())}
	for _, c := range consumers {
		st := s.partition(c)
		if _, vacant := s.stalls.of(st.Partition); vacant {
			snap.Process.Vacant[st.Partition] = true
		}
		snap.Partitions = append(snap.Partitions, st)
	}
	return snap
}

// process returns what makes all rows of the process wait.
func (s *Stage) process(now time.Time) status.Process {
	p := status.Process{
		Ended: s.endedBy(), Stop: s.stopReport(), Down: s.Conn.Down(), Audit: s.recorder.Problem(), Drained: s.steering.drained(),
		Starved: s.activity.StarvedSince(now), Rows: s.rowsOfAPause(), Vacant: make(map[int]bool),
		Server: func(index int) string { return s.caller.At(index).Provider() },
	}
	if why := s.Conn.Full(); why != nil {
		p.Full = why.Error()
	}
	if err := s.inspector.Verdict(); err != nil {
		p.Streams = config.Explain(err)
	}
	p.Pauses, p.Drains = s.steering.wishes()
	return p
}

// ready reports whether the stage is connected, owning or standing by, and neither
// stopping nor paused; if not, why.
func (s *Stage) ready() (ok bool, reason string) {
	snap := s.snapshot()
	return snap.Ready(time.Now())
}

// partition returns the status of a partition, with the finding of the watch where
// nothing else is known to block it.
func (s *Stage) partition(c *consumer.Consumer) consumer.Status {
	st := c.Status()
	if st.Problem != "" {
		return st
	}
	if st.Problem, _ = s.stalls.of(st.Partition); st.Problem != "" {
		h := hold.OfPartition(st.Partition, hold.Stalled)
		h.Why = st.Problem
		st.Holds = append([]hold.Hold{h}, st.Holds...)
	}
	return st
}

// RowHold returns why a row of the input stream has no result yet. It returns nil for a row
// that has its result, and for one that another replica knows more of. It waits for the
// parts that have the row, or until ctx ends.
func (s *Stage) RowHold(ctx context.Context, seq uint64) *hold.Hold {
	_, h := s.rowHold(ctx, seq)
	return h
}

// rowHold is RowHold with the row's partition.
//
// Only the consumer of that partition can say where the row is: another takes the row for
// one that it has yet to come to, or has emitted. So with several partitions the input
// stream is asked for the row's subject first. Where it does not answer, each consumer is
// asked, and believed if it has the row.
func (s *Stage) rowHold(ctx context.Context, seq uint64) (partition int, h *hold.Hold) {
	if len(s.consumers) == 1 {
		return 0, s.rowHoldOf(ctx, seq, s.consumers[0])
	}
	at, err := s.whereIs(ctx, seq)
	if err == nil && at >= 0 {
		return at, s.rowHoldOf(ctx, seq, s.consumers[at])
	}
	for p, c := range s.consumers {
		if h := c.RowHold(ctx, seq); h != nil && h.Kind != hold.Pending {
			s.explain(h, c)
			return p, h
		}
	}
	return 0, s.unownedHold(seq, s.consumers...)
}

// rowHoldOf is rowHold for a row that is in the consumer's partition, if it exists.
func (s *Stage) rowHoldOf(ctx context.Context, seq uint64, c *consumer.Consumer) *hold.Hold {
	h := c.RowHold(ctx, seq)
	switch {
	case h == nil:
		return s.unownedHold(seq, c)
	case h.Kind == hold.Pending && len(s.consumers) == 1:
		at, err := s.whereIs(ctx, seq)
		if err == nil && at < 0 || err != nil && c.Status().Pending == 0 {
			return nil // there is no such row
		}
	}
	s.explain(h, c)
	return h
}

// whereIs asks the input stream for a row, and returns its partition; -1 means that there
// is no such row. Half of the time that ctx leaves is kept for the parts that may have
// the row.
func (s *Stage) whereIs(ctx context.Context, seq uint64) (partition int, err error) {
	if until, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(until)/2)
		defer cancel()
	}
	m, err := streams.MessageAt(ctx, s.Conn.NC(), s.Cfg.Input.Stream, seq)
	if err != nil || m == nil {
		return -1, err
	}
	if len(s.consumers) == 1 {
		return 0, nil
	}
	partition, ok := tail.PartitionOf(s.Cfg, m.Subject)
	if !ok || partition < 0 || partition >= len(s.consumers) {
		return -1, nil // of another stage
	}
	return partition, nil
}

// unownedHold is why a row of one of these partitions waits while this replica owns none
// of them: what keeps it from that, unless another replica serves them, which then knows
// where the row is.
func (s *Stage) unownedHold(seq uint64, of ...*consumer.Consumer) *hold.Hold {
	snap := s.look(of...)
	known := func(p consumer.Status) bool { // its owner knows, here or elsewhere
		return p.Role == consumer.Owner || p.Role == consumer.Standby && !p.Taking && p.Problem == "" || p.HighWaterMark >= seq
	}
	if slices.ContainsFunc(snap.Partitions, known) {
		return nil
	}
	snap.Collect(time.Now())
	why := snap.Holds.First(func(h *hold.Hold) bool {
		return h.Scope == hold.Stage || h.Scope == hold.Partition && h.Kind != hold.Standby && len(of) == 1
	})
	if why == nil {
		return nil
	}
	h := *why
	h.Scope, h.Name = hold.Row, hold.RowName(seq)
	h.Advise(s.places())
	return &h
}

// explain completes the hold on a row with what the whole stage knows of the reason.
func (s *Stage) explain(h *hold.Hold, c *consumer.Consumer) {
	snap := s.look(c)
	snap.Lanes = s.lanes.status(s.Cfg.LLM.Provider)
	snap.Collect(time.Now())
	listed := func(kind hold.Kind) *hold.Hold {
		return snap.Holds.First(func(o *hold.Hold) bool { return o.Kind == kind })
	}
	all := listed(h.Kind)
	switch {
	case h.Class() == hold.Paused && snap.Holds.Paused() != nil: // the pool knows less of the reason
		all = snap.Holds.Paused()
	case h.Kind == hold.Pending: // and why the server delivers none
		all = listed(hold.Undelivered)
	case h.Kind == hold.Storing && s.recorder.Refused() && h.By != "its result": // nor its events
		all = listed(hold.Audit)
	}
	switch row := *h; {
	case all != nil && h.Kind != hold.Window:
		*h = *all
		h.Scope, h.Name = row.Scope, row.Name
	case h.Kind == hold.Batch && listed(hold.Lane) != nil:
		h.Why, h.Next = listed(hold.Lane).Why, listed(hold.Lane).Next
	case h.Kind == hold.Other: // a fallback is left out, for a reason that has a name
		h.Kind = status.FatalKind(h.Err)
	case h.Kind == hold.Throttle, h.Kind == hold.Limit:
		s.sharing.explain(h)
	}
	h.Advise(s.places())
}

// explain gives the throttle or a limit, where others share it, the name of the budget.
// What this process may do is its part of the whole then. A process that is alone in the
// budget goes by its own throttle and limits, and has nobody to wait for.
func (s *sharing) explain(h *hold.Hold) {
	for _, b := range s.all() {
		if b.Mode != status.BudgetAlone && b.Members > 1 {
			own := string(h.Kind)
			if h.Kind == hold.Limit && h.By != "" {
				own += " (" + h.By + ")"
			}
			h.Kind, h.By = hold.Budget, b.Name
			h.Why = fmt.Sprintf("%s: %.0f%% of what %d processes may do together", own, 100*b.Share, b.Members)
			return
		}
	}
}
