package erase

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// eraser does what a plan says: it changes the streams, and notes in the report what is done.
// It takes four steps, so that a kill in between leaves a tombstone whose result is still
// there:
//
//	bury          the tombstones of all rows are stored
//	tellResults   a caller that has copied the results removes them there
//	erase         what was found of each row goes, place by place, and its result last
//	record        the audit has an event of the erasure
type eraser struct {
	*store
	o      *Options
	report *Report
	rows   []*erasure
	run    string    // the id of this erasure, in claims and in the audit
	now    time.Time // of the plan
	// deleted has the batches whose files were tried to be deleted, and whether that worked.
	deleted map[Batch]bool
}

// all erases all rows.
func (r *eraser) all(ctx context.Context) error {
	if err := r.allowed(ctx); err != nil {
		return err
	}
	for _, e := range r.rows {
		if e.at > 0 && !e.begun() {
			if err := r.bury(ctx, e); err != nil {
				return fmt.Errorf("row %d: %w", e.row, err)
			}
		}
	}
	if err := r.tellResults(ctx); err != nil {
		return err
	}
	for _, e := range r.rows {
		if err := r.erase(ctx, e); err != nil {
			return fmt.Errorf("row %d: %w", e.row, err)
		}
		r.report.Erased = append(r.report.Erased, e.row)
	}
	if len(r.rows) == 0 {
		return nil
	}
	return r.record(ctx)
}

// step announces a change.
func (r *eraser) step(format string, args ...any) error {
	if r.o.Step == nil {
		return nil
	}
	return r.o.Step(fmt.Sprintf(format, args...))
}

// tellBytesMax bounds the results that are handed on at once.
const tellBytesMax = 16 << 20

// tellResults hands the results on, see [Options.Results].
func (r *eraser) tellResults(ctx context.Context) error {
	if r.o.Results == nil {
		return nil
	}
	var some []*jetstream.RawStreamMsg
	var stone *proof.Tombstone
	size := 0
	tell := func() error {
		if len(some) == 0 {
			return nil
		}
		if err := r.step("hand on %d results", len(some)); err != nil {
			return err
		}
		err := r.o.Results(ctx, some, stone)
		some, size = nil, 0
		return err
	}
	for _, e := range r.rows {
		if e.at == 0 {
			continue
		}
		m, err := streams.MessageAt(ctx, r.nc, r.cfg.Result.Stream, e.at)
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		if some, stone, size = append(some, m), e.tombstone, size+len(m.Data); size > tellBytesMax {
			if err := tell(); err != nil {
				return err
			}
		}
	}
	return tell()
}

// allowed asks whether the user may erase from all streams, so that nothing is half done
// where one is denied.
func (r *eraser) allowed(ctx context.Context) error {
	asked := make(map[string]bool)
	for _, e := range r.rows {
		all := []string{}
		if e.at > 0 {
			all = append(all, r.cfg.Result.Stream)
		}
		for i := range e.found {
			all = append(all, e.found[i].stream)
		}
		for _, stream := range all {
			if asked[stream] {
				continue
			}
			asked[stream] = true
			if err := streams.MayErase(ctx, r.nc, stream); err != nil {
				return fmt.Errorf("%w; nothing was erased: stage setup --print-permissions --for erase lists what an erasure needs", err)
			}
		}
	}
	return nil
}

// bury stores the tombstone of a row.
func (r *eraser) bury(ctx context.Context, e *erasure) error {
	m, err := streams.MessageAt(ctx, r.nc, r.cfg.Result.Stream, e.at)
	if err != nil {
		return err
	}
	if m == nil { // another erasure has removed it meanwhile
		e.at = 0
		return nil
	}
	t, err := newTombstone(m)
	if err != nil {
		return err
	}
	t.Who, t.At, t.Removed = r.o.By, r.now, map[string]int{string(PlaceResult): 1}
	for i := range e.found {
		t.Removed[string(e.found[i].place)]++
	}
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if err := r.step("bury row %d", e.row); err != nil {
		return err
	}
	_, err = streams.Append(ctx, r.nc, []*nats.Msg{{
		Subject: stored.ErasedSubject(r.cfg, strconv.Itoa(e.partition), strconv.FormatUint(e.row, 10)), Data: body,
		Header: nats.Header{
			streams.HeaderErased: {r.mark()}, jetstream.ExpectedStreamHeader: {r.cfg.Result.Stream},
			jetstream.MsgIDHeader: {r.stateID(e) + "/erased/" + strconv.FormatUint(e.at, 10)},
		},
	}})
	if err != nil {
		return fmt.Errorf("store its tombstone: %w", streams.Denied(r.nc, err))
	}
	e.tombstone = t
	return nil
}

// newTombstone is [proof.NewTombstone], which also serves a result that was stored before
// there was a chain. In that case the hash of the content is left out: no chain needs it,
// and since the content has no random part a short body could be guessed by it.
func newTombstone(m *jetstream.RawStreamMsg) (*proof.Tombstone, error) {
	if _, chained, err := proof.ChainOf(m.Header); chained || err != nil {
		return proof.NewTombstone(proof.Result, m.Sequence, m.Header, m.Data)
	}
	row, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("message %d of the results names no row", m.Sequence)
	}
	return &proof.Tombstone{Row: row, Sequence: m.Sequence, Head: proof.Head(proof.Result, m.Header)}, nil
}

// mark is the value of [streams.HeaderErased].
func (r *eraser) mark() string { return r.now.Format(time.RFC3339) + " by " + r.o.By }

// erase removes what was found of a row, place by place, and its result last.
func (r *eraser) erase(ctx context.Context, e *erasure) error {
	for _, place := range places {
		switch place { //nolint:exhaustive // all others are messages or objects
		case PlaceBatch:
			if err := r.deleteBatches(ctx, e); err != nil {
				return err
			}
		case PlaceResult:
			if err := r.removeResult(ctx, e); err != nil {
				return err
			}
		case PlaceLane:
			if !r.batchesDeleted(e) {
				continue
			}
			fallthrough
		default:
			for i := range e.found {
				if f := &e.found[i]; f.place == place {
					if err := r.remove(ctx, e, f); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// remove removes one message or object.
func (r *eraser) remove(ctx context.Context, e *erasure, f *found) error {
	switch f.place {
	case PlaceObject:
		if err := r.step("%s %s/%s", f.place, f.bucket, f.object); err != nil {
			return err
		}
		return objects.Erase(ctx, r.nc, f.bucket, f.object)
	case PlaceCalls, PlaceEvents:
		if err := r.keepRest(ctx, f); err != nil {
			return err
		}
	case PlaceInput, PlaceLetters, PlaceJournal, PlaceReplies, PlaceLane, PlaceBatch, PlaceResult:
	}
	if err := r.step("%s %d of row %d", f.place, f.seq, e.row); err != nil {
		return err
	}
	_, err := streams.Erase(ctx, r.nc, f.stream, f.seq)
	return err
}

// keepRest stores what stays of an event. Readers find it on the subject of the event, so
// their sums are what they were.
func (r *eraser) keepRest(ctx context.Context, f *found) error {
	if f.copied {
		return nil
	}
	m, err := streams.MessageAt(ctx, r.nc, f.stream, f.seq)
	if err != nil || m == nil {
		return err
	}
	event, err := auditlog.Decode(m.Data)
	if err != nil {
		return fmt.Errorf("message %d of stream %s: %w", f.seq, f.stream, err)
	}
	var rest []byte
	if event.Call != nil {
		event.Call.Erase()
		rest = event.Call.AppendJSON(nil, auditlog.PayloadsFull, 0)
	} else {
		event.Row.Erase()
		rest = event.Row.AppendJSON(nil, auditlog.PayloadsFull, 0)
	}
	header := nats.Header{
		streams.HeaderErased: {r.mark()}, streams.HeaderErasedSeq: {strconv.FormatUint(f.seq, 10)},
		jetstream.ExpectedStreamHeader: {f.stream},
		jetstream.MsgIDHeader:          {m.Header.Get(jetstream.MsgIDHeader) + "/erased"},
	}
	for _, name := range []string{streams.HeaderRows, proof.HeaderRecorded} {
		if value := m.Header[name]; len(value) > 0 {
			header[name] = value
		}
	}
	if f.shared && len(header[proof.HeaderRecorded]) == 0 { // rows that stay count it by its hash
		header[proof.HeaderRecorded] = []string{proof.HashOf(m.Data).String()}
	}
	if err := r.step("keep the rest of event %d", f.seq); err != nil {
		return err
	}
	if _, err := streams.Append(ctx, r.nc, []*nats.Msg{{Subject: m.Subject, Header: header, Data: rest}}); err != nil {
		return fmt.Errorf("store what stays of event %d: %w", f.seq, streams.Denied(r.nc, err))
	}
	f.copied = true
	return nil
}

// deleteBatches deletes the files of the row's batches at their provider, each once. If one
// can't be deleted, the row is erased all the same, except for the lane's record of the
// batch: by that a later erasure of the row finds the files, and tries again.
func (r *eraser) deleteBatches(ctx context.Context, e *erasure) error {
	for _, b := range e.batches {
		if _, tried := r.deleted[b]; tried {
			continue
		}
		r.deleted[b] = false
		if r.o.DeleteBatch == nil {
			r.report.fail("batch %s at %s: its files were not looked for: this program knows no key", b.ID, b.Provider)
			continue
		}
		if err := r.step("delete batch %s", b.ID); err != nil {
			return err
		}
		if err := r.o.DeleteBatch(ctx, b); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			r.report.fail("batch %s at %s: its files may still be there: %v", b.ID, b.Provider, err)
			continue
		}
		r.deleted[b] = true
	}
	return nil
}

// batchesDeleted reports whether the files of all batches of a row were deleted.
func (r *eraser) batchesDeleted(e *erasure) bool {
	return !slices.ContainsFunc(e.batches, func(b Batch) bool { return !r.deleted[b] })
}

// removeResult removes the result, which has to be followed by another message of the log:
// the last one is where the next owner goes on.
func (r *eraser) removeResult(ctx context.Context, e *erasure) error {
	if e.at == 0 {
		return nil
	}
	filter := streams.LogFilter(r.cfg.Result.Subject, r.cfg.Name, e.partition)
	for range streams.Retry(ctx, claimRetry, streams.RequestTimeout) {
		last, err := streams.LastMessage(ctx, r.nc, r.cfg.Result.Stream, filter)
		if err != nil {
			return err
		}
		if last == nil || last.Sequence < e.at {
			return fmt.Errorf("the log ends before message %d, which is in it: somebody else deletes messages of stream %s", e.at, r.cfg.Result.Stream)
		}
		if last.Sequence > e.at {
			if err := r.step("%s %d of row %d", PlaceResult, e.at, e.row); err != nil {
				return err
			}
			_, err := streams.Erase(ctx, r.nc, r.cfg.Result.Stream, e.at)
			return err
		}
		if err := r.step("claim partition %d", e.partition); err != nil {
			return err
		}
		if err := r.claim(ctx, e.partition, last); err != nil && !errors.Is(err, streams.ErrRefused) {
			return fmt.Errorf("append a claim behind the last result: %w", streams.Denied(r.nc, err))
		}
	}
	return context.Cause(ctx)
}

// claimRetry is the wait after the first claim that was refused because the owner of the
// partition has appended something in between.
const claimRetry = 10 * time.Millisecond

// claim appends a claim to the log, on condition that last is still its last message. The
// claim repeats what the last claim has said, and adds how far the log is. It fences the
// owner, which goes on with a claim of its own.
func (r *eraser) claim(ctx context.Context, partition int, last *jetstream.RawStreamMsg) error {
	subject := streams.ClaimSubject(r.cfg.Result.Subject, r.cfg.Name, partition)
	was, _, err := streams.LastClaim(ctx, r.nc, r.cfg.Result.Stream, subject)
	if err != nil {
		return err
	}
	if was == nil {
		return errors.New("the log has none left")
	}
	if was.Version > streams.ClaimVersion {
		return fmt.Errorf("the last one has format %d: a newer version has served the partition: run the erase of that version", was.Version)
	}
	was.Owner, was.HighWaterMark = r.run+"."+strconv.Itoa(partition), lowOf(last.Header)
	header := nats.Header{
		streams.HeaderOwner:        {was.Owner},
		streams.HeaderSourceSeq:    {strconv.FormatUint(was.HighWaterMark, 10)},
		streams.HeaderSourceStream: {was.InputStream},
	}
	for _, name := range []string{streams.HeaderLow, streams.HeaderAhead, streams.HeaderAheadFrom} {
		if value := last.Header[name]; len(value) > 0 {
			header[name] = value
		}
	}
	body, err := json.Marshal(was)
	if err != nil {
		return err
	}
	before, _, err := proof.ChainOf(last.Header)
	if err != nil {
		return err
	}
	header[proof.HeaderChain] = []string{before.Next(proof.RecordOf(proof.Claim, header, body)).String()}
	header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(last.Sequence, 10)}
	header[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{streams.LogFilter(r.cfg.Result.Subject, r.cfg.Name, partition)}
	_, err = streams.Append(ctx, r.nc, []*nats.Msg{{Subject: subject, Header: header, Data: body}})
	return err
}

// record stores the audit event of the erasure. What was selected is not in it: a key or
// the member of a row may be what has to be erased.
func (r *eraser) record(ctx context.Context) error {
	event := auditlog.Run{
		Header: auditlog.Header{Time: time.Now().UTC(), RunID: r.run, Stage: r.cfg.Name, Partition: auditlog.All},
		Phase:  auditlog.PhaseControl, Reason: fmt.Sprintf("erase, asked by %s: %s", cmp.Or(r.o.Asked, r.o.By), r.report.summary()),
	}
	_, err := streams.Append(ctx, r.nc, []*nats.Msg{{
		Subject: streams.AuditSubject(r.cfg.Audit.Subject, r.cfg.Name, auditlog.All, auditlog.KindRun),
		Data:    event.AppendJSON(nil, auditlog.PayloadsFull, 0), Header: nats.Header{jetstream.MsgIDHeader: {event.MsgID(0)}},
	}})
	if err != nil {
		return fmt.Errorf("store the audit event of the erasure: %w", streams.Denied(r.nc, err))
	}
	return nil
}
