package lane

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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

// book appends records to the stream, one after the other, each on condition that nobody else has appended since: the
// lane's fence. The goroutine of the term owns it but for proof.
type book struct {
	filter, prefix string
	queue          []*entry
	busy           bool
	end            uint64 // sequence of the partition's last record
	endToken       string
	proof          atomic.Int64 // when it was last certain that nobody else had appended, in Unix ns
	next           time.Time
	tried          int
	problem        string
}

// entry is a record that is to be stored.
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

// token is the last token of the record's subject.
func (r *Record) token() string {
	if r.Kind == RecordClaim {
		return claimToken
	}
	return r.Token
}

func (b *book) message(e *entry, end uint64) *nats.Msg {
	return &nats.Msg{Subject: b.prefix + e.record.token(), Data: e.data, Header: nats.Header{
		streams.HeaderOwner:                     {e.record.Owner},
		headerRecord:                            {e.id},
		jetstream.ExpectedLastSubjSeqHeader:     {strconv.FormatUint(end, 10)},
		jetstream.ExpectedLastSubjSeqSubjHeader: {b.filter},
	}}
}

// push queues a record. Intents are large: they go behind the others, so that a full stream keeps nobody from recording
// that a batch is done, which makes room.
func (b *book) push(e *entry) { b.queue = append(b.queue, e) }

// pick takes the next record out of the queue. One that may be stored already goes first.
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

// verdict is what became of an append.
type verdict struct {
	stored uint64    // 0: it is not
	proof  time.Time // zero: nothing is proven
	fenced error
	lost   bool // the stream has lost the records
	unsure bool
	err    error
}

// try appends a record once.
func (l *Lane) try(ctx context.Context, b *book, e *entry, end uint64) verdict {
	sent := time.Now()
	seq, err := streams.Append(ctx, l.cfg.conn(), []*nats.Msg{b.message(e, end)})
	if err == nil {
		return verdict{stored: seq, proof: sent}
	}
	// No answer, or a refusal that is no verdict: the log knows.
	unsure := e.unsure || !errors.Is(err, streams.ErrRefused)
	sent = time.Now()
	last, readErr := streams.LastMessage(ctx, l.cfg.conn(), l.cfg.Settings.Stream, b.filter)
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

func fencedBy(last *jetstream.RawStreamMsg) error {
	return fmt.Errorf("%w: the records of its batches end at %d with owner %s", consumer.ErrFenced, last.Sequence, last.Header.Get(streams.HeaderOwner))
}

// write sends the next record, if none is on its way.
func (t *term) write(ctx context.Context, now time.Time) {
	b := &t.book
	if b.busy || len(b.queue) == 0 || t.wait(b.next, now) {
		return
	}
	e, end := b.pick(), b.end
	b.busy = true
	t.do(ctx, 4*streams.RequestTimeout, func(ctx context.Context) func(context.Context, time.Time) {
		if e.record.Kind == RecordIntent {
			t.l.step("intent")
		}
		v := t.l.try(ctx, b, e, end)
		if v.stored > 0 {
			t.l.step(stepOf[e.record.Kind])
		}
		return func(ctx context.Context, now time.Time) { t.written(ctx, e, v, now) }
	})
}

var stepOf = map[RecordKind]string{
	RecordIntent: "recorded", RecordSubmitted: "submitted recorded", RecordDone: "done recorded", RecordAbandoned: "abandoned recorded", RecordClaim: "claimed",
}

func (t *term) written(ctx context.Context, e *entry, v verdict, now time.Time) {
	b := &t.book
	b.busy = false
	if !v.proof.IsZero() {
		b.proof.Store(max(b.proof.Load(), v.proof.UnixNano()))
	}
	switch {
	case v.fenced != nil:
		t.fence(v.fenced)
	case v.stored > 0:
		b.end, b.endToken, b.tried, b.problem, b.next = v.stored, e.record.token(), 0, "", time.Time{}
		if e.after != nil {
			e.after(now)
		}
	case v.lost:
		t.rewrite(e, now)
	default:
		e.unsure = v.unsure
		b.queue = append([]*entry{e}, b.queue...)
		t.bookProblem(ctx, v.err, now)
	}
}

func (t *term) bookProblem(ctx context.Context, err error, now time.Time) {
	b := &t.book
	if ctx.Err() != nil {
		return
	}
	b.problem = fmt.Sprintf("record a batch in stream %s: %v", t.cfg.Settings.Stream, streams.Denied(t.cfg.conn(), err, streams.APISubjects, "lane.>"))
	b.next = now.Add(min(bookRetryFirst<<min(b.tried, 10), bookRetryMost))
	b.tried++
}

// rewrite records everything again that is still of use: the stream was emptied, or deleted and created again.
func (t *term) rewrite(failed *entry, now time.Time) {
	b := &t.book
	t.l.log.Warn("the records of the batch lane are gone: they are written again", slog.String("stream", t.cfg.Settings.Stream))
	old := append([]*entry{failed}, b.queue...)
	b.queue, b.end, b.endToken = nil, 0, ""
	t.record(&Record{Kind: RecordClaim, InputCreated: t.of.InputCreated}, nil)
	for _, open := range t.batches {
		if open.stage == stageSealed || open.stage == stageClosed {
			continue // its intent is in the queue, or nothing is wanted of it
		}
		t.record(t.intentOf(open), nil)
		if open.id != "" && open.stage != stageFound {
			t.record(&Record{Kind: RecordSubmitted, Token: open.token, BatchID: open.id, Adopted: open.adopted, Tentative: open.tentative, Time: open.submitted}, nil)
		}
	}
	for _, e := range old {
		e.unsure = false
		b.queue = append(b.queue, e)
	}
	// Intents go behind the other records: nothing but a claim, or what was written before, may precede them here.
	for _, e := range b.queue[:len(b.queue)-len(old)] {
		e.unsure = true
	}
	b.next = now.Add(bookRetryFirst)
}

// record queues a record of this term.
func (t *term) record(r *Record, after func(time.Time)) {
	r.Owner = t.of.Owner
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	e, err := newEntry(r, after)
	if err != nil {
		panic(fmt.Sprintf("lane: a record can't be written: %v", err)) // numbers, texts and times
	}
	t.book.push(e)
}

// prove returns an error where it is not certain that this term still owns the partition, and until when a creation may
// take. A proof that is older than a second is not enough.
func (t *term) prove(ctx context.Context) (at time.Time, err error) {
	if at = time.Unix(0, t.book.proof.Load()); time.Since(at) < proofAge {
		return at, nil
	}
	at = time.Now()
	last, err := streams.LastMessage(ctx, t.cfg.conn(), t.cfg.Settings.Stream, t.book.filter)
	switch {
	case err != nil:
		return at, err
	case last == nil:
		return at, errors.New("the records of the batch lane are gone")
	case last.Header.Get(streams.HeaderOwner) != t.of.Owner:
		return at, fencedBy(last)
	}
	t.book.proof.Store(max(t.book.proof.Load(), at.UnixNano()))
	return at, nil
}

// claim begins the term in the stream, and returns where.
func (l *Lane) claim(ctx context.Context, b *book, r *Record) (uint64, error) {
	e, err := newEntry(r, nil)
	if err != nil {
		return 0, err
	}
	for wait := range streams.Retry(ctx, bookRetryFirst, bookRetryMost) {
		last, err := streams.LastMessage(ctx, l.cfg.conn(), l.cfg.Settings.Stream, b.filter)
		var v verdict
		if err == nil {
			var end uint64
			if last != nil {
				if end = last.Sequence; last.Header.Get(headerRecord) == e.id {
					return end, nil
				}
			}
			v = l.try(ctx, b, e, end)
			err = v.err
		}
		if v.stored > 0 {
			b.proof.Store(v.proof.UnixNano())
			return v.stored, nil
		}
		if err != nil && wait >= bookRetryMost/2 { // the term ends, and the next one tries again
			return 0, fmt.Errorf("claim the batch lane in stream %s: %w", l.cfg.Settings.Stream, streams.Denied(l.cfg.conn(), err, streams.APISubjects, "lane.>"))
		}
	}
	return 0, context.Cause(ctx)
}
