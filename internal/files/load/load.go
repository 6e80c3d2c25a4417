// Package load publishes the rows of a source to the input stream, each once.
//
// A [Source] is a file or standard input, its [FileRows] are messages (source.go), and a
// [Loader] publishes them. How far a load is, is kept in the results stream (position.go),
// so a load that was killed continues where it was. A file may have grown since (grown.go).
package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Loader publishes the rows of one source to the input stream, in order and each once,
// even if processes are killed and the stream has dropped rows since. A [loadRecord] in
// the results stream says how far it got, and so does the last of its rows while that is
// still in the input. The rows of a group are stored together or not at all. On a stream
// that does not allow atomic publishing, a group is one row.
//
// Two loaders of one source begin with the same row, and publish it on condition that the
// input has not changed since they looked. The condition is that the row's subject still
// ends with the same row or, if the subject is empty, that the whole stream has not grown.
// Sequences are never reused, so one of the two is refused, even after a long suspension.
// That the subject is still empty would not do as the condition:
//
//  1. A and B see an empty subject. A is suspended.
//  2. B publishes rows 1 to 500. The stage answers them, and the stream removes them.
//  3. A resumes. The subject is empty again, and A would publish the same rows once more.
//
// It is not safe for concurrent use.
type Loader struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	stream    string
	id        string
	batch     bool
	group     int        // most rows of a group, and between two records
	entrances []entrance // one for each partition
	key       string     // field that chooses the partition of a row, or "" for each in turn

	position loadPosition
	known    int64  // rows that the server has confirmed to this loader
	end      uint64 // stream sequence of the last of them, or 0 if it is unknown
	last     uint64 // last sequence of the stream when this loader looked, or appended
	skip     int64  // next rows of the source that another loader has stored
}

const (
	// groupRows and groupBytes bound a group. A group ends with the row that reaches one of
	// them.
	groupRows  = 500
	groupBytes = 4 << 20
	// retryWaitFirst is the wait before the first retry; it doubles up to RetryWaitMax.
	retryWaitFirst = 50 * time.Millisecond
	// RetryWaitMax is the longest wait between two attempts to publish.
	RetryWaitMax = 5 * time.Second
)

// entrance is how a source's rows get into one partition.
type entrance struct {
	streams.InputAddress
	end uint64 // stream sequence of the last message there, or 0
}

var (
	// errRivalLoad ends one of two loaders of one source. The other one has written the
	// newest record, and continues.
	errRivalLoad = errors.New("another load of the same source is running")
	// errRowsLost ends a loader whose rows the server lost in a power cut. The next one
	// finds out which they are.
	errRowsLost = errors.New("the stream has lost rows that it had confirmed: load again")
)

// New finds out how far an earlier load of the same source got: its first loaded rows are
// stored. The subjects that id makes below the input must belong to this source alone. The
// value of a row's field key chooses its partition, so that rows of equal value keep their
// order. All rows without the field, and all that are no objects, are in one partition,
// too. With an empty key, rows go to each partition in turn. The key must be the same at
// each load of a source. Streams that do not fit are a [config.Error].
func New(ctx context.Context, nc *nats.Conn, cfg *config.Config, id, key string) (l *Loader, loaded int64, err error) {
	js, err := streams.JetStream(nc)
	if err != nil {
		return nil, 0, err
	}
	s, err := js.Stream(ctx, cfg.Input.Stream)
	if err != nil {
		return nil, 0, fmt.Errorf("look at stream %s: %w", cfg.Input.Stream, err)
	}
	info := s.CachedInfo().Config
	l = &Loader{nc: nc, js: js, stream: cfg.Input.Stream, id: id, batch: info.AllowAtomicPublish, group: groupRows, key: key}
	for p := range cfg.Streams.Partitions {
		address, err := streams.AddressInput(info, cfg.Input.Subject, p, id)
		if err != nil {
			return nil, 0, config.Invalid(config.Explained(err))
		}
		l.entrances = append(l.entrances, entrance{InputAddress: address})
	}
	if l.position, err = newLoadPosition(ctx, js, cfg, l.entrances[0].Stored); err != nil {
		return nil, 0, err
	}
	loaded, l.position.seq, err = l.look(ctx)
	return l, loaded, err
}

// Subjects returns where the rows go, for people.
func (l *Loader) Subjects() string {
	if len(l.entrances) == 1 {
		return l.entrances[0].Publish
	}
	return fmt.Sprintf("%s … (%d partitions)", l.entrances[0].Publish, len(l.entrances))
}

// look finds out how many rows are stored, and the sequence of the newest record. The
// order of its reads matters:
//
//  1. The newest record. It counts no row that came after the end that is read next, unless
//     the stream has lost its end.
//  2. The end of the stream.
//  3. The rows. One that another loader publishes between 2 and 3 is found here, and look
//     begins again. One that it publishes after 3 moves the ends of its subject and of the
//     stream, so that the next append, on condition of one of them, is refused.
func (l *Loader) look(ctx context.Context) (loaded int64, newest uint64, err error) {
	for {
		m, err := l.position.newest(ctx)
		if err != nil {
			return 0, 0, err
		}
		s, err := l.js.Stream(ctx, l.stream)
		if err != nil {
			return 0, 0, fmt.Errorf("look at stream %s: %w", l.stream, err)
		}
		input := s.CachedInfo()
		last := input.State.LastSeq
		if last < l.end {
			return 0, 0, fmt.Errorf("stream %s: %w", l.stream, errRowsLost)
		}
		record, err := l.position.valid(ctx, m, input, l.isRow)
		if err != nil {
			return 0, 0, err
		}
		loaded, end, seen, err := l.rows(ctx, record, last)
		if err != nil {
			return 0, 0, err
		}
		if seen > last { // a row was published meanwhile, and others may have been missed
			continue
		}
		if l.last = last; loaded > l.known {
			l.known, l.end = loaded, end
		}
		return l.known, m.Sequence, nil
	}
}

// rows returns how many rows are stored, the sequence of the last, or 0 if it is unknown,
// and the highest sequence of a row that was found.
func (l *Loader) rows(ctx context.Context, record loadRecord, last uint64) (loaded int64, end, seen uint64, err error) {
	furthest, end, all, err := l.lastRows(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	if furthest < record.Loaded {
		furthest, end = record.Loaded, record.End
	}
	if all || furthest >= record.Until || last == record.Last {
		return furthest, end, end, nil
	}
	n, seen, err := l.countSince(ctx, record)
	if counted := min(record.Loaded+n, record.Until); counted > furthest {
		return counted, 0, max(seen, end), err
	}
	return furthest, end, max(seen, end), err
}

// lastRows reads the last row of this source in each partition, and also where the
// subject ends. Rows are stored one after the other, or in groups that are stored whole
// or not at all. So if all partitions have a last row, the furthest is the position of
// the load.
func (l *Loader) lastRows(ctx context.Context) (furthest int64, end uint64, all bool, err error) {
	all = true
	for i := range l.entrances {
		e := &l.entrances[i]
		m, err := streams.LastMessage(ctx, l.nc, l.stream, e.Stored)
		if err != nil {
			return 0, 0, false, fmt.Errorf("read the last row on %s: %w", e.Stored, err)
		}
		if m == nil {
			e.end, all = 0, false
			continue
		}
		row, err := strconv.ParseInt(m.Header.Get(streams.HeaderLoadRow), 10, 64)
		if err != nil || m.Header.Get(streams.HeaderLoadID) != l.id {
			return 0, 0, false, fmt.Errorf("another program publishes on %s, the subject of this load: message %d has no %s %s", e.Stored, m.Sequence, streams.HeaderLoadID, l.id)
		}
		if e.end = m.Sequence; row > furthest {
			furthest, end = row, m.Sequence
		}
	}
	return furthest, end, all, nil
}

// isRow reports whether the message at a sequence of the input is this source's row n, or
// is gone, and so may have been that row.
func (l *Loader) isRow(ctx context.Context, seq uint64, n int64) (bool, error) {
	m, err := streams.MessageAt(ctx, l.nc, l.stream, seq)
	if err != nil || m == nil {
		return err == nil, err
	}
	return m.Header.Get(streams.HeaderLoadID) == l.id && m.Header.Get(streams.HeaderLoadRow) == strconv.FormatInt(n, 10), nil
}

// countSince counts the rows that were stored after a record: those that are in the
// input, and those that were taken from there and have their result. The input is read
// first. In the other order, a row that is answered between the two reads, and then leaves
// the input, would be in neither.
func (l *Loader) countSince(ctx context.Context, record loadRecord) (n int64, highest uint64, err error) {
	rows := make(map[uint64]bool)
	most := int(record.Until - record.Loaded)
	for _, e := range l.entrances {
		for from := record.Last + 1; len(rows) < most; {
			m, err := streams.NextMessage(ctx, l.nc, l.stream, e.Stored, from)
			if err != nil {
				return 0, 0, err
			}
			if m == nil {
				break
			}
			rows[m.Sequence] = true
			from = m.Sequence + 1
		}
	}
	err = l.position.results(ctx, record, func(subject string, seq uint64) bool {
		if slices.ContainsFunc(l.entrances, func(e entrance) bool { return e.Stored == subject }) {
			rows[seq] = true
		}
		return len(rows) < most
	})
	for seq := range rows {
		highest = max(highest, seq)
	}
	return int64(len(rows)), highest, err
}

// Run publishes what next returns until [io.EOF]. The first row that next returns is row
// loaded+1 of the source. stored is called after each group with the number of rows of
// the source that are stored. Run retries until ctx ends. It does not wait for a call of
// next that is under way then.
func (l *Loader) Run(ctx context.Context, loaded int64, next func() (*nats.Msg, error), stored func(rows int64)) error {
	rows := readAhead(next)
	defer rows.stop()
	for {
		group, eof, err := l.gather(loaded, rows.group(ctx))
		if len(group) > 0 {
			var storeErr error
			if loaded, storeErr = l.store(ctx, group, loaded); storeErr != nil {
				return storeErr
			}
			stored(loaded)
		}
		switch {
		case err != nil:
			return err
		case eof && l.position.ended(loaded):
			return nil
		case eof:
			return l.record(ctx, loaded, loaded)
		}
	}
}

// entranceOf returns the entrance of row n of the source, counted from 1.
func (l *Loader) entranceOf(body []byte, n int64) *entrance {
	if all := int64(len(l.entrances)); l.key == "" || all == 1 {
		return &l.entrances[(n-1)%all]
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(body, &fields) // a body that is no object has no fields
	h := fnv.New32a()
	_, _ = h.Write(fields[l.key])                           // a hash never fails
	return &l.entrances[h.Sum32()%uint32(len(l.entrances))] //nolint:gosec // few
}

// gather takes the next group of rows, the first after row loaded.
func (l *Loader) gather(loaded int64, next func() (*nats.Msg, error)) (group []*nats.Msg, eof bool, err error) {
	most, bytes := l.group, 0
	if !l.batch {
		most = 1
	}
	for len(group) < most && bytes < groupBytes {
		m, err := next()
		if errors.Is(err, io.EOF) {
			return group, true, nil
		}
		if errors.Is(err, errQuiet) {
			return group, false, nil
		}
		if err != nil {
			return group, false, err
		}
		if l.skip > 0 {
			l.skip--
			continue
		}
		if m.Header == nil {
			m.Header = make(nats.Header, 2)
		}
		n := loaded + int64(len(group)) + 1
		m.Subject = l.entranceOf(m.Data, n).Publish
		m.Header.Set(streams.HeaderLoadID, l.id)
		m.Header.Set(streams.HeaderLoadRow, strconv.FormatInt(n, 10))
		bytes += len(m.Data)
		group = append(group, m)
	}
	return group, false, nil
}

// record writes that the rows up to loaded are stored, and that this loader may store those
// up to until.
func (l *Loader) record(ctx context.Context, loaded, until int64) error {
	for range streams.Retry(ctx, retryWaitFirst, RetryWaitMax) {
		err := l.position.write(ctx, loadRecord{Loaded: loaded, Until: until, End: l.end, Last: l.last})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errRivalLoad):
			return fmt.Errorf("load rows on %s: %w", l.entrances[0].Publish, err)
		case Refused(err), errors.Is(err, nats.ErrPermissionViolation):
			return fmt.Errorf("record the position of the load: %w", err)
		}
	}
	return context.Cause(ctx)
}

// store appends one group, the first after row loaded, and returns how many rows are
// stored by then. It retries until the group is stored, ctx ends, or the server refuses
// it for good. After a refusal or without an answer the next attempt is one row: it is
// refused less often than a batch, and the condition of the next batch is built on it.
//
// Of two loaders, the one with the newest record continues. The other one ends, but it may
// still store the rows that it has recorded. So more rows may be stored than this group
// has. For example, this loader has a group of 216 rows, and the other one stores the 500
// that it has recorded. Rows 217 to 500 of the source are skipped then. If this loader
// ended, too, no loader would be left.
func (l *Loader) store(ctx context.Context, group []*nats.Msg, loaded int64) (int64, error) {
	if !l.position.admits(loaded + int64(len(group))) {
		if err := l.record(ctx, loaded, loaded+int64(l.group)); err != nil {
			return loaded, err
		}
	}
	n, wait := len(group), retryWaitFirst
	for len(group) > 0 {
		err := l.publish(ctx, group[:n], loaded)
		if err == nil {
			group, loaded = group[n:], loaded+int64(n)
			n, wait = len(group), retryWaitFirst
			continue
		}
		if ctx.Err() != nil {
			return loaded, context.Cause(ctx)
		}
		// Without an answer, the rows may be stored. After a refusal, another loader may have
		// stored them, or rows may be gone. The streams show which.
		now, newest, lookErr := l.look(ctx)
		switch {
		case errors.Is(lookErr, errRowsLost):
			return loaded, lookErr
		case lookErr != nil:
		case newest != l.position.seq:
			return loaded, fmt.Errorf("load rows on %s: %w", group[0].Subject, errRivalLoad)
		case now == loaded && n == 1 && Refused(err):
			return loaded, fmt.Errorf("load rows: %w", err)
		default:
			here := min(now-loaded, int64(len(group)))
			l.skip += now - loaded - here
			group, loaded = group[here:], now
		}
		n = min(1, len(group))
		if err := Pause(ctx, wait); err != nil {
			return loaded, err
		}
		wait = min(2*wait, RetryWaitMax)
	}
	return loaded, nil
}

// publish appends rows, the first after row loaded, on condition that the input is as it
// was at the last look.
func (l *Loader) publish(ctx context.Context, rows []*nats.Msg, loaded int64) error {
	first := rows[0]
	if end := l.entranceOf(first.Data, loaded+1).end; end > 0 {
		first.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(end, 10))
		first.Header.Del(jetstream.ExpectedLastSeqHeader)
	} else {
		first.Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(l.last, 10))
		first.Header.Del(jetstream.ExpectedLastSubjSeqHeader)
	}
	seq, err := streams.Append(ctx, l.nc, rows)
	if err != nil {
		return err
	}
	for i, m := range rows { // the messages of a group have consecutive sequences
		l.entranceOf(m.Data, loaded+1+int64(i)).end = seq - uint64(len(rows)-1-i)
	}
	l.known, l.end, l.last = loaded+int64(len(rows)), seq, seq
	return nil
}

// Pause waits, and returns early with the cause when ctx ends.
func Pause(ctx context.Context, wait time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(wait):
		return nil
	}
}

// Refused reports whether the server, or its client library, refuses a message for good.
func Refused(err error) bool {
	return streams.RefusedForGood(err) || streams.TooLarge(err) ||
		errors.Is(err, nats.ErrBadHeaderMsg) || errors.Is(err, nats.ErrBadSubject)
}
