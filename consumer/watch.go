package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// silence is how long nothing may come, with room in the window, before the consumer is
// looked at: rows that were sent to another client, or into a broken connection, would
// otherwise come only after AckWait. It doubles each time that nothing is wrong, up to
// silenceMost: an idle stage should cost the server next to nothing.
const (
	silence     = 2 * time.Second
	silenceMost = 32 * time.Second
	// doubtLook is the time between two looks at the log while nothing may be called
	// before one.
	doubtLook = 50 * time.Millisecond
)

// moved notes that a row came or a result went.
func (t *term) moved(at time.Time) { t.quietSince, t.quiet = at, silence }

// stillOurs reads the log and returns ErrFenced when another replica has claimed the
// partition. A log that can't be read proves nothing, and the term continues: its appends
// are conditional.
func (t *term) stillOurs(ctx context.Context) error {
	t.checked = time.Now()
	now, err := t.c.readEnd(ctx)
	if err != nil {
		t.c.problems.set(problemResults, err)
		return nil
	}
	if !t.emitting {
		t.c.problems.clear(problemResults)
	}
	if now.owner != t.owner {
		return fmt.Errorf("%w: claimed by %s", ErrFenced, now.owner)
	}
	return nil
}

// checkOwner has the log looked at when nothing was appended for a while: an owner with
// nothing to append would not learn that it was fenced, and go on making calls. Without a
// pin, requests just wait and show nothing. A pin proves nothing:
//
//	A is slow. It sees nobody pinned, and nobody again.
//	B is granted the pin with a row, claims, and resets.
//	A reads the end of the log, which is B's claim, and claims. B holds the pin and renews it, so no row ever comes to A.
//
// The emitter looks, so that rows are taken and the pin is renewed meanwhile, however
// long the answer takes.
func (t *term) checkOwner(now time.Time) {
	every := t.quiet
	switch {
	case !t.doubtSince.IsZero():
		every = doubtLook
	case t.pull.pin == "":
		every /= 2
	}
	if t.emitting || now.Sub(t.checked) < every {
		return
	}
	t.checked, t.emitting = now, true
	t.groups <- nil
}

// beat notes a turn of the term. After a gap rows are called only once the log was read
// again, see pulse.
func (t *term) beat(now time.Time) {
	if t.c.pulse.beat(now) {
		t.doubtSince = now
	}
}

// settled takes the outcome of an append, or of a look at the log, that began after the
// gap.
func (t *term) settled(e emitted) {
	if e.sure && e.began.After(t.doubtSince) {
		t.doubtSince = time.Time{}
		t.c.pulse.settle()
	}
}

// watch looks at the consumer after a silence: when rows wait and none came, it is reset
// to the row after the last.
func (t *term) watch(ctx context.Context) error {
	if t.stopping || t.room() <= 0 || t.buf.Len() > 0 && t.pull.full || time.Since(t.quietSince) < t.quiet {
		return nil
	}
	t.quietSince = time.Now()
	info, err := t.durable.Info(ctx)
	if err != nil {
		return err
	}
	t.c.setStatus(func(s *Status) { s.Pending = info.NumPending })
	if t.roomBytes() <= 0 {
		return nil
	}
	if info.NumPending == 0 && info.NumAckPending <= t.unacked() {
		missing, err := t.takenByOthers(ctx, info)
		if err != nil {
			return err
		}
		if !missing {
			t.quiet = min(2*t.quiet, silenceMost)
			t.c.problems.clear(problemRows)
			return nil
		}
	}
	if err := t.stillOurs(ctx); err != nil {
		return err
	}
	if t.silent++; t.silent > 1 {
		t.c.problems.set(problemRows, t.whySilent(info))
	}
	t.c.log.Info("rows are pending but none arrive, resetting the consumer", slog.Uint64("after", t.accepted), slog.Uint64("pending", info.NumPending))
	return t.reset(ctx)
}

// lookAtDurable looks at the settings of the durable consumer once a minute, as anybody
// may change them.
func (t *term) lookAtDurable(ctx context.Context, now time.Time) error {
	if t.c.cfg.Streams == nil || t.stopping || now.Sub(t.fit) < streams.InspectEvery {
		return nil
	}
	t.fit = now
	return t.durable.Refit(ctx)
}

// takenByOthers reports whether rows after the last one taken here were delivered to
// another client and acked.
func (t *term) takenByOthers(ctx context.Context, info *jetstream.ConsumerInfo) (bool, error) {
	if info.Delivered.Stream <= t.accepted {
		return false, nil
	}
	next, err := t.c.nextInput(ctx, t.accepted+1)
	return next != 0 && next <= info.Delivered.Stream, err
}

// whySilent returns what may keep the server from delivering rows.
func (t *term) whySilent(info *jetstream.ConsumerInfo) error {
	why := "the server gives no reason"
	switch violation := streams.Violation(t.c.nc, t.pull.subject); {
	case info.Paused:
		why = fmt.Sprintf("it is paused for %v", info.PauseRemaining.Round(time.Second))
	case t.pull.refused != "":
		why = t.pull.refused
	case violation != nil:
		why = violation.Error()
	}
	return fmt.Errorf("%d rows wait in stream %s, and consumer %s delivers none: %s", info.NumPending, t.c.cfg.InputStream, t.durable.Name, why)
}
