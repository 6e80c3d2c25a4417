package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// headerRedriveOf names the row that a redriven row was, headerRedriveResult the failed result, by its sequence in the
	// results stream: state ids begin anew with another input stream of the same name, these never do.
	headerRedriveOf     = "Stage-Redrive-Of"
	headerRedriveResult = "Stage-Redrive-Result"
	// headerRedriveFrom on a mark is the sequence of the input from which on the redriven row may be found,
	// headerRedriveAs the one that it has.
	headerRedriveFrom = "Stage-Redrive-From"
	headerRedriveAs   = "Stage-Redrive-As"

	// redriveTimeout bounds the publication of one group.
	redriveTimeout = 30 * time.Second
)

// redriveMarks say which failed results have been redriven. A mark is a message in the results stream on a subject of its
// own for each failed result, beside the logs of the partitions: the conditions of the stage's appends know nothing of it,
// and it lives as long as the result. It is stored twice: before the row is published, on condition that there is none, so
// that of two redrives one wins; and after it, with the row's new sequence. A process that was killed in between leaves a
// mark that is begun: then, and only then, the input is searched for the row, from where it ended when the mark was made.
type redriveMarks struct {
	done  seqSet                  // sequences of results
	begun map[uint64]*redriveMark // by sequence of the result
}

// redriveMark is a mark that is begun.
type redriveMark struct {
	seq  uint64 // of the mark
	from uint64 // sequence of the input from which on its row may be found
	as   uint64 // sequence of its row; 0: it was not published
}

func (r *redriver) markSubject(result string) string {
	return r.cfg.Result.Subject + "." + r.cfg.Name + ".redrive." + strconv.Itoa(r.partition) + "." + result
}

// readMarks reads the marks of the partition, and looks for the rows of those that are begun.
func (r *redriver) readMarks(ctx context.Context) (*redriveMarks, error) {
	marks := &redriveMarks{begun: make(map[uint64]*redriveMark)}
	reader, err := openReader(ctx, r.js, r.cfg.Result.Stream, r.markSubject(">"), math.MaxUint64, true)
	if err != nil {
		return nil, err
	}
	defer reader.close()
	for {
		m, seq, err := reader.next(ctx)
		if err != nil {
			return nil, err
		}
		if m == nil {
			return marks, r.findRows(ctx, marks)
		}
		result, err := strconv.ParseUint(m.Subject()[strings.LastIndexByte(m.Subject(), '.')+1:], 10, 64)
		if err != nil {
			continue // not a mark
		}
		if m.Headers().Get(headerRedriveAs) != "" {
			marks.done.add(result)
			delete(marks.begun, result)
			continue
		}
		from, err := strconv.ParseUint(m.Headers().Get(headerRedriveFrom), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("mark %d of stream %s has no %s header", seq, r.cfg.Result.Stream, headerRedriveFrom)
		}
		marks.begun[result] = &redriveMark{seq: seq, from: from}
	}
}

// findRows looks through the input for the rows of marks that are begun.
func (r *redriver) findRows(ctx context.Context, marks *redriveMarks) error {
	if len(marks.begun) == 0 {
		return nil
	}
	from := uint64(math.MaxUint64)
	for _, mark := range marks.begun {
		from = min(from, mark.from)
	}
	next, stop, err := r.inputFrom(ctx, from)
	if err != nil {
		return err
	}
	defer stop()
	for {
		header, seq, err := next()
		if err != nil {
			return fmt.Errorf("look for rows that an earlier redrive has published: %w", err)
		}
		if seq == 0 {
			return nil
		}
		result, err := strconv.ParseUint(header.Get(headerRedriveResult), 10, 64)
		if mark := marks.begun[result]; err == nil && mark != nil && strings.HasPrefix(header.Get(headerRedriveOf), r.cfg.Name+"/") {
			mark.as = seq
		}
	}
}

// inputFrom returns a function that reads the headers of the input from a sequence on; sequence 0 is the end.
func (r *redriver) inputFrom(ctx context.Context, from uint64) (next func() (nats.Header, uint64, error), stop func(), err error) {
	stream, filter := r.cfg.Input.Stream, r.cfg.Input.PartitionSubject(r.partition)
	if r.input.CachedInfo().Config.Retention != jetstream.LimitsPolicy { // which allows no second reader, and holds little
		return func() (nats.Header, uint64, error) {
			m, err := nextMessage(ctx, r.js.Conn(), stream, filter, from)
			if err != nil || m == nil {
				return nil, 0, err
			}
			from = m.Sequence + 1
			return m.Header, m.Sequence, nil
		}, func() {}, nil
	}
	reader, err := openStream(ctx, r.js, readOptions{stream: stream, filters: []string{filter}, from: from, headersOnly: true})
	if err != nil {
		return nil, nil, err
	}
	return func() (nats.Header, uint64, error) {
		m, seq, err := reader.next(ctx)
		if err != nil || m == nil {
			return nil, 0, err
		}
		return m.Headers(), seq, nil
	}, reader.close, nil
}

// flush publishes the group: marks, rows, marks. Once begun it is not interrupted.
func (r *redriver) flush(ctx context.Context) error {
	if len(r.group) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), redriveTimeout)
	defer cancel()
	rows := r.group
	r.group, r.bytes = nil, 0
	rows, err := r.begin(ctx, rows)
	if err != nil {
		return err
	}
	// Rows that are published get their mark also where others could not be: the next redrive need not look for them.
	rowErr := r.publishRows(ctx, rows)
	return errors.Join(rowErr, r.finish(ctx, rows))
}

// begin stores the marks of rows that have none, and returns the rows that are to be published by us.
func (r *redriver) begin(ctx context.Context, rows []*redriveRow) (ours []*redriveRow, err error) {
	info, err := r.input.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", r.cfg.Input.Stream, err)
	}
	from := info.State.LastSeq + 1
	acks := make([]jetstream.PubAckFuture, len(rows))
	for i, row := range rows {
		if row.begun == nil {
			if acks[i], err = r.mark(row, headerRedriveFrom, from, 0); err != nil {
				return nil, err
			}
		}
	}
	for i, row := range rows {
		if acks[i] == nil {
			ours = append(ours, row)
			continue
		}
		ack, err := awaitAck(ctx, acks[i])
		if isMarked(err) {
			r.done.Before++ // another redrive was faster, or is at it
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("mark result %d as redriven on %s: %w (stream %s must capture the subject)", row.at, r.markSubject(">"), err, r.cfg.Result.Stream)
		}
		row.begun = &redriveMark{seq: ack.Sequence, from: from}
		ours = append(ours, row)
	}
	return ours, nil
}

// publishRows publishes the rows in order. Their message ids keep a row from being there twice where the answer to an
// earlier redrive got lost a moment ago.
func (r *redriver) publishRows(ctx context.Context, rows []*redriveRow) error {
	acks := make([]jetstream.PubAckFuture, len(rows))
	var err error
	for i, row := range rows {
		if row.begun.as > 0 { // by a redrive that was killed
			r.done.Before++
			continue
		}
		if acks[i], err = r.js.PublishMsgAsync(row.msg); err != nil {
			return fmt.Errorf("publish on %s: %w", row.msg.Subject, err)
		}
	}
	var faults []error
	for i, row := range rows {
		if acks[i] == nil {
			continue
		}
		ack, err := awaitAck(ctx, acks[i])
		if err != nil {
			faults = append(faults, fmt.Errorf("publish on %s: %w", row.msg.Subject, err))
			continue
		}
		row.begun.as = ack.Sequence
		if ack.Duplicate {
			r.done.Before++
		} else {
			r.done.Published++
		}
	}
	if n := len(faults); n > 1 {
		return fmt.Errorf("%w (and %d more)", faults[0], n-1)
	}
	return errors.Join(faults...)
}

// finish stores the marks of the rows that are published.
func (r *redriver) finish(ctx context.Context, rows []*redriveRow) error {
	acks := make([]jetstream.PubAckFuture, len(rows))
	var err error
	for i, row := range rows {
		if row.begun.as == 0 {
			continue
		}
		if acks[i], err = r.mark(row, headerRedriveAs, row.begun.as, row.begun.seq); err != nil {
			return err
		}
	}
	for i, row := range rows {
		if acks[i] == nil {
			continue
		}
		if _, err := awaitAck(ctx, acks[i]); err != nil && !isMarked(err) {
			return fmt.Errorf("mark result %d as redriven: %w", row.at, err)
		}
	}
	return nil
}

// mark stores a mark behind the one with the sequence after.
func (r *redriver) mark(row *redriveRow, key string, value, after uint64) (jetstream.PubAckFuture, error) {
	msg := &nats.Msg{Subject: r.markSubject(strconv.FormatUint(row.at, 10)), Header: nats.Header{
		consumer.HeaderStateID: {row.stateID}, key: {strconv.FormatUint(value, 10)},
		jetstream.ExpectedStreamHeader:      {r.cfg.Result.Stream},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(after, 10)},
	}}
	ack, err := r.js.PublishMsgAsync(msg)
	if err != nil {
		return nil, fmt.Errorf("publish on %s: %w", msg.Subject, err)
	}
	return ack, nil
}

// isMarked tells whether a mark was refused because somebody else has stored it.
func isMarked(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return ok && refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}

// awaitAck waits for the server's answer.
func awaitAck(ctx context.Context, f jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-f.Ok():
		return ack, nil
	case err := <-f.Err():
		return nil, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
