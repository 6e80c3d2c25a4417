package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// silence is how long nothing may come, with room in the window, before the consumer is
// looked at: rows that were sent to another client, or into a broken connection, would
// otherwise come only after AckWait. It doubles each time that nothing is wrong, up to
// silenceMost: an idle stage should cost the server next to nothing.
const (
	silence     = 2 * time.Second
	silenceMost = 32 * time.Second
)

// intake receives the rows of one term from the durable consumer, in the order of the
// input stream. Its invariant: each row up to accepted is in the window or was emitted.
// So the durable consumer can be reset to accepted+1 at any time. That cures every fault
// on the way from the server to this process: a lost delivery, another client's reset, a
// redelivery of old rows.
//
// The goroutine of the term owns it.
type intake struct {
	c       *Consumer
	durable *streams.Durable
	pull    *puller // since the last reset: what came to an earlier one is not seen
	// accepted is the stream sequence of the last row taken. It is never less than the
	// low-water mark.
	accepted uint64
	// delivered is the consumer sequence of the last delivery since the reset. While it is
	// 0 the next delivery proves nothing about the rows before it.
	delivered uint64
	pin       string    // that came with the last delivery
	ackForm   string    // subject of the ack of some row, see ackOf
	lastReset time.Time // when the durable consumer was set back last
	resetAt   time.Time // when a reset that had to wait is made; zero means that none has

	// quietSince is when a row last came, a result last went, or the consumer was looked
	// at.
	quietSince time.Time
	// quiet is how long after quietSince the consumer is looked at, from silence to
	// silenceMost.
	quiet    time.Duration
	silences int // resets in a row, after a silence, that brought no row
}

// reset sets the durable consumer to the row after the last one taken, and listens to
// what comes after that only. Where it can't do so at once, [term.step] does it
// later, and no row comes until then.
func (in *intake) reset(ctx context.Context) error {
	if in.pull != nil {
		in.pin = in.pull.pin
		in.pull.close()
		if in.mustOutlive(time.Now()) {
			in.resetAt = in.pull.ends
			return nil
		}
	}
	return in.setBack(ctx)
}

// mustOutlive reports whether a reset has to wait for the end of the last request: it is
// not the first one in a short time. The server drops a request that nobody listens to;
// but while somebody listens to everything (nats sub '>'), it gives that one the first
// rows after the reset: they are missing, which calls for another reset, and so on.
func (in *intake) mustOutlive(now time.Time) bool {
	return now.Before(in.pull.ends) && now.Sub(in.lastReset) <= 2*silence
}

// resets reports whether a reset waits for its time.
func (in *intake) resets() bool { return !in.resetAt.IsZero() }

// setBack sets the durable consumer back at once.
func (in *intake) setBack(ctx context.Context) error {
	pull, err := newPuller(in.c, in.durable, in.pin, renewEvery(in.c.cfg.PinnedTTL))
	if err != nil {
		return err
	}
	in.pull, in.resetAt = pull, time.Time{}
	in.c.at("setting back")
	if err := in.durable.Reset(ctx, in.accepted+1); err != nil {
		return err
	}
	now := time.Now()
	in.delivered, in.lastReset = 0, now
	in.moved(now)
	return nil
}

// close ends the requests. It does nothing before the first reset.
func (in *intake) close() {
	if in.pull != nil {
		in.pull.close()
	}
}

// renewEvery leaves room for one lost request within the pin's life.
func renewEvery(pinnedTTL time.Duration) time.Duration { return pinnedTTL * 2 / 5 }

// note records a delivery, and reports whether it proves that no row lies between it and
// the one before: two deliveries with consecutive numbers, both first deliveries under
// one pin, do. The first delivery after a reset proves nothing, as a rival's reset may
// have come after ours, and the numbers begin at 1 for both.
func (in *intake) note(md *nats.MsgMetadata, now time.Time) (proven bool) {
	in.moved(now)
	proven = in.delivered > 0 && md.NumDelivered == 1 &&
		md.Sequence.Consumer == in.delivered+1 && in.pull.pin == in.pin
	in.delivered, in.pin = md.Sequence.Consumer, in.pull.pin
	in.c.setStatus(func(s *Status) { s.Pending = md.NumPending })
	if in.silences = 0; now.Sub(in.lastReset) > 2*silence {
		in.c.problems.clear(problemUndelivered)
	}
	return proven
}

// withoutBody reports whether a row came without its body. Somebody has set the durable
// consumer to deliver headers alone then, and its rows would all be answered as empty ones
// before its settings are looked at the next time. So they are corrected at once, and the
// caller resets the consumer; an error says that they can't be.
//
// The size that the server adds to the headers proves nothing, since an empty row may have
// such a header of its own. So the stream is asked.
func (in *intake) withoutBody(ctx context.Context, m *nats.Msg, seq uint64) (cut bool, err error) {
	size := streams.Added(m.Header, streams.HeaderMessageSize)
	if len(m.Data) > 0 || !in.pull.unnamed && (size == "" || size == "0") {
		return false, nil
	}
	stored, err := streams.MessageAt(ctx, in.c.nc, in.c.cfg.InputStream, seq)
	if err != nil || stored == nil || len(stored.Data) == 0 {
		return false, err
	}
	return true, in.durable.Refit(ctx)
}

// proveNothing has the next delivery prove nothing about the rows before it.
func (in *intake) proveNothing() { in.delivered = 0 }

// missingBefore returns the first row of the input after the last one taken, if it comes
// before seq, and 0 otherwise. Rows that were deleted, or that the filter leaves out, are
// not missing.
func (in *intake) missingBefore(ctx context.Context, seq uint64) (missing uint64, err error) {
	next, err := nextInput(ctx, in.c, in.accepted+1)
	if next >= seq {
		next = 0
	}
	return next, err
}

// moved notes that a row came or a result went.
func (in *intake) moved(at time.Time) { in.quietSince, in.quiet = at, silence }

// lookDue is when the consumer should be looked at if nothing moves until then.
func (in *intake) lookDue() time.Time { return in.quietSince.Add(in.quiet) }

// look looks at the durable consumer after a silence.
func (in *intake) look(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	in.quietSince = time.Now()
	info, err := in.durable.Info(ctx)
	if err == nil {
		in.c.setStatus(func(s *Status) { s.Pending = info.NumPending })
	}
	return info, err
}

// owes reports whether rows should have come: some wait, more are taken than this process
// has not acked, or some after the last one taken here were delivered to another client
// and acked.
func (in *intake) owes(ctx context.Context, info *jetstream.ConsumerInfo, unacked int) (bool, error) {
	switch {
	case info.NumPending > 0 || info.NumAckPending > unacked:
		return true, nil
	case info.Delivered.Stream <= in.accepted:
		return false, nil
	}
	missing, err := in.missingBefore(ctx, info.Delivered.Stream+1)
	return missing != 0, err
}

// owesNothing notes that the silence had a reason, and lets the next one last longer.
func (in *intake) owesNothing() {
	in.quiet = min(2*in.quiet, silenceMost)
	in.c.problems.clear(problemUndelivered)
}

// owed notes that rows should have come before the consumer is reset for them. From the
// second time in a row on that is a problem: the first reset has not helped.
func (in *intake) owed(info *jetstream.ConsumerInfo) {
	if in.silences++; in.silences > 1 {
		in.c.problems.set(problemUndelivered, in.whySilent(info))
	}
	in.c.log.Info("rows are pending but none arrive, resetting the consumer",
		slog.Uint64("after", in.accepted), slog.Uint64("pending", info.NumPending))
}

// whySilent returns what may keep the server from delivering rows.
func (in *intake) whySilent(info *jetstream.ConsumerInfo) error {
	why := "the server gives no reason"
	switch violation := streams.Violation(in.c.nc, in.pull.subject); {
	case info.Paused:
		why = fmt.Sprintf("it is paused for %v", info.PauseRemaining.Round(time.Second))
	case in.pull.refused != "":
		why = in.pull.refused
	case violation != nil:
		why = violation.Error()
	}
	return fmt.Errorf("%d rows wait in stream %s, and consumer %s delivers none: %s",
		info.NumPending, in.c.cfg.InputStream, in.durable.Name, why)
}

// nextInput returns the sequence of the first row at or after seq; 0 when there is none.
func nextInput(ctx context.Context, c *Consumer, seq uint64) (uint64, error) {
	return streams.NextSequence(ctx, c.nc, c.cfg.InputStream, c.cfg.InputSubject, seq)
}

// ackOf returns the subject that acks a row that was away: the subject of any row's last
// delivery, with this row's numbers.
func (in *intake) ackOf(seq uint64, note *awayRow) string {
	tokens := strings.Split(in.ackForm, ".")
	if len(tokens) < ackTokens {
		return ""
	}
	at := ackAt(tokens)
	tokens[at] = strconv.FormatUint(uint64(note.delivered), 10)
	tokens[at+1], tokens[at+2] = strconv.FormatUint(seq, 10), strconv.FormatUint(note.consumer, 10)
	return strings.Join(tokens, ".")
}

// whilePinned waits for f, and renews the pin meanwhile.
func (in *intake) whilePinned(ctx, soft context.Context, lost <-chan nats.Status,
	f func(context.Context) error,
) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f(ctx)
	}()
	for {
		next, broken := in.pull.step(time.Now(), 0, 0, false)
		if broken == nil {
			select {
			case <-done:
				return err
			case <-soft.Done():
				broken = context.Cause(soft)
			case <-lost:
				broken = errConnectionLost
			case m := <-in.pull.msgs:
				_, broken = in.pull.received(m, time.Now()) // no row fits the request
			case <-time.After(time.Until(next)):
			}
		}
		if broken != nil {
			cancel()
			<-done
			return broken
		}
	}
}
