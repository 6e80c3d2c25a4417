package redrive

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/seqset"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// headerRedriveResult names the failed result by its sequence in the results stream,
	// beside [streams.HeaderRedriveOf]: state ids repeat if the input stream is
	// re-created, those don't.
	headerRedriveResult = "Stage-Redrive-Result"
	// headerRedriveFrom on a mark is the input sequence where a search for the redriven
	// row starts, and headerRedriveAs is the sequence that the row got.
	headerRedriveFrom = "Stage-Redrive-From"
	headerRedriveAs   = "Stage-Redrive-As"

	// redriveTimeout bounds the publication of one group.
	redriveTimeout = 30 * time.Second
)

// redriveMarks are the marks of a partition: they say which failed results have been
// redriven. A mark is a message in the results stream on a subject of its own for each
// failed result, beside the logs of the partitions. So it doesn't disturb the conditions
// of the stage's appends, and it lives as long as the result. It is stored twice:
//
//  1. Before the row is published, on condition that there is no mark. Of two redrives
//     only one can win.
//  2. After the row is published, with the row's new sequence.
//
// A process that was killed in between leaves a mark that is begun. Another redrive
// stores the first mark again, on condition that it is still the last. It then searches
// the input for the row, from where the input ended when the first mark was made.
//
// One mark would not be enough. If the first were final, a kill before the append would
// lose the row. If it stayed begun, a row that has left the input since (acked, expired,
// purged) would be published again. If only the second were stored, each redrive would
// have to read the whole input for rows whose mark is missing.
type redriveMarks struct {
	done  seqset.Set              // sequences of results whose second mark is stored
	begun map[uint64]*redriveMark // first marks without a second one, by sequence of the result
}

// redriveMark is a mark that is begun.
type redriveMark struct {
	seq  uint64 // of the mark in the results stream; 0 means not stored yet
	from uint64 // sequence of the input where the search for its row starts
	as   uint64 // sequence of its row; 0 means that it is not published, as far as the search went
}

// markSubject returns the subject of a result's mark, or a filter.
func (r *redriver) markSubject(result string) string {
	return r.cfg.Result.Subject + "." + r.cfg.Name + ".redrive." + strconv.Itoa(r.partition) + "." + result
}

// readMarks reads the marks of the partition, and looks for the rows of those that are
// begun.
func (r *redriver) readMarks(ctx context.Context) (*redriveMarks, error) {
	marks := &redriveMarks{begun: make(map[uint64]*redriveMark)}
	o := stored.ReadOptions{Stream: r.cfg.Result.Stream, Filters: []string{r.markSubject(">")}, HeadersOnly: true}
	err := stored.Each(ctx, r.js, o, func(m *jetstream.RawStreamMsg) error {
		result, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 10, 64)
		if err != nil {
			return nil //nolint:nilerr // it is not a mark
		}
		if m.Header.Get(headerRedriveAs) != "" {
			marks.done.Add(result)
			delete(marks.begun, result)
			return nil
		}
		from, err := strconv.ParseUint(m.Header.Get(headerRedriveFrom), 10, 64)
		if err != nil {
			return fmt.Errorf("mark %d of stream %s has no %s header", m.Sequence, r.cfg.Result.Stream, headerRedriveFrom)
		}
		marks.begun[result] = &redriveMark{seq: m.Sequence, from: from}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return marks, r.findRows(ctx, marks.begun)
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
		if mark := begun[result]; err == nil && mark != nil && strings.HasPrefix(header.Get(streams.HeaderRedriveOf), r.cfg.Name+"/") {
			mark.as = seq
		}
	}
}

// inputFrom returns a function that reads the headers of the input from a sequence on. At
// the end it returns the sequence 0.
func (r *redriver) inputFrom(ctx context.Context, from uint64) (next func() (nats.Header, uint64, error), stop func(), err error) {
	stream, filter := r.cfg.Input.Stream, r.cfg.Input.PartitionSubject(r.partition)
	// Such a stream allows no second reader, and holds few rows.
	if r.input.CachedInfo().Config.Retention != jetstream.LimitsPolicy {
		return func() (nats.Header, uint64, error) {
			m, err := streams.NextMessage(ctx, r.js.Conn(), stream, filter, from)
			if err != nil || m == nil {
				return nil, 0, err
			}
			from = m.Sequence + 1
			return m.Header, m.Sequence, nil
		}, func() {}, nil
	}
	reader, err := stored.Open(ctx, r.js, stored.ReadOptions{Stream: stream, Filters: []string{filter}, From: from})
	if err != nil {
		return nil, nil, err
	}
	return func() (nats.Header, uint64, error) {
		m, err := reader.Next(ctx)
		if err != nil || m == nil {
			return nil, 0, err
		}
		return m.Header, m.Sequence, nil
	}, reader.Close, nil
}

// flush publishes the group: the first marks, the rows, and the second marks. Once it has
// begun it is not interrupted.
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
	// Published rows get their second mark even if others failed: the next redrive need
	// not look for them.
	rowErr := r.publishRows(ctx, rows)
	return errors.Join(rowErr, r.finish(ctx, rows))
}

// begin stores the marks of rows before they are published, also of those that an earlier
// redrive has begun: that one may be suspended, not dead. It returns the rows that are ours
// now. The end of the input is read first: a redrive that takes over our marks publishes
// behind it, and then our append, on condition of that end, is refused.
func (r *redriver) begin(ctx context.Context, rows []*redriveRow) (ours []*redriveRow, err error) {
	if err := r.readLast(ctx); err != nil {
		return nil, err
	}
	takenOver := make(map[uint64]*redriveMark)
	for _, row := range rows {
		if row.begun == nil {
			row.begun = &redriveMark{from: r.last + 1}
		} else if row.begun.as == 0 {
			takenOver[row.at] = row.begun
		}
	}
	ours, err = r.storeMarks(ctx, rows, headerRedriveFrom, func(m *redriveMark) uint64 {
		if m.as > 0 { // published by a redrive that was killed
			return 0
		}
		return m.from
	})
	if err != nil {
		return nil, err
	}
	r.marked = 0
	r.done.Before += len(rows) - len(ours) // another redrive was faster, or is publishing them
	if err := r.findRows(ctx, takenOver); err != nil {
		return nil, err
	}
	for _, row := range ours {
		if row.begun.as > 0 {
			r.done.Before++
		}
	}
	return ours, nil
}

// storeMarks stores the next mark of each row, all at once, with the value of its mark
// under key. Rows whose value is 0 need none. A mark is stored on condition that the mark
// before it is still the last. It returns the rows that need no mark or whose mark was
// stored. For the others, another redrive was faster.
func (r *redriver) storeMarks(ctx context.Context, rows []*redriveRow, key string, value func(*redriveMark) uint64) (ours []*redriveRow, err error) {
	acks := make([]jetstream.PubAckFuture, len(rows))
	for i, row := range rows {
		n := value(row.begun)
		if n == 0 {
			continue
		}
		msg := &nats.Msg{Subject: r.markSubject(strconv.FormatUint(row.at, 10)), Header: nats.Header{
			streams.HeaderStateID: {row.stateID}, key: {strconv.FormatUint(n, 10)},
			jetstream.ExpectedStreamHeader:      {r.cfg.Result.Stream},
			jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(row.begun.seq, 10)},
		}}
		if acks[i], err = r.js.PublishMsgAsync(msg); err != nil {
			return nil, fmt.Errorf("publish on %s: %w", msg.Subject, err)
		}
	}
	for i, row := range rows {
		if acks[i] != nil {
			select {
			case ack := <-acks[i].Ok():
				row.begun.seq = ack.Sequence
			case err = <-acks[i].Err():
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
			if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
				err = nil
				continue
			}
			if err != nil {
				return nil, r.explainMark(row.at, err)
			}
		}
		ours = append(ours, row)
	}
	return ours, nil
}

// explainMark returns the error of a mark that is not stored. It adds the cause if no
// stream takes marks.
func (r *redriver) explainMark(result uint64, err error) error {
	err = fmt.Errorf("mark result %d as redriven on %s: %w", result, r.markSubject(">"), err)
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w (stream %s must capture the subject)", err, r.cfg.Result.Stream)
	}
	return err
}

// readLast reads where the input ends, or the copies of results if rows are copies: the
// stream may also hold results of other stages, and all of them append to it.
func (r *redriver) readLast(ctx context.Context) error {
	if r.copied != "" {
		m, err := streams.LastMessage(ctx, r.js.Conn(), r.cfg.Input.Stream, r.copied)
		if err != nil {
			return fmt.Errorf("read the end of %s in stream %s: %w", r.copied, r.cfg.Input.Stream, err)
		}
		if r.last = 0; m != nil {
			r.last = m.Sequence
		}
		return nil
	}
	info, err := r.input.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", r.cfg.Input.Stream, err)
	}
	r.last = info.State.LastSeq
	return nil
}

// publishRows publishes in order the rows whose marks are ours and that are not there
// yet. Each append is on condition that the input has not grown since the marks were
// known to be ours: a redrive that was suspended meanwhile, for any time, is refused,
// reads its marks again and finds that they are another's. If the input grows for another
// reason, or does not accept the batch, rows go one by one. Message ids keep an older
// version, which knows no such condition, from publishing a row a second time.
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
			return errors.Join(append(refused, fmt.Errorf("publish row %d again on %s: %w", rows[0].of, rows[0].msg.Subject, context.Cause(ctx)))...)
		case n == 1 && load.Refused(err):
			refused = append(refused, fmt.Errorf("publish row %d again on %s: %w", rows[0].of, rows[0].msg.Subject, err))
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
	condition := jetstream.ExpectedLastSeqHeader
	if r.copied != "" { // the last on the message's own subject
		condition = jetstream.ExpectedLastSubjSeqHeader
	}
	msgs[0].Header.Set(condition, strconv.FormatUint(r.last, 10))
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

// remaining returns the rows that are still ours to publish, after an append that was
// refused or not answered. The marks are read after the end of the input on which the
// next append is conditioned.
func (r *redriver) remaining(ctx context.Context, rows []*redriveRow) (ours []*redriveRow, err error) {
	from := r.last + 1
	if err := r.readLast(ctx); err != nil {
		return nil, err
	}
	if ours, err = r.stillOurs(ctx, rows); err != nil {
		return nil, err
	}
	begun := make(map[uint64]*redriveMark)
	// Such a row is in the input if the answer got lost, or if the redrive before us has
	// published it meanwhile.
	for _, row := range ours {
		row.begun.from = from
		begun[row.at] = row.begun
	}
	if err := r.findRows(ctx, begun); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ours, func(row *redriveRow) bool {
		if row.begun.as > 0 {
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
	_, err := r.storeMarks(ctx, rows, headerRedriveAs, func(m *redriveMark) uint64 { return m.as })
	return err
}
