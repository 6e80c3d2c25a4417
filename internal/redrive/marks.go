package redrive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/load"
	"github.com/llm-stage/stage/internal/seqset"
	"github.com/llm-stage/stage/internal/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// headerRedriveOf names the row that a redriven row was, headerRedriveResult the failed result by its sequence in the
	// results stream: state ids repeat if the input stream is re-created, those don't.
	headerRedriveOf     = "Stage-Redrive-Of"
	headerRedriveResult = "Stage-Redrive-Result"
	// headerRedriveFrom on a mark is the sequence of the input from which on the redriven row may be found,
	// headerRedriveAs the one that it has.
	headerRedriveFrom = "Stage-Redrive-From"
	headerRedriveAs   = "Stage-Redrive-As"

	// redriveTimeout bounds the publication of one group.
	redriveTimeout = 30 * time.Second
)

// redriveMarks are the marks of a partition: which failed results have been redriven. A mark is a message in the
// results stream on a subject of its own for each failed result, beside the logs of the partitions: the conditions of
// the stage's appends don't concern it, and it lives as long as the result. It is stored twice: before the row is
// published, on condition that there is none, so that of two redrives one wins; and after it, with the row's new
// sequence.
//
// A process that was killed in between leaves a mark that is begun. Another redrive stores it again, on condition that
// it is the last, and then searches the input for the row, from where that ended when the first mark was made.
//
// One mark would not do. If the first were final, a kill before the append would lose the row; if it stayed begun, a
// row that has left the input since (acked, expired, purged) would be published again. If only the second were stored,
// each redrive would have to read the whole input for rows whose mark is missing.
type redriveMarks struct {
	done  seqset.Set              // sequences of results whose second mark is stored
	begun map[uint64]*redriveMark // the others with a mark, by sequence of the result
}

// redriveMark is a mark that is begun.
type redriveMark struct {
	seq  uint64 // of the mark in the results stream; 0: not stored yet
	from uint64 // sequence of the input from which on its row may be found
	as   uint64 // sequence of its row; 0: it is not published, as far as the search went
}

// markSubject returns the subject of a result's mark, or a filter.
func (r *redriver) markSubject(result string) string {
	return r.cfg.Result.Subject + "." + r.cfg.Name + ".redrive." + strconv.Itoa(r.partition) + "." + result
}

// readMarks reads the marks of the partition, and looks for the rows of those that are begun.
func (r *redriver) readMarks(ctx context.Context) (*redriveMarks, error) {
	marks := &redriveMarks{begun: make(map[uint64]*redriveMark)}
	reader, err := stored.OpenReader(ctx, r.js, r.cfg.Result.Stream, r.markSubject(">"), math.MaxUint64, true)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	for {
		m, seq, err := reader.Next(ctx)
		if err != nil {
			return nil, err
		}
		if m == nil {
			return marks, r.findRows(ctx, marks.begun)
		}
		result, err := strconv.ParseUint(m.Subject()[strings.LastIndexByte(m.Subject(), '.')+1:], 10, 64)
		if err != nil {
			continue // not a mark
		}
		if m.Headers().Get(headerRedriveAs) != "" {
			marks.done.Add(result)
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
func (r *redriver) findRows(ctx context.Context, begun map[uint64]*redriveMark) error {
	if len(begun) == 0 {
		return nil
	}
	from := uint64(math.MaxUint64)
	for _, mark := range begun {
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
		if mark := begun[result]; err == nil && mark != nil && strings.HasPrefix(header.Get(headerRedriveOf), r.cfg.Name+"/") {
			mark.as = seq
		}
	}
}

// inputFrom returns a function that reads the headers of the input from a sequence on; sequence 0 is the end.
func (r *redriver) inputFrom(ctx context.Context, from uint64) (next func() (nats.Header, uint64, error), stop func(), err error) {
	stream, filter := r.cfg.Input.Stream, r.cfg.Input.PartitionSubject(r.partition)
	if r.input.CachedInfo().Config.Retention != jetstream.LimitsPolicy { // which allows no second reader, and holds few rows
		return func() (nats.Header, uint64, error) {
			m, err := streams.NextMessage(ctx, r.js.Conn(), stream, filter, from)
			if err != nil || m == nil {
				return nil, 0, err
			}
			from = m.Sequence + 1
			return m.Header, m.Sequence, nil
		}, func() {}, nil
	}
	reader, err := stored.Open(ctx, r.js, stored.ReadOptions{Stream: stream, Filters: []string{filter}, From: from, HeadersOnly: true})
	if err != nil {
		return nil, nil, err
	}
	return func() (nats.Header, uint64, error) {
		m, seq, err := reader.Next(ctx)
		if err != nil || m == nil {
			return nil, 0, err
		}
		return m.Headers(), seq, nil
	}, reader.Close, nil
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

// begin stores the marks of rows that are to be published, also of those that an earlier redrive has begun: that may
// only be suspended. It returns the rows that are ours now. The end of the input is read first: a redrive that takes
// over our marks publishes behind it, and then our append, on condition of that end, is refused.
func (r *redriver) begin(ctx context.Context, rows []*redriveRow) (ours []*redriveRow, err error) {
	if err := r.readLast(ctx); err != nil {
		return nil, err
	}
	acks := make([]jetstream.PubAckFuture, len(rows))
	takenOver := make(map[uint64]*redriveMark)
	for i, row := range rows {
		mark := row.begun
		switch {
		case mark == nil:
			mark = &redriveMark{from: r.last + 1}
		case mark.as > 0: // published by a redrive that was killed
			ours = append(ours, row)
			r.done.Before++
			continue
		default:
			takenOver[row.at] = mark
		}
		row.begun = mark
		if acks[i], err = r.mark(row, headerRedriveFrom, mark.from, mark.seq); err != nil {
			return nil, err
		}
	}
	won, err := r.marksWon(ctx, rows, acks, takenOver)
	if err != nil {
		return nil, err
	}
	ours = append(ours, won...)
	r.marked = 0
	slices.SortFunc(ours, func(a, b *redriveRow) int { return cmp.Compare(a.at, b.at) })
	return ours, r.findTakenOver(ctx, takenOver)
}

// marksWon waits for the server's answers to marks. It returns the rows whose marks are stored, and removes the others
// from takenOver.
func (r *redriver) marksWon(ctx context.Context, rows []*redriveRow, acks []jetstream.PubAckFuture, takenOver map[uint64]*redriveMark) (won []*redriveRow, err error) {
	for i, row := range rows {
		if acks[i] == nil {
			continue
		}
		ack, err := awaitAck(ctx, acks[i])
		if isMarked(err) {
			r.done.Before++ // another redrive was faster, or is publishing it
			delete(takenOver, row.at)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("mark result %d as redriven on %s: %w (stream %s must capture the subject)", row.at, r.markSubject(">"), err, r.cfg.Result.Stream)
		}
		row.begun.seq = ack.Sequence
		won = append(won, row)
	}
	return won, nil
}

// findTakenOver looks for the rows of marks that another redrive had begun, and counts those that it has published.
func (r *redriver) findTakenOver(ctx context.Context, takenOver map[uint64]*redriveMark) error {
	if err := r.findRows(ctx, takenOver); err != nil {
		return err
	}
	for _, mark := range takenOver {
		if mark.as > 0 {
			r.done.Before++
		}
	}
	return nil
}

// readLast reads where the input ends.
func (r *redriver) readLast(ctx context.Context) error {
	info, err := r.input.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", r.cfg.Input.Stream, err)
	}
	r.last = info.State.LastSeq
	return nil
}

// publishRows publishes in order the rows whose marks are ours and that are not there yet. Each append is on condition
// that the input has not grown since the marks were known to be ours: a redrive that was suspended meanwhile, for any
// time, is refused, reads its marks again and finds that they are another's. If the input grows for another reason, or
// does not accept the batch, rows go one by one. Message ids keep an older version, which knows no such condition, from
// publishing a row a second time.
func (r *redriver) publishRows(ctx context.Context, rows []*redriveRow) error {
	rows = slices.DeleteFunc(slices.Clone(rows), func(row *redriveRow) bool { return row.begun.as > 0 })
	alone := !r.input.CachedInfo().Config.AllowAtomicPublish
	var refused []error // rows that the server does not accept
	for wait := time.Millisecond; len(rows) > 0; {
		n := len(rows)
		if alone {
			n = 1
		}
		err := r.append(ctx, rows[:n])
		switch {
		case err == nil:
			rows, wait = rows[n:], time.Millisecond
			continue
		case ctx.Err() != nil:
			return errors.Join(append(refused, fmt.Errorf("publish on %s: %w", rows[0].msg.Subject, context.Cause(ctx)))...)
		case n == 1 && errors.Is(err, streams.ErrRefused) && !load.Transient(err):
			refused = append(refused, fmt.Errorf("publish on %s: %w", rows[0].msg.Subject, err))
			rows = rows[1:]
			continue
		}
		alone = true
		if rows, err = r.remaining(ctx, rows); err != nil {
			return err
		}
		if err := load.Pause(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, load.RetryWaitMax)
	}
	if n := len(refused); n > 1 {
		return fmt.Errorf("%w (and %d more)", refused[0], n-1)
	}
	return errors.Join(refused...)
}

// append publishes rows on condition that the input ends where it did.
func (r *redriver) append(ctx context.Context, rows []*redriveRow) error {
	msgs := make([]*nats.Msg, len(rows))
	for i, row := range rows {
		msgs[i] = row.msg
	}
	msgs[0].Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(r.last, 10))
	seq, err := streams.Append(ctx, r.js.Conn(), msgs)
	if err != nil {
		return err
	}
	if seq <= r.last { // known by its message id
		rows[0].begun.as = seq
		r.done.Before++
		return nil
	}
	for i, row := range rows { // nothing comes between the messages of a batch
		row.begun.as = seq - uint64(len(rows)-1-i)
	}
	r.done.Published += len(rows)
	r.last = seq
	return nil
}

// remaining returns the rows that are still ours to publish, after an append that was refused or not answered. The
// marks are read after the end of the input on which the next append is conditioned.
func (r *redriver) remaining(ctx context.Context, rows []*redriveRow) (ours []*redriveRow, err error) {
	from := r.last + 1
	if err := r.readLast(ctx); err != nil {
		return nil, err
	}
	if ours, err = r.stillOurs(ctx, rows); err != nil {
		return nil, err
	}
	begun := make(map[uint64]*redriveMark)
	for _, row := range ours { // in the input if the answer got lost, or if the redrive before us has published meanwhile
		begun[row.at] = &redriveMark{from: from}
	}
	if err := r.findRows(ctx, begun); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ours, func(row *redriveRow) bool {
		if row.begun.as = begun[row.at].as; row.begun.as > 0 {
			r.done.Before++
		}
		return row.begun.as > 0
	}), nil
}

// stillOurs leaves out rows whose marks another redrive has taken.
func (r *redriver) stillOurs(ctx context.Context, rows []*redriveRow) (ours []*redriveRow, err error) {
	nc, stream := r.js.Conn(), r.cfg.Result.Stream
	last, err := streams.LastMessage(ctx, nc, stream, r.markSubject(">"))
	if err != nil {
		return nil, err
	}
	if last != nil && last.Sequence == r.marked { // nothing was marked since
		return rows, nil
	}
	for _, row := range rows {
		m, err := streams.LastMessage(ctx, nc, stream, r.markSubject(strconv.FormatUint(row.at, 10)))
		switch {
		case err != nil:
			return nil, err
		case m != nil && m.Sequence == row.begun.seq:
			ours = append(ours, row)
		default:
			r.done.Before++
		}
	}
	if last != nil {
		r.marked = last.Sequence
	}
	return ours, nil
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

// mark stores a mark on condition that the last one has the sequence after; 0: that there is none.
func (r *redriver) mark(row *redriveRow, key string, value, after uint64) (jetstream.PubAckFuture, error) {
	msg := &nats.Msg{Subject: r.markSubject(strconv.FormatUint(row.at, 10)), Header: nats.Header{
		streams.HeaderStateID: {row.stateID}, key: {strconv.FormatUint(value, 10)},
		jetstream.ExpectedStreamHeader:      {r.cfg.Result.Stream},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(after, 10)},
	}}
	ack, err := r.js.PublishMsgAsync(msg)
	if err != nil {
		return nil, fmt.Errorf("publish on %s: %w", msg.Subject, err)
	}
	return ack, nil
}

// isMarked reports whether a mark was refused because another redrive has stored it.
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
