package consumer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// claimRetryMax is the longest wait before a claim that was refused, though nobody else
// has appended, is sent again.
const claimRetryMax = 800 * time.Millisecond

var (
	// ErrFenced ends a term: another replica has appended to the results since this one
	// read their end.
	ErrFenced = errors.New("fenced: another replica owns the partition")
	// ErrInputRecreated means that the input stream is not the one that the results were
	// made from.
	ErrInputRecreated = errors.New("the input stream was re-created since the last claim, so its sequences mean other rows")
	// ErrResumePointLost means that rows were acked but the results stream knows of none.
	ErrResumePointLost = errors.New("the results stream has lost its resume point")
)

// logEnd is the last message of a partition's results: the only authority on what has
// been emitted.
type logEnd struct {
	seq   uint64 // of the results stream; 0 means nothing yet
	owner string
	row   uint64 // that it is about
	logMark
	newInput bool // the next claim is the first one for its input stream, see [Config.NewInput]
}

// readEnd reads the end of the log from the stream's leader. A direct get would ask any
// replica, which may lag.
func (c *Consumer) readEnd(ctx context.Context) (logEnd, error) {
	m, err := streams.LastMessage(ctx, c.nc, c.cfg.ResultStream, c.filter)
	if err != nil {
		return logEnd{}, fmt.Errorf("read the end of the results: %w", err)
	}
	if m == nil {
		return logEnd{}, nil
	}
	row, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
	if err != nil {
		return logEnd{}, fmt.Errorf("message %d of stream %s on %s has no %s header: something other than a stage publishes there; give the stage its own subject",
			m.Sequence, c.cfg.ResultStream, m.Subject, streams.HeaderSourceSeq)
	}
	mark, err := readMark(m.Header, row)
	if err != nil {
		return logEnd{}, fmt.Errorf("message %d of stream %s: low-water mark: %w", m.Sequence, c.cfg.ResultStream, err)
	}
	return logEnd{seq: m.Sequence, owner: m.Header.Get(streams.HeaderOwner), row: row, logMark: mark}, nil
}

// stillEndsAt returns ErrFenced when another replica has appended to the log.
func (c *Consumer) stillEndsAt(ctx context.Context, end logEnd) error {
	now, err := c.readEnd(ctx)
	if err == nil && now.seq != end.seq {
		return fmt.Errorf("%w: the log ends at %d with owner %s", ErrFenced, now.seq, now.owner)
	}
	return err
}

// lastClaim returns the partition's newest claim; nil when there is none.
func (c *Consumer) lastClaim(ctx context.Context) (*streams.Claim, error) {
	cl, m, err := streams.LastClaim(ctx, c.nc, c.cfg.ResultStream, c.claimSubject)
	if cl == nil || err != nil {
		return nil, err
	}
	if cl.Version > streams.ClaimVersion {
		return nil, fatal(fmt.Errorf("claim %d of stream %s has format %d, this stage knows %d: a newer stage has served the partition; upgrade this one",
			m.Sequence, c.cfg.ResultStream, cl.Version, streams.ClaimVersion))
	}
	return cl, nil
}

// nextInput returns the sequence of the first row at or after seq; 0 when there is none.
func (c *Consumer) nextInput(ctx context.Context, seq uint64) (uint64, error) {
	return streams.NextSequence(ctx, c.nc, c.cfg.InputStream, c.cfg.InputSubject, seq)
}

func (c *Consumer) denied(err error) error {
	return streams.Denied(c.nc, err, streams.APISubjects, c.filter, cmp.Or(c.cfg.DeadLetterSubject, c.filter))
}

// checkStart looks once, before this process stands by, for what would keep it from
// serving the partition: a person who starts it should see that at once, and not when its
// turn comes.
func (c *Consumer) checkStart(ctx context.Context, durable *streams.Durable) error {
	if c.started {
		return nil
	}
	_, _, _, err := c.survey(ctx, durable)
	c.started = err == nil
	return err
}

// checkInput compares the input stream with the one of the last claim, and the place to
// go on at with the durable consumer.
func (c *Consumer) checkInput(ctx context.Context, end logEnd, durable *streams.Durable, info *jetstream.ConsumerInfo, input *jetstream.StreamInfo) (logEnd, error) {
	cl, err := c.lastClaim(ctx)
	if err != nil {
		return end, err
	}
	created := input.Created
	switch {
	case cl != nil && cl.InputStream == c.cfg.InputStream && cl.InputCreated.Equal(created):
	case c.cfg.NewInput:
		// The new stream's rows are counted from its beginning.
		end.logMark, end.newInput = logMark{}, true
	case cl == nil && acked(info, input):
		return end, unfit(streams.NewSettingError(streams.FieldNewInput, "%w: rows of stream %s up to sequence %d are acked, but stream %s holds no claim on %s: restore it from a backup, or start under another name, or process everything again with %s",
			ErrResumePointLost, c.cfg.InputStream, info.AckFloor.Stream, c.cfg.ResultStream, c.claimSubject, streams.FieldNewInput))
	case cl == nil:
	case cl.InputStream != c.cfg.InputStream:
		return end, fatal(streams.NewSettingError(streams.FieldNewInput, "%w: the last claim on %s is for stream %s, the input is %s: choose another name, or start with %s to begin with the new stream",
			ErrInputRecreated, c.claimSubject, cl.InputStream, c.cfg.InputStream, streams.FieldNewInput))
	default:
		return end, fatal(streams.NewSettingError(streams.FieldNewInput, "%w: stream %s was created at %s, the claim on %s knows %s: choose another name, or start with %s to begin with the new stream",
			ErrInputRecreated, c.cfg.InputStream, created.Format(time.RFC3339), c.claimSubject, cl.InputCreated.Format(time.RFC3339), streams.FieldNewInput))
	}
	if err := c.checkOrder(cl, end); err != nil {
		return end, err
	}
	if cl != nil && cl.Lane != nil && c.cfg.Lane == nil && c.cfg.LaneLeft != nil {
		if err := c.cfg.LaneLeft(ctx, cl.Lane); err != nil {
			return end, err
		}
	}
	if start := info.Config.OptStartSeq; start > end.low+1 && durable.CanReset() {
		return end, unfit(streams.NewSettingError(streams.FieldName, "consumer %s of stream %s begins at sequence %d, the results go on after %d: rows between would never come; choose another %s, or delete the consumer",
			durable.Name, c.cfg.InputStream, start, end.low, streams.FieldName))
	}
	return end, nil
}

func unfit(err error) error { return &streams.UnfitError{Err: err} }

// acked reports whether a row that is still there has been acked. A new consumer's ack
// floor lies right below the row that it begins with, which may be any.
func acked(durable *jetstream.ConsumerInfo, input *jetstream.StreamInfo) bool {
	return input.State.Msgs > 0 && durable.AckFloor.Stream >= max(input.State.FirstSeq, durable.Config.OptStartSeq)
}

// claim appends the claim on condition that end is still the end, and returns the new
// end. ErrFenced means that another replica was faster.
func (c *Consumer) claim(ctx context.Context, owner string, end logEnd, created time.Time) (logEnd, error) {
	cl := streams.Claim{Owner: owner, HighWaterMark: end.low, InputStream: c.cfg.InputStream, InputCreated: created}
	if c.cfg.Lane != nil {
		cl.Lane = c.cfg.ClaimedLane
	}
	msg := &nats.Msg{Subject: c.claimSubject, Header: nats.Header{
		streams.HeaderOwner:                     {owner},
		streams.HeaderSourceSeq:                 {strconv.FormatUint(end.low, 10)},
		streams.HeaderSourceStream:              {c.cfg.InputStream},
		jetstream.ExpectedLastSubjSeqHeader:     {strconv.FormatUint(end.seq, 10)},
		jetstream.ExpectedLastSubjSeqSubjHeader: {c.filter},
	}}
	c.order.claim(&cl, msg.Header, end.logMark)
	var err error
	if msg.Data, err = json.Marshal(cl); err != nil {
		return end, err
	}
	for wait := range streams.Retry(ctx, storeRetryFirst, 2*claimRetryMax) {
		seq, err := streams.Append(ctx, c.nc, []*nats.Msg{msg})
		if err == nil {
			return logEnd{seq: seq, owner: owner, row: end.low, logMark: end.logMark}, nil
		}
		// No answer, or a refusal that is no verdict: a replicated stream also refuses
		// while another append on the same condition is under way, which may still fail.
		// The log knows.
		now, readErr := c.readEnd(ctx)
		switch {
		case readErr != nil:
			return end, fmt.Errorf("claim the partition: %w", errors.Join(c.denied(err), readErr))
		case now.owner == owner && now.seq != end.seq:
			return now, nil
		case now.seq != end.seq:
			return end, ErrFenced
		case wait > claimRetryMax, streams.Unanswered(err) && errors.Is(c.denied(err), nats.ErrPermissionViolation):
			return end, fmt.Errorf("claim the partition: %w", c.denied(err))
		}
	}
	return end, context.Cause(ctx)
}
