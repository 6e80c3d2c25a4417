package erase

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Place is a kind of place where a row's text may lie.
type Place string

// The places, in the order in which they are erased: what says where else to look goes
// after it, and the result goes last.
const (
	PlaceInput   Place = "input"          // the row
	PlaceLetters Place = "dead_letters"   // the row, beside a failed result
	PlaceJournal Place = "journal"        // a reply that waited, or waits, for an earlier row
	PlaceReplies Place = "stored_replies" // a reply that equal requests may use (STAGE_DEDUPE)
	PlaceObject  Place = "objects"        // a result that is larger than a message
	PlaceLane    Place = "lane"           // the record of a batch that the row was in
	PlaceBatch   Place = "batches"        // the files of a batch at its provider
	PlaceCalls   Place = "calls"          // prompts and answers in the audit
	PlaceEvents  Place = "row_events"     // keys, hashes and errors in the audit
	PlaceResult  Place = "results"        // row and answer
)

// places are all places, in the order in which they are erased.
var places = []Place{
	PlaceInput, PlaceLetters, PlaceJournal, PlaceReplies, PlaceObject, PlaceLane, PlaceBatch, PlaceCalls, PlaceEvents, PlaceResult,
}

// find looks in every place for the chosen rows. It only reads: the plan can be shown
// before anything is erased.
func (p *Plan) find(ctx context.Context) error {
	for _, look := range []func(context.Context) error{
		p.findInput, p.findLetters, p.findJournal, p.findReplies, p.findEvents, p.findLane, p.findObjects,
	} {
		if len(p.rows) == 0 {
			return nil
		}
		if err := look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// anyOf reports whether a chosen row is between two sequences, both included.
func (p *Plan) anyOf(from, to uint64) bool {
	i, _ := slices.BinarySearchFunc(p.rows, from, func(e *erasure, seq uint64) int {
		switch {
		case e.row < seq:
			return -1
		case e.row > seq:
			return 1
		}
		return 0
	})
	return i < len(p.rows) && p.rows[i].row <= to
}

// chosen returns the erasure of a row, or nil.
func (p *Plan) chosen(row uint64) *erasure {
	if !p.anyOf(row, row) {
		return nil
	}
	return p.byRow[row]
}

// stateID is the permanent name of a row.
func (p *Plan) stateID(e *erasure) string {
	return auditlog.StateID(p.cfg.Name, p.cfg.Input.Stream, auditlog.Partition(e.partition), e.row)
}

// rowOf returns the chosen row that a state id names, of the row itself or of an element,
// or nil.
func (p *Plan) rowOf(stateID string) *erasure {
	id := auditlog.RowStateID(stateID)
	seq, err := strconv.ParseUint(id[strings.LastIndexByte(id, '/')+1:], 10, 64)
	if err != nil {
		return nil
	}
	if e := p.chosen(seq); e != nil && p.stateID(e) == id {
		return e
	}
	return nil
}

// findInput looks for the rows themselves. A row that is a result in the log of another
// stage stays: it is that stage's to erase.
func (p *Plan) findInput(ctx context.Context) error {
	if p.input == nil {
		return nil
	}
	kept, upstream := 0, ""
	for _, e := range p.rows {
		m, err := streams.MessageAt(ctx, p.nc, p.cfg.Input.Stream, e.row)
		if err != nil {
			return err
		}
		if m == nil || !subjectIsOf(p.cfg.Input.PartitionSubject(e.partition), m.Subject) {
			continue
		}
		switch stage := streams.InLog(m.Subject, m.Header); {
		case stage != "":
			upstream = stage
		case Denies(p.input.Config):
			kept++
		default:
			e.found = append(e.found, found{place: PlaceInput, stream: p.cfg.Input.Stream, seq: e.row})
		}
	}
	if kept > 0 {
		p.report.keep(PlaceInput, p.cfg.Input.Stream, kept, "the stream denies deletes (deny_delete)")
	}
	if upstream != "" {
		p.report.note("the rows are results of stage %s: erase them there too, or all of a chain at "+
			"once with --chain",
			upstream)
	}
	return nil
}

// subjectIsOf reports whether a filter matches a subject.
func subjectIsOf(filter, subject string) bool { return streams.Overlap(filter, subject) }

// headersOf calls f with the headers of all messages of a stream on a subject, whose
// stream may be missing.
func (p *Plan) headersOf(ctx context.Context, stream, filter string, f func(m *jetstream.RawStreamMsg) error) error {
	r, err := stored.Open(ctx, p.js, stored.ReadOptions{Stream: stream, Filters: []string{filter}, HeadersOnly: true})
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		m, err := r.Next(ctx)
		if err != nil || m == nil {
			return err
		}
		if err := f(m); err != nil {
			return err
		}
	}
}

// findLetters looks for the dead letters of the rows.
func (p *Plan) findLetters(ctx context.Context) error {
	subject := p.cfg.Streams.DeadLetterSubject
	if subject == "" {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	stream, err := p.js.StreamNameBySubject(asking, subject)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the stream of the dead letters on %s: %w", subject, streams.Denied(p.nc, err))
	}
	const letterID = "/dead-letter" // what the message id of a dead letter has behind the row's state id
	return p.headersOf(ctx, stream, subject, func(m *jetstream.RawStreamMsg) error {
		if id, ok := strings.CutSuffix(m.Header.Get(jetstream.MsgIDHeader), letterID); ok {
			if e := p.rowOf(id); e != nil {
				e.found = append(e.found, found{place: PlaceLetters, stream: stream, seq: m.Sequence})
			}
		}
		return nil
	})
}

// findJournal looks for replies that are kept for the rows.
func (p *Plan) findJournal(ctx context.Context) error {
	stream := p.cfg.Journal.Stream
	for _, e := range p.rows {
		filter := streams.JournalPrefix(p.cfg.Name, e.partition) + strconv.FormatUint(e.row, 10) + ".*"
		for seq := uint64(1); ; seq++ {
			m, err := streams.NextMessage(ctx, p.nc, stream, filter, seq)
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
			e.found = append(e.found, found{place: PlaceJournal, stream: stream, seq: seq})
			p.addObject(e, m.Header)
		}
	}
	return nil
}

// isNoStream reports whether the server's answer was that there is no such stream.
func isNoStream(err error) bool {
	refused, ok := asAPIError(err)
	return ok && refused.ErrorCode == jetstream.JSErrCodeStreamNotFound
}

// findReplies looks for stored replies that a call for one of the rows has brought. Those
// of an older version don't say whose they are.
func (p *Plan) findReplies(ctx context.Context) error {
	nameless := 0
	err := p.headersOf(ctx, executor.DedupeStream, p.dedupeFilter(), func(m *jetstream.RawStreamMsg) error {
		id := m.Header.Get(streams.HeaderStateID)
		if id == "" {
			nameless++
		} else if e := p.rowOf(id); e != nil {
			e.found = append(e.found, found{place: PlaceReplies, stream: executor.DedupeStream, seq: m.Sequence})
		}
		return nil
	})
	if nameless > 0 {
		p.report.note("%d replies of stream %s were stored by an older version and do not say whose they are; they leave it after %v (STAGE_DEDUPE_TTL), or with nats stream purge %[2]s",
			nameless, executor.DedupeStream, p.cfg.Rows.DedupeTTL)
	}
	return err
}

// findEvents looks for the events of calls and rows in the audit, and for the batches that
// they name.
func (p *Plan) findEvents(ctx context.Context) error {
	if p.audit == nil {
		return nil
	}
	copied := make(map[uint64]bool) // by sequence of the original
	unread := 0
	err := stored.FindAuditOf(ctx, p.js, p.cfg, stored.ReadOptions{}, p.anyOf, func(time.Time) error { return nil }, func(m stored.AuditMessage) error {
		if m.Event == nil {
			unread++
			return nil
		}
		p.batchOf(m.Event)
		if m.Header.Get(streams.HeaderErased) != "" {
			copied[m.Original] = true
			return nil
		}
		p.addEvent(&m)
		return nil
	})
	for _, e := range p.rows {
		for i := range e.found {
			f := &e.found[i]
			f.copied = (f.place == PlaceCalls || f.place == PlaceEvents) && copied[f.seq]
		}
	}
	if unread > 0 {
		p.report.note("%d events of these rows were written by a newer version of the stage, and stay: "+
			"run the erase of that version",
			unread)
	}
	return err
}

// addEvent adds an event to the first of the chosen rows that it is about.
func (p *Plan) addEvent(m *stored.AuditMessage) {
	f := found{place: PlaceCalls, stream: p.cfg.Audit.Stream, seq: m.Sequence}
	if r := m.Event.Row; r != nil {
		f.place = PlaceEvents
		if e := p.ofEvent(m.Event, r.Sequence, r.Owner); e != nil {
			e.found = append(e.found, f)
		}
		return
	}
	var first *erasure
	for c := range m.Event.Call.EachRow() {
		e := p.ofEvent(m.Event, c.Sequence, c.Owner)
		if e == nil {
			f.shared = true
		} else if first == nil {
			first = e
		}
	}
	if first == nil {
		return
	}
	if f.shared {
		p.report.Shared++
	}
	first.found = append(first.found, f)
}

// ofEvent returns the chosen row that an event is about, or nil. An earlier input stream
// had other rows of the same numbers, in terms of its own.
func (p *Plan) ofEvent(event *auditlog.Event, row uint64, owner string) *erasure {
	e := p.chosen(row)
	if e == nil || int(event.Partition) != e.partition || p.log(e.partition).earlier[owner] {
		return nil
	}
	return e
}

// log returns the log of a partition that rows were chosen in.
func (p *Plan) log(partition int) *partitionLog {
	i := slices.IndexFunc(p.logs, func(l *partitionLog) bool { return l.number == partition })
	return p.logs[i]
}

// batchOf adds the provider's batch that answered a call, whose files may be there still.
func (p *Plan) batchOf(event *auditlog.Event) {
	c := event.Call
	if c == nil || c.Lane == "" || c.BatchID == "" {
		return
	}
	e := p.ofEvent(event, c.Sequence, c.Owner)
	b := Batch{Provider: c.Provider, Model: c.Model, ID: c.BatchID}
	if e != nil && !slices.Contains(e.batches, b) {
		e.batches = append(e.batches, b)
	}
}

// findLane looks for records of batches that the rows are, or were, in. A row whose batch
// is still open has to wait: its text is at the provider, and rows beside it wait for
// their answers.
func (p *Plan) findLane(ctx context.Context) error {
	if !p.cfg.LaneOn() && !slices.ContainsFunc(p.rows, func(e *erasure) bool { return len(e.batches) > 0 }) {
		if info, err := p.stream(ctx, p.cfg.Lane.Stream); err != nil || info == nil {
			return err
		}
	}
	for _, log := range p.logs {
		records, err := lane.Records(ctx, p.js, p.cfg.Lane.Stream, p.cfg.Name, log.number)
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
				e := p.chosen(seq)
				switch {
				case e == nil || e.partition != log.number:
				case !closed[r.Token]:
					p.wait(e.partition, e.row, "batch %s, which it is in, is still open: wait, or stage lane cancel %[1]s", r.Token)
				case r.Sequence < last: // the last record is what the next one is conditional on
					e.found = append(e.found, found{place: PlaceLane, stream: p.cfg.Lane.Stream, seq: r.Sequence})
					fallthrough
				default:
					b := Batch{Provider: r.Provider, Model: r.Model, ID: ids[r.Token]}
					if b.ID != "" && !slices.Contains(e.batches, b) {
						e.batches = append(e.batches, b)
					}
				}
			}
		}
	}
	p.rows = slices.DeleteFunc(p.rows, func(e *erasure) bool {
		return slices.ContainsFunc(p.report.Pending, func(w Pending) bool { return w.Row == e.row })
	})
	return nil
}

// addObject adds the object that is the body of a message.
func (p *Plan) addObject(e *erasure, h nats.Header) {
	ref, is := objects.RefOf(h)
	if !is || slices.ContainsFunc(e.found, func(f found) bool { return f.object == ref.Name && f.bucket == ref.Bucket }) {
		return
	}
	e.found = append(e.found, found{place: PlaceObject, stream: streams.BucketStream(ref.Bucket), bucket: ref.Bucket, object: ref.Name})
}

// findObjects looks for the objects of the rows: those that results name, and those that a
// killed process has left without one.
func (p *Plan) findObjects(ctx context.Context) error {
	buckets := map[string]bool{p.cfg.Result.Bucket: p.cfg.Result.Bucket != ""}
	for _, e := range p.rows {
		if ref, is := objects.RefOf(e.header); is {
			buckets[ref.Bucket] = true
		}
	}
	for bucket, has := range buckets {
		if !has {
			continue
		}
		r, err := stored.Open(ctx, p.js, stored.ReadOptions{Stream: streams.BucketStream(bucket), Filters: []string{streams.BucketObjects(bucket) + ">"}})
		if isMissing(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = p.findObjectsIn(ctx, bucket, r)
		r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) findObjectsIn(ctx context.Context, bucket string, r *stored.Reader) error {
	for {
		m, err := r.Next(ctx)
		if err != nil || m == nil {
			return err
		}
		var info jetstream.ObjectInfo
		if json.Unmarshal(m.Data, &info) != nil || info.Deleted {
			continue
		}
		stage, rest, _ := strings.Cut(info.Name, "/")
		partition, rest, _ := strings.Cut(rest, "/")
		row, _, ok := strings.Cut(rest, "/")
		seq, err := strconv.ParseUint(row, 10, 64)
		if !ok || err != nil || stage != p.cfg.Name {
			continue
		}
		if e := p.chosen(seq); e != nil && strconv.Itoa(e.partition) == partition &&
			!slices.ContainsFunc(e.found, func(f found) bool { return f.object == info.Name && f.bucket == bucket }) {
			e.found = append(e.found, found{place: PlaceObject, stream: streams.BucketStream(bucket), bucket: bucket, object: info.Name})
		}
	}
}
