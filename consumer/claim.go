package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// claimRetryMax is the longest wait before a claim is sent again that was refused
	// though nobody else has appended. If it is refused after that, too, the attempt to
	// claim fails.
	claimRetryMax = 800 * time.Millisecond
	// aheadAskMost is how long the answer to a request to read the log may take: while
	// servers elect a leader it is lost.
	aheadAskMost = 2 * time.Second
)

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

// logEnd is the last message of a partition's log: the only authority on which rows have
// been emitted. For example, the log ends at message 13 of the results stream, by owner
// run.x, with the result of row 7: whoever owns the partition next answers row 8, and its
// append is stored only if message 13 is still the last one.
type logEnd struct {
	seq   uint64 // of the results stream; 0 means that the log is empty
	owner string
	row   uint64 // the row that the message is about
	chain chainValue
	logMark
	newInput bool // the next claim is the first one for its input stream, see [Config.NewInput]
}

// resultLog is the log of one partition: its messages in the results stream, which are
// claims and results. It is the only authority on who owns the partition and on which rows
// have their results. Each append is conditional on the end of the log, see emitter and
// [resultLog.claim].
//
// The goroutine of [Consumer.Run] owns it. The emitter and the dropper read the log by it,
// which changes nothing of it.
type resultLog struct {
	*connection
	cfg   *Config
	order order
	// filter matches all subjects of the log, whose claims are on claimSubject and results
	// on resultSubject.
	filter        string
	claimSubject  string
	resultSubject string
	// served says that a term has begun once: results that are missing later may come
	// back.
	served bool
	// lost says that the last attempt to begin a term found fewer results of rows above
	// the low-water mark than the end of the log says.
	lost bool
}

// readEnd reads the end of the log from the stream's leader. A direct get would ask any
// replica, which may lag.
func (l *resultLog) readEnd(ctx context.Context) (logEnd, error) {
	m, err := streams.LastMessage(ctx, l.nc, l.cfg.ResultStream, l.filter)
	if err != nil {
		return logEnd{}, fmt.Errorf("read the end of the results: %w", err)
	}
	if m == nil {
		return logEnd{}, nil
	}
	row, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
	if err != nil {
		return logEnd{}, fmt.Errorf("message %d of stream %s on %s has no %s header: something other than a stage publishes there; give the stage its own subject",
			m.Sequence, l.cfg.ResultStream, m.Subject, streams.HeaderSourceSeq)
	}
	mark, err := readMark(m.Header, row)
	if err != nil {
		return logEnd{}, fmt.Errorf("message %d of stream %s: low-water mark: %w", m.Sequence, l.cfg.ResultStream, err)
	}
	return logEnd{seq: m.Sequence, owner: m.Header.Get(streams.HeaderOwner), row: row, chain: readChain(m.Header), logMark: mark}, nil
}

// stillEndsAt returns ErrFenced when another replica has appended to the log.
func (l *resultLog) stillEndsAt(ctx context.Context, end logEnd) error {
	now, err := l.readEnd(ctx)
	if err == nil && now.seq != end.seq {
		return fmt.Errorf("%w: the log ends at %d with owner %s", ErrFenced, now.seq, now.owner)
	}
	return err
}

// lastClaim returns the partition's newest claim, or nil when there is none.
func (l *resultLog) lastClaim(ctx context.Context) (*streams.Claim, error) {
	cl, m, err := streams.LastClaim(ctx, l.nc, l.cfg.ResultStream, l.claimSubject)
	if cl == nil || err != nil {
		return nil, err
	}
	if cl.Version > streams.ClaimVersion {
		return nil, fatal(fmt.Errorf("claim %d of stream %s has format %d, this stage knows %d: a newer stage has served the partition; upgrade this one",
			m.Sequence, l.cfg.ResultStream, cl.Version, streams.ClaimVersion))
	}
	return cl, nil
}

// claim appends the claim on condition that end is still the end, and returns the new
// end. ErrFenced means that another replica was faster.
func (l *resultLog) claim(ctx context.Context, owner string, end logEnd, created time.Time) (logEnd, error) {
	cl := streams.Claim{Owner: owner, HighWaterMark: end.low, InputStream: l.cfg.InputStream, InputCreated: created}
	if l.cfg.Lane != nil {
		cl.Lane = l.cfg.ClaimedLane
	}
	msg := &nats.Msg{Subject: l.claimSubject, Header: nats.Header{
		streams.HeaderOwner:                     {owner},
		streams.HeaderSourceSeq:                 {strconv.FormatUint(end.low, 10)},
		streams.HeaderSourceStream:              {l.cfg.InputStream},
		jetstream.ExpectedLastSubjSeqHeader:     {strconv.FormatUint(end.seq, 10)},
		jetstream.ExpectedLastSubjSeqSubjHeader: {l.filter},
	}}
	l.order.claim(&cl, msg.Header, end.logMark)
	var err error
	if msg.Data, err = json.Marshal(cl); err != nil {
		return end, err
	}
	chain := new(chainer).next(end.chain, chainedClaim, msg.Header, sha256.Sum256(msg.Data))
	msg.Header[streams.HeaderChain] = []string{chain.String()}
	for wait := range streams.Retry(ctx, storeRetryFirst, 2*claimRetryMax) {
		seq, err := streams.Append(ctx, l.nc, []*nats.Msg{msg})
		if err == nil {
			return logEnd{seq: seq, owner: owner, row: end.low, chain: chain, logMark: end.logMark}, nil
		}
		// No answer, or a refusal that is no verdict: a replicated stream also refuses
		// while another append on the same condition is under way, which may still fail.
		// The log knows.
		now, readErr := l.readEnd(ctx)
		switch {
		case readErr != nil:
			return end, fmt.Errorf("claim the partition: %w", errors.Join(l.denied(err), readErr))
		case now.owner == owner && now.seq != end.seq:
			return now, nil
		case now.seq != end.seq:
			return end, ErrFenced
		case wait > claimRetryMax, streams.Unanswered(err) && errors.Is(l.denied(err), nats.ErrPermissionViolation):
			return end, fmt.Errorf("claim the partition: %w", l.denied(err))
		}
	}
	return end, context.Cause(ctx)
}

// finishedAhead returns the rows above the low-water mark that have results, sorted, and
// notes where these are. A replica that answers may lag behind the log, so it is asked
// again while there are fewer than the end of the log says.
func (l *resultLog) finishedAhead(ctx context.Context, end logEnd, where *aheadLog) (rows []uint64, err error) {
	for wait := range streams.Retry(ctx, storeRetryFirst, streams.RequestTimeout) {
		*where, rows = aheadLog{}, rows[:0]
		err = l.eachResult(ctx, end.from, end.seq, func(at, row uint64) {
			if row > end.low {
				where.add(at, row)
				rows = append(rows, row)
			}
		})
		slices.Sort(rows)
		rows = slices.Compact(rows)
		switch {
		case err == nil && len(rows) >= end.ahead:
			return rows, nil
		case err == nil && wait > streams.RequestTimeout/2:
			l.lost = true
			lost := fmt.Errorf("%w: %d rows above the low-water mark, row %d, have results, and stream %s holds %d of them on %s from sequence %d on: restore it from a backup, or start under another name: the others would be answered twice",
				ErrResumePointLost, end.ahead, end.low, l.cfg.ResultStream, len(rows), l.resultSubject, end.from)
			if !l.served {
				return nil, fatal(lost)
			}
			return nil, unfit(lost)
		case err != nil && wait > streams.RequestTimeout/2:
			return nil, err
		}
	}
	return nil, errors.Join(context.Cause(ctx), err)
}

// eachResult calls f with each result of the partition from one sequence of the results
// stream to another, and the result's row.
func (l *resultLog) eachResult(ctx context.Context, from, to uint64, f func(at, row uint64)) error {
	return l.eachHeader(ctx, l.cfg.ResultStream, l.resultSubject, from, to, func(at uint64, h nats.Header) error {
		row, err := strconv.ParseUint(h.Get(streams.HeaderSourceSeq), 10, 64)
		if err != nil {
			return fmt.Errorf("message %d is no result", at)
		}
		f(at, row)
		return nil
	})
}

// eachHeader calls f with the headers of each message on a subject, from one sequence of
// a stream to another. Bodies are not read.
func (l *resultLog) eachHeader(
	ctx context.Context, stream, subject string, from, to uint64, f func(at uint64, h nats.Header) error,
) error {
	return l.eachMessage(ctx, stream, subject, from, func(m *jetstream.RawStreamMsg) (bool, error) {
		if m.Sequence > to {
			return false, nil
		}
		err := f(m.Sequence, m.Header)
		return err == nil, err
	})
}

// eachMessage calls f with each message on a subject, without its body, from a sequence of
// a stream on, until f returns false.
func (l *resultLog) eachMessage(
	ctx context.Context, stream, subject string, from uint64, f func(m *jetstream.RawStreamMsg) (more bool, err error),
) error {
	asking, cancel := context.WithTimeout(ctx, aheadAskMost)
	defer cancel()
	reading, err := streams.Read(asking, l.js, stream, jetstream.ConsumerConfig{
		FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		HeadersOnly: true, InactiveThreshold: streams.RequestTimeout,
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, l.denied(err))
	}
	defer reading.Close()
	for m, err := range reading.All(ctx) {
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, l.denied(err))
		}
		if more, err := f(m); !more || err != nil {
			return err
		}
	}
	return nil
}
