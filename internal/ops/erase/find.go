package erase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// Place is a kind of place where a row's text may lie.
type Place string

// These are the places, in the order in which they are erased. A place that says where else
// to look comes after the places that it names, and the result comes last. For example, the
// lane's record of a batch goes after the files of the batch, since nothing else may have
// the id under which the provider keeps them.
const (
	PlaceInput   Place = "input"          // the row
	PlaceLetters Place = "dead_letters"   // the row, beside a failed result
	PlaceObject  Place = "objects"        // a result that is larger than a message
	PlaceJournal Place = "journal"        // a reply that waited, or waits, for an earlier row
	PlaceReplies Place = "stored_replies" // a reply that equal requests may use (STAGE_DEDUPE)
	PlaceBatch   Place = "batches"        // the files of a batch at its provider
	PlaceLane    Place = "lane"           // the record of a batch that the row was in
	PlaceCalls   Place = "calls"          // prompts and answers in the audit
	PlaceEvents  Place = "row_events"     // keys, hashes and errors in the audit
	PlaceResult  Place = "results"        // row and answer
)

// places are all places, in the order in which they are erased.
var places = []Place{
	PlaceInput, PlaceLetters, PlaceObject, PlaceJournal, PlaceReplies, PlaceBatch, PlaceLane,
	PlaceCalls, PlaceEvents, PlaceResult,
}

// finder looks in every place for the chosen rows. It only reads: the plan can be shown
// before anything is erased. What it finds it adds to the rows.
type finder struct {
	*store
	report *Report
	rows   *chosenRows
	logs   logs
}

// all looks in all places.
func (f *finder) all(ctx context.Context) error {
	for _, look := range []func(context.Context) error{
		f.findInput, f.findLetters, f.findJournal, f.findReplies, f.findEvents, f.findLane, f.findObjects,
	} {
		if len(f.rows.list) == 0 {
			return nil
		}
		if err := look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rowOf returns the chosen row that a state id names, or nil. The id may be that of an
// element of the row.
func (f *finder) rowOf(stateID string) *erasure {
	id := auditlog.RowStateID(stateID)
	seq, err := strconv.ParseUint(id[strings.LastIndexByte(id, '/')+1:], 10, 64)
	if err != nil {
		return nil
	}
	if e := f.rows.at(seq); e != nil && f.stateID(e) == id {
		return e
	}
	return nil
}

// findInput looks for the rows themselves. A row that is a result in the log of another
// stage stays: it is that stage's to erase.
func (f *finder) findInput(ctx context.Context) error {
	if f.input == nil {
		return nil
	}
	kept, upstream := 0, ""
	for _, e := range f.rows.list {
		m, err := streams.MessageAt(ctx, f.nc, f.cfg.Input.Stream, e.row)
		if err != nil {
			return err
		}
		if m == nil || !subjectIsOf(f.cfg.Input.PartitionSubject(e.partition), m.Subject) {
			continue
		}
		switch stage := streams.InLog(m.Subject, m.Header); {
		case stage != "":
			upstream = stage
		case Denies(f.input.Config):
			kept++
		default:
			e.add(found{place: PlaceInput, stream: f.cfg.Input.Stream, seq: e.row})
		}
	}
	if kept > 0 {
		f.report.keep(PlaceInput, f.cfg.Input.Stream, kept, "the stream denies deletes (deny_delete)")
	}
	if upstream != "" {
		f.report.note("the rows are results of stage %s: erase them there too, or all of a chain at "+
			"once with --chain",
			upstream)
	}
	return nil
}

// subjectIsOf reports whether a filter matches a subject.
func subjectIsOf(filter, subject string) bool { return streams.Overlap(filter, subject) }

// headersOf calls look with the headers of each message of a stream on a subject. If there
// is no such stream, it calls nothing.
func (f *finder) headersOf(ctx context.Context, stream, filter string, look func(m *jetstream.RawStreamMsg)) error {
	err := stored.Each(ctx, f.js, stored.ReadOptions{Stream: stream, Filters: []string{filter}, HeadersOnly: true}, func(m *jetstream.RawStreamMsg) error {
		look(m)
		return nil
	})
	if isMissing(err) {
		return nil
	}
	return err
}

// findLetters looks for the dead letters of the rows.
func (f *finder) findLetters(ctx context.Context) error {
	subject := f.cfg.Streams.DeadLetterSubject
	if subject == "" {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	stream, err := f.js.StreamNameBySubject(asking, subject)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the stream of the dead letters on %s: %w", subject, streams.Denied(f.nc, err))
	}
	// letterID ends the message id of a dead letter, after the row's state id.
	const letterID = "/dead-letter"
	return f.headersOf(ctx, stream, subject, func(m *jetstream.RawStreamMsg) {
		if id, ok := strings.CutSuffix(m.Header.Get(jetstream.MsgIDHeader), letterID); ok {
			if e := f.rowOf(id); e != nil {
				e.add(found{place: PlaceLetters, stream: stream, seq: m.Sequence})
			}
		}
	})
}

// findJournal looks for replies that are kept for the rows.
func (f *finder) findJournal(ctx context.Context) error {
	stream := f.cfg.Journal.Stream
	for _, e := range f.rows.list {
		filter := streams.JournalPrefix(f.cfg.Name, e.partition) + strconv.FormatUint(e.row, 10) + ".*"
		for seq := uint64(1); ; seq++ {
			m, err := streams.NextMessage(ctx, f.nc, stream, filter, seq)
			if isMissing(err) || isNoStream(err) {
				return nil
			}
			if err != nil {
				return err
			}
			if m == nil {
				break
			}
			seq = m.Sequence
			e.add(found{place: PlaceJournal, stream: stream, seq: seq})
			e.addBody(m.Header)
		}
	}
	return nil
}

// isNoStream reports whether the server's answer was that there is no such stream.
func isNoStream(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return ok && refused.ErrorCode == jetstream.JSErrCodeStreamNotFound
}

// findReplies looks for stored replies that a call for one of the rows has brought. Replies
// that an older version has stored don't say which row they are from.
func (f *finder) findReplies(ctx context.Context) error {
	nameless := 0
	err := f.headersOf(ctx, executor.DedupeStream, config.DedupePrefix+">", func(m *jetstream.RawStreamMsg) {
		id := m.Header.Get(streams.HeaderStateID)
		if id == "" {
			nameless++
		} else if e := f.rowOf(id); e != nil {
			e.add(found{place: PlaceReplies, stream: executor.DedupeStream, seq: m.Sequence})
		}
	})
	if nameless > 0 {
		f.report.note("%d replies of stream %s were stored by an older version and do not say whose they are; they leave it after %v (STAGE_DEDUPE_TTL), or with nats stream purge %[2]s",
			nameless, executor.DedupeStream, f.cfg.Rows.DedupeTTL)
	}
	return err
}

// findEvents looks for the events of calls and rows in the audit, and for the batches that
// they name.
func (f *finder) findEvents(ctx context.Context) error {
	if f.audit == nil {
		return nil
	}
	copied := make(map[uint64]bool) // by sequence of the original
	unread := 0
	err := stored.FindAuditOf(ctx, f.js, f.cfg, stored.ReadOptions{}, f.rows.between, func(time.Time) error { return nil }, func(m stored.AuditMessage) error {
		if m.Event == nil {
			unread++
			return nil
		}
		if e, b := f.batchOf(m.Event); e != nil {
			e.addBatch(b)
		}
		if m.Header.Get(streams.HeaderErased) != "" {
			copied[m.Original] = true
			return nil
		}
		f.addEvent(&m)
		return nil
	})
	for _, e := range f.rows.list {
		for i := range e.found {
			one := &e.found[i]
			one.copied = (one.place == PlaceCalls || one.place == PlaceEvents) && copied[one.seq]
		}
	}
	if unread > 0 {
		f.report.note("%d events of these rows were written by a newer version of the stage, and stay: "+
			"run the erase of that version",
			unread)
	}
	return err
}

// addEvent adds an event to the first of the chosen rows that it is about.
func (f *finder) addEvent(m *stored.AuditMessage) {
	one := found{place: PlaceCalls, stream: f.cfg.Audit.Stream, seq: m.Sequence}
	if r := m.Event.Row; r != nil {
		one.place = PlaceEvents
		if e := f.ofEvent(m.Event, r.Sequence, r.Owner); e != nil {
			e.add(one)
		}
		return
	}
	var first *erasure
	for c := range m.Event.Call.EachRow() {
		e := f.ofEvent(m.Event, c.Sequence, c.Owner)
		if e == nil {
			one.shared = true
		} else if first == nil {
			first = e
		}
	}
	if first == nil {
		return
	}
	if one.shared {
		f.report.Shared++
	}
	first.add(one)
}

// ofEvent returns the chosen row that an event is about, or nil. If the input stream was
// created again, the terms of the earlier one had other rows of the same numbers.
func (f *finder) ofEvent(event *auditlog.Event, row uint64, owner string) *erasure {
	e := f.rows.at(row)
	if e == nil || int(event.Partition) != e.partition || f.logs.of(e.partition).earlier[owner] {
		return nil
	}
	return e
}

// batchOf returns the chosen row of a call that a provider's batch has answered, and the
// batch, whose files may still be at the provider. It returns nil for any other call.
func (f *finder) batchOf(event *auditlog.Event) (*erasure, Batch) {
	c := event.Call
	if c == nil || c.Lane == "" {
		return nil, Batch{}
	}
	return f.ofEvent(event, c.Sequence, c.Owner), Batch{Provider: c.Provider, Model: c.Model, ID: c.BatchID}
}

// findLane looks for the records of batches that have, or had, the rows. A row whose batch
// is still open has to wait: its text is at the provider, and rows beside it wait for
// their answers.
func (f *finder) findLane(ctx context.Context) error {
	if !f.cfg.LaneOn() && !slices.ContainsFunc(f.rows.list, func(e *erasure) bool { return len(e.batches) > 0 }) {
		if info, err := f.stream(ctx, f.cfg.Lane.Stream); err != nil || info == nil {
			return err
		}
	}
	for _, log := range f.logs {
		records, err := lane.Records(ctx, f.js, f.cfg.Lane.Stream, f.cfg.Name, log.number)
		if isMissing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		closed := make(map[string]bool)
		ids := make(map[string]string)
		last := uint64(0)
		for i := range records {
			r := &records[i]
			last = max(last, r.Sequence)
			switch r.Kind {
			case lane.RecordDone, lane.RecordAbandoned:
				closed[r.Token] = true
			case lane.RecordSubmitted:
				ids[r.Token] = r.BatchID
			case lane.RecordClaim, lane.RecordIntent:
			}
		}
		for i := range records {
			r := &records[i]
			if r.Kind != lane.RecordIntent {
				continue
			}
			for _, seq := range r.Rows.Seqs {
				e := f.rows.at(seq)
				switch {
				case e == nil || e.partition != log.number:
				case !closed[r.Token]:
					f.report.wait(e.partition, e.row, "batch %s, which it is in, is still open: wait, or stage lane cancel %[1]s", r.Token)
				case r.Sequence < last: // the last record is what the next one is conditional on
					e.add(found{place: PlaceLane, stream: f.cfg.Lane.Stream, seq: r.Sequence})
					fallthrough
				default:
					e.addBatch(Batch{Provider: r.Provider, Model: r.Model, ID: ids[r.Token]})
				}
			}
		}
	}
	f.rows.drop(f.report.Pending)
	return nil
}

// findObjects looks for the objects of the rows: those that results name, and those that a
// killed process has left without one.
func (f *finder) findObjects(ctx context.Context) error {
	buckets := map[string]bool{f.cfg.Result.Bucket: f.cfg.Result.Bucket != ""}
	for _, e := range f.rows.list {
		if ref, is := objects.RefOf(e.header); is {
			buckets[ref.Bucket] = true
		}
	}
	for bucket, has := range buckets {
		if !has {
			continue
		}
		o := stored.ReadOptions{Stream: streams.BucketStream(bucket), Filters: []string{streams.BucketObjects(bucket) + ">"}}
		err := stored.Each(ctx, f.js, o, func(m *jetstream.RawStreamMsg) error {
			if e, name := f.objectOf(m.Data); e != nil {
				e.addObject(bucket, name)
			}
			return nil
		})
		if err != nil && !isMissing(err) {
			return err
		}
	}
	return nil
}

// objectOf returns the chosen row that an object belongs to, by the record of the object in
// its bucket, and the object's name. It returns nil if that row is not chosen.
func (f *finder) objectOf(record []byte) (*erasure, string) {
	var info jetstream.ObjectInfo
	if json.Unmarshal(record, &info) != nil || info.Deleted {
		return nil, ""
	}
	stage, rest, _ := strings.Cut(info.Name, "/")
	partition, rest, _ := strings.Cut(rest, "/")
	row, _, ok := strings.Cut(rest, "/")
	seq, err := strconv.ParseUint(row, 10, 64)
	if !ok || err != nil || stage != f.cfg.Name {
		return nil, ""
	}
	e := f.rows.at(seq)
	if e == nil || strconv.Itoa(e.partition) != partition {
		return nil, ""
	}
	return e, info.Name
}
