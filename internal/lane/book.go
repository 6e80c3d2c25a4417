package lane

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// headerRecord names one record: an append without an answer is recognised by it.
	headerRecord = "Stage-Lane-Record"
	// bookRetryFirst and bookRetryMost bound the wait after an append that failed.
	bookRetryFirst = 50 * time.Millisecond
	bookRetryMost  = 5 * time.Second
	// recordSpare is what a message takes besides its body.
	recordSpare = 4 << 10
	// proofAge is how old a proof of the ownership may be when a batch is created.
	proofAge = time.Second
)

// book appends records to the stream, one after the other, each on condition that nobody
// else has appended since: the lane's fence. Its invariant is that end is the sequence of
// the partition's last record as long as this term owns the partition. Another term that
// claims appends, so the next append here is refused, and the stream's last record says
// by whom we are fenced.
//
// The keeper owns it, but for proof: a creation reads and renews the proof in a goroutine
// of its own.
type book struct {
	lane           *Lane
	cfg            *Config
	loop           *loop
	owner          string
	filter, prefix string

	queue    []*entry
	busy     bool   // an append is under way; its entry is not in queue
	end      uint64 // sequence of the partition's last record
	endToken string // last token of that record's subject
	// proof is when it was last certain that nobody else had appended, in Unix
	// nanoseconds.
	proof atomic.Int64

	next    time.Time // when the next append may be tried
	tried   int       // failures in a row
	problem string    // the last failure, for people

	// onFenced is called when another term has appended, onLost when the stream no longer
	// has the records that this term relies on.
	onFenced func(error)
	onLost   func(failed *entry, now time.Time)
}

// entry is a record that waits to be stored.
type entry struct {
	record *Record
	id     string
	data   []byte
	after  func(now time.Time)
	unsure bool // it may be stored already
}

func newEntry(r *Record, after func(time.Time)) (*entry, error) {
	data, err := json.Marshal(r)
	return &entry{record: r, id: rand.Text(), data: data, after: after}, err
}

// claim begins the term in the stream. Nobody else touches the book yet.
func (b *book) claim(ctx context.Context, r *Record) error {
	r.Owner = b.owner
	e, err := newEntry(r, nil)
	if err != nil {
		return err
	}
	for wait := range streams.Retry(ctx, bookRetryFirst, bookRetryMost) {
		last, err := streams.LastMessage(ctx, b.cfg.conn(), b.cfg.Settings.Stream, b.filter)
		var v verdict
		if err == nil {
			var end uint64
			if last != nil {
				if end = last.Sequence; last.Header.Get(headerRecord) == e.id {
					b.end, b.endToken = end, claimToken
					return nil
				}
			}
			v = b.try(ctx, e, end)
			err = v.err
		}
		if v.stored > 0 {
			b.proof.Store(v.proof.UnixNano())
			b.end, b.endToken = v.stored, claimToken
			return nil
		}
		if err != nil && wait >= bookRetryMost/2 { // the term ends, and the next one tries again
			return fmt.Errorf("claim the batch lane in stream %s: %w", b.cfg.Settings.Stream, streams.Denied(b.cfg.conn(), err, streams.APISubjects, "lane.>"))
		}
	}
	return context.Cause(ctx)
}

// read returns all records up to the end. The replica that answers may lag behind: then
// it is asked again, since a batch whose intent is missing would be submitted a second
// time.
func (b *book) read(ctx context.Context) (records []Record, err error) {
	for wait := range streams.Retry(ctx, bookRetryFirst, bookRetryMost) {
		records, err = Records(ctx, b.cfg.jetStream(), b.cfg.Settings.Stream, b.cfg.Name, b.cfg.Partition)
		if err == nil && len(records) > 0 && records[len(records)-1].Sequence >= b.end {
			return records, nil
		}
		if wait >= bookRetryMost/2 {
			return nil, cmp.Or(err, fmt.Errorf("the records of the batch lane in stream %s end before the claim", b.cfg.Settings.Stream))
		}
	}
	return nil, context.Cause(ctx)
}

// record queues a record of this term. When it is stored the keeper runs after, unless
// that is nil.
func (b *book) record(r *Record, after func(time.Time)) {
	r.Owner = b.owner
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	e, err := newEntry(r, after)
	if err != nil {
		panic(fmt.Sprintf("lane: a record can't be written: %v", err)) // numbers, texts and times
	}
	b.queue = append(b.queue, e)
}

// restart begins an empty log with these records. The one that failed and those in the
// queue follow.
func (b *book) restart(records []*Record, failed *entry, now time.Time) {
	rest := append([]*entry{failed}, b.queue...)
	b.queue, b.end, b.endToken = nil, 0, ""
	for _, r := range records {
		b.record(r, nil)
	}
	for _, e := range b.queue {
		e.unsure = true // so these go first, in this order, with the intents among them
	}
	for _, e := range rest {
		e.unsure = false
	}
	b.queue, b.next = append(b.queue, rest...), now.Add(bookRetryFirst)
}

// write sends the next record, if none is on its way.
func (b *book) write(ctx context.Context, now time.Time) {
	if b.busy || len(b.queue) == 0 || b.loop.wait(b.next, now) {
		return
	}
	e, end := b.pick(), b.end
	b.busy = true
	b.loop.do(ctx, 4*streams.RequestTimeout, func(ctx context.Context) followUp {
		if e.record.Kind == RecordIntent {
			b.lane.step("intent")
		}
		v := b.try(ctx, e, end)
		if v.stored > 0 {
			b.lane.step(stepOf[e.record.Kind])
		}
		return func(ctx context.Context, now time.Time) { b.written(ctx, e, v, now) }
	})
}

// pick takes the next record out of the queue. One that may be stored already goes first.
// Intents are large: they go behind the others, so that a full stream keeps nobody from
// recording that a batch is done, which makes room.
func (b *book) pick() *entry {
	at := -1
	for i, e := range b.queue {
		if e.unsure {
			at = i
			break
		}
		if at < 0 && e.record.Kind != RecordIntent {
			at = i
		}
	}
	at = max(at, 0)
	e := b.queue[at]
	b.queue = append(b.queue[:at:at], b.queue[at+1:]...)
	return e
}

var stepOf = map[RecordKind]string{
	RecordIntent: "recorded", RecordSubmitted: "submitted recorded", RecordDone: "done recorded", RecordAbandoned: "abandoned recorded", RecordClaim: "claimed",
}

// verdict is what became of an append.
type verdict struct {
	stored uint64    // its sequence, 0 if it is not stored
	proof  time.Time // when nobody else had appended, zero if that is not known
	fenced error
	lost   bool // the stream has lost the records
	unsure bool
	err    error
}

// try appends a record once.
func (b *book) try(ctx context.Context, e *entry, end uint64) verdict {
	sent := time.Now()
	seq, err := streams.Append(ctx, b.cfg.conn(), []*nats.Msg{b.message(e, end)})
	if err == nil {
		return verdict{stored: seq, proof: sent}
	}
	// No answer, or a refusal that is no verdict: the log knows.
	unsure := e.unsure || !errors.Is(err, streams.ErrRefused)
	sent = time.Now()
	last, readErr := streams.LastMessage(ctx, b.cfg.conn(), b.cfg.Settings.Stream, b.filter)
	switch {
	case readErr != nil:
		return verdict{unsure: unsure, err: errors.Join(err, readErr)}
	case last != nil && last.Header.Get(headerRecord) == e.id:
		return verdict{stored: last.Sequence, proof: sent}
	case last == nil && end > 0, last != nil && last.Sequence < end:
		return verdict{lost: true, err: err}
	case last != nil && last.Sequence > end:
		return verdict{fenced: fencedBy(last)}
	}
	return verdict{proof: sent, unsure: unsure, err: err}
}

func (b *book) message(e *entry, end uint64) *nats.Msg {
	return &nats.Msg{Subject: b.prefix + e.record.token(), Data: e.data, Header: nats.Header{
		streams.HeaderOwner:                     {e.record.Owner},
		headerRecord:                            {e.id},
		jetstream.ExpectedLastSubjSeqHeader:     {strconv.FormatUint(end, 10)},
		jetstream.ExpectedLastSubjSeqSubjHeader: {b.filter},
	}}
}

// token is the last token of the record's subject.
func (r *Record) token() string {
	if r.Kind == RecordClaim {
		return claimToken
	}
	return r.Token
}

func fencedBy(last *jetstream.RawStreamMsg) error {
	return fmt.Errorf("%w: the records of its batches end at %d with owner %s", consumer.ErrFenced, last.Sequence, last.Header.Get(streams.HeaderOwner))
}

func (b *book) written(ctx context.Context, e *entry, v verdict, now time.Time) {
	b.busy = false
	if !v.proof.IsZero() {
		b.proof.Store(max(b.proof.Load(), v.proof.UnixNano()))
	}
	switch {
	case v.fenced != nil:
		b.onFenced(v.fenced)
	case v.stored > 0:
		b.end, b.endToken, b.tried, b.problem, b.next = v.stored, e.record.token(), 0, "", time.Time{}
		if e.after != nil {
			e.after(now)
		}
	case v.lost:
		b.onLost(e, now)
	default:
		e.unsure = v.unsure
		b.queue = append([]*entry{e}, b.queue...)
		b.failed(ctx, v.err, now)
	}
}

func (b *book) failed(ctx context.Context, err error, now time.Time) {
	if ctx.Err() != nil {
		return
	}
	b.problem = fmt.Sprintf("record a batch in stream %s: %v", b.cfg.Settings.Stream, streams.Denied(b.cfg.conn(), err, streams.APISubjects, "lane.>"))
	b.next = now.Add(min(bookRetryFirst<<min(b.tried, 10), bookRetryMost))
	b.tried++
}

// prove returns an instant at which this term surely owned the partition, at most
// proofAge before the call. It returns an error where that is not certain. The last proof
// serves if it is young enough; otherwise the stream is asked.
func (b *book) prove(ctx context.Context) (at time.Time, err error) {
	if at = time.Unix(0, b.proof.Load()); time.Since(at) < proofAge {
		return at, nil
	}
	at = time.Now()
	last, err := streams.LastMessage(ctx, b.cfg.conn(), b.cfg.Settings.Stream, b.filter)
	switch {
	case err != nil:
		return at, err
	case last == nil:
		return at, errors.New("the records of the batch lane are gone")
	case last.Header.Get(streams.HeaderOwner) != b.owner:
		return at, fencedBy(last)
	}
	b.proof.Store(max(b.proof.Load(), at.UnixNano()))
	return at, nil
}
