package executor

import (
	"context"
	"slices"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/hold"
)

// RowHold returns why a row that was started, and is not answered, waits. It implements
// [consumer.Waiter].
//
// A row is in one of these places at a time, and is looked for in the order in which it
// gets on: in flight, behind an equal row, in the pool, in the queue before the pool. One
// that moves on while it is looked for is taken for one that waits for its turn.
func (e *Executor) RowHold(ctx context.Context, row *consumer.Row) hold.Hold {
	h := hold.OfRow(row.Seq, hold.Turn)
	h.Since = row.Taken
	for _, o := range e.caller.InFlight() {
		if o.Partition == row.Partition && o.Sequence == row.Seq {
			h.Kind, h.By, h.Since = hold.Call, o.Provider, o.Since
			return h
		}
	}
	if leader, follows := e.flights.leaderOf(row); follows {
		h.Kind, h.By = hold.Shared, "row "+hold.RowName(leader)
		return h
	}
	if !row.MayBegin() {
		h.Kind, h.By = hold.Window, "bytes"
		return h
	}
	w, ok := e.Pool.Waits(ctx, func(j *job) bool { return j.row == row })
	if !ok {
		return h
	}
	pooled := w.Hold
	pooled.Scope, pooled.Name = h.Scope, h.Name
	if pooled.Since.IsZero() {
		pooled.Since = row.Taken
	}
	limited := pooled.Kind == hold.Throttle || pooled.Kind == hold.Limit
	switch budget := e.cfg.Budget.Name; {
	case limited && budget != "":
		pooled.Kind, pooled.By = hold.Budget, string(budget)
	case pooled.By == "" && pooled.Kind != hold.Turn && pooled.Kind != hold.Slots && pooled.Kind != hold.Shortage:
		pooled.By = e.caller.At(w.Server).Provider()
	}
	return pooled
}

// leaderOf returns the row whose call a row waits for, and whether it waits for one.
func (f *flights) leaderOf(row *consumer.Row) (leader uint64, follows bool) {
	if f == nil {
		return 0, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.byKey {
		if slices.ContainsFunc(v.followers, func(j *job) bool { return j.row == row }) {
			return v.leader.row.Seq, true // it has no answer while it has followers
		}
	}
	return 0, false
}
