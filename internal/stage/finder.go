package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/ops/tail"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// finder finds where a row is, and why it has no result yet. It is safe for concurrent
// use.
type finder struct{ *view }

// RowHold returns why a row of the input stream has no result yet. It returns nil for a
// row that has its result, and for one of which another replica knows more. It waits for
// the parts that have the row, or until ctx ends.
func (f *finder) RowHold(ctx context.Context, seq uint64) *hold.Hold {
	_, h := f.rowHold(ctx, seq)
	return h
}

// rowHold is RowHold with the row's partition.
//
// Only the consumer of the row's partition can say where the row is. Another consumer
// sees a sequence in a gap of its own rows: it takes the row for one that it has yet to
// reach, or for one that it has passed. So with several partitions the input stream is
// asked for the row's subject first. If it does not answer, each consumer is asked, and
// believed if it has the row.
func (f *finder) rowHold(ctx context.Context, seq uint64) (partition int, h *hold.Hold) {
	if len(f.consumers) == 1 {
		return 0, f.rowHoldOf(ctx, seq, f.consumers[0])
	}
	at, err := f.whereIs(ctx, seq)
	if err == nil && at >= 0 {
		return at, f.rowHoldOf(ctx, seq, f.consumers[at])
	}
	for p, c := range f.consumers {
		if h := c.RowHold(ctx, seq); h != nil && h.Kind != hold.Pending {
			f.explain(h, c)
			return p, h
		}
	}
	return 0, f.unownedHold(seq, f.consumers...)
}

// rowHoldOf is rowHold for a row that is in the consumer's partition, if it exists.
func (f *finder) rowHoldOf(ctx context.Context, seq uint64, c *consumer.Consumer) *hold.Hold {
	h := c.RowHold(ctx, seq)
	switch {
	case h == nil:
		return f.unownedHold(seq, c)
	case h.Kind == hold.Pending && len(f.consumers) == 1:
		at, err := f.whereIs(ctx, seq)
		if err == nil && at < 0 || err != nil && c.Status().Pending == 0 {
			return nil // there is no such row
		}
	}
	f.explain(h, c)
	return h
}

// whereIs asks the input stream for a row, and returns its partition, or -1 if there is
// no such row. It takes at most half of the time that ctx leaves, so that the parts that
// may have the row still have time to answer.
func (f *finder) whereIs(ctx context.Context, seq uint64) (partition int, err error) {
	if until, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(until)/2)
		defer cancel()
	}
	m, err := streams.MessageAt(ctx, f.Conn.NC(), f.Cfg.Input.Stream, seq)
	if err != nil || m == nil {
		return -1, err
	}
	if len(f.consumers) == 1 {
		return 0, nil
	}
	partition, ok := tail.PartitionOf(f.Cfg, m.Subject)
	if !ok || partition < 0 || partition >= len(f.consumers) {
		return -1, nil // the row is of another stage
	}
	return partition, nil
}

// unownedHold returns why a row waits in one of these partitions while this replica owns
// none of them: the reason that keeps this replica from owning. It returns nil if another
// replica serves a partition, since that one knows where the row is.
func (f *finder) unownedHold(seq uint64, of ...*consumer.Consumer) *hold.Hold {
	snap := f.look(of...)
	// known reports whether the owner of the partition, here or elsewhere, knows of the
	// row.
	known := func(p consumer.Status) bool {
		return p.Role == consumer.Owner ||
			p.Role == consumer.Standby && !p.Taking && p.Problem == "" || p.HighWaterMark >= seq
	}
	if slices.ContainsFunc(snap.Partitions, known) {
		return nil
	}
	snap.Collect(time.Now())
	why := snap.Holds.First(func(h *hold.Hold) bool {
		return h.Scope == hold.Stage ||
			h.Scope == hold.Partition && h.Kind != hold.Standby && len(of) == 1
	})
	if why == nil {
		return nil
	}
	h := *why
	h.Scope, h.Name = hold.Row, hold.RowName(seq)
	h.Advise(f.places())
	return &h
}

// explain completes the hold on a row with the reason that the whole stage knows. The
// part that has the row sees only its own reason: it waits to be stored, for example, and
// the stage knows that the audit refuses events.
func (f *finder) explain(h *hold.Hold, c *consumer.Consumer) {
	snap := f.look(c)
	snap.Lanes = f.lanes.status(f.Cfg.LLM.Provider)
	snap.Collect(time.Now())
	listed := func(kind hold.Kind) *hold.Hold {
		return snap.Holds.First(func(o *hold.Hold) bool { return o.Kind == kind })
	}
	all := listed(h.Kind)
	switch {
	case h.Class() == hold.Paused && snap.Holds.Paused() != nil:
		all = snap.Holds.Paused() // the hold of the pool itself says less
	case h.Kind == hold.Pending:
		all = listed(hold.Undelivered) // why the server delivers no row
	case h.Kind == hold.Storing && f.recorder.Refused() && h.By != "its result":
		all = listed(hold.Audit) // why its events are not stored
	}

	switch row := *h; {
	case all != nil && h.Kind != hold.Window:
		*h = *all
		h.Scope, h.Name = row.Scope, row.Name
	case h.Kind == hold.Batch && listed(hold.Lane) != nil:
		h.Why, h.Next = listed(hold.Lane).Why, listed(hold.Lane).Next
	case h.Kind == hold.Other: // a fallback is left out, and its error gives the reason
		h.Kind = status.FatalKind(h.Err)
	case h.Kind == hold.Throttle, h.Kind == hold.Limit:
		f.sharing.explain(h)
	}
	h.Advise(f.places())
}

// story answers /api/row with the stored events of a row and, if its result is not
// stored, with the reason why it waits here.
func (f *finder) story(ctx context.Context, o tail.StoryOptions) (any, error) {
	o.Payloads = f.Cfg.HTTP.DashboardPayloads
	story, err := askStored(ctx, f.view,
		func(js jetstream.JetStream) (*tail.Story, error) { return tail.Tell(ctx, js, f.Cfg, o) })
	if err != nil && !tail.IsNoEvent(err) || err == nil && story.Emitted() {
		return story, err
	}
	ctx, cancel := context.WithTimeout(ctx, rowWithin)
	defer cancel()
	partition, wait := f.rowHold(ctx, o.Row)
	switch {
	case wait == nil:
		return story, err
	case err != nil: // it has no event yet
		story = &tail.Story{
			Row: o.Row, Stream: f.Cfg.Input.Stream,
			Partition: auditlog.Partition(partition), Steps: []tail.Step{},
		}
	}
	story.Hold = wait
	return story, nil
}

// failures answers /api/failures.
func (f *finder) failures(ctx context.Context, o tail.FailuresOptions) (any, error) {
	o.Payloads = f.Cfg.HTTP.DashboardPayloads
	return askStored(ctx, f.view,
		func(js jetstream.JetStream) (*tail.Failures,
			error,
		) {
			return tail.ListFailures(ctx, js, f.Cfg, o)
		})
}

// askStored asks the stored streams for answer. The error says what to do.
func askStored[T any](
	ctx context.Context, s *view, ask func(jetstream.JetStream) (T, error),
) (answer T, err error) {
	if why := s.Conn.Down(); why != "" {
		return answer, errors.New(why)
	}
	js, err := streams.JetStream(s.Conn.NC())
	if err != nil {
		return answer, err
	}
	answer, err = ask(js)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		err = stored.MissingStream(err, s.Cfg.Audit.Stream, "STAGE_AUDIT_STREAM")
	case err != nil && !tail.IsNoEvent(err):
		// The server does not answer a request that it denies, so the request runs into
		// its time limit, and the violation is known from the connection.
		if denied := streams.Violation(s.Conn.NC(), streams.APISubjects); denied != nil &&
			ctx.Err() != nil {
			err = denied
		}
		if err = s.Conn.Explain(err); errors.Is(err, nats.ErrPermissionViolation) {
			err = fmt.Errorf("%w; docs/permissions.md has what rows on the dashboard need", err)
		}
	}
	return answer, err
}

// rowWithin is how long the page waits for the parts that may have a row.
const rowWithin = time.Second
