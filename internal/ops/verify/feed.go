package verify

import (
	"errors"
	"sync/atomic"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// auditFeed reads the events of the audit, each once and in order, and hands each to those
// that check it: its run, its batch, and the partition of its row. It also finds out what
// each event was when it was recorded, since an event may be stored cut, or as the copy that
// an erasure has left.
type auditFeed struct {
	report   *Report
	stream   string // of the audit
	erasures *erasures
	runs     *runVerifier
	lane     *batchVerifier
	parts    []*partitionVerifier // by partition

	cut    int          // events that are stored shorter than they were recorded
	events atomic.Int64 // that are read; the progress bar reads it meanwhile
}

// run reads all events.
func (f *auditFeed) run(next func() (*jetstream.RawStreamMsg, error), bar *terminal.Bar) error {
	later, foreign := 0, 0
	for {
		m, err := next()
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		e, err := auditlog.Decode(m.Data)
		switch {
		case errors.Is(err, auditlog.ErrSchemaVersion):
			later++
		case err != nil:
			foreign++
		default:
			if err := f.event(e, f.recorded(m, e)); err != nil {
				return err
			}
		}
		if f.events.Add(1)%1024 == 0 {
			bar.Set(resultsOf(f.parts))
		}
	}
	if later > 0 {
		f.report.cannot("%d audit events were written by a newer version of the stage: run the verify of "+
			"that version",
			later)
	}
	if f.cut > 0 {
		f.report.note("%d events of stream %s are stored shorter than they were recorded, as the "+
			"server's max_payload was lowered: what is left of them is taken on trust",
			f.cut, f.stream)
	}
	if foreign > 0 {
		f.report.note("%d messages of stream %s are not audit events and were skipped", foreign,
			f.stream)
	}
	return nil
}

// recorded returns the hash of an event as it was recorded. An event that was cut to fit
// into the stream, or whose row was erased, is stored together with its original hash.
func (f *auditFeed) recorded(m *jetstream.RawStreamMsg, e *auditlog.Event) proof.Hash {
	if len(m.Header[streams.HeaderErased]) > 0 {
		if r := e.Row; r != nil && r.Source != auditlog.SourceDedupe && r.Partition >= 0 && int(r.Partition) < len(f.parts) {
			f.parts[r.Partition].audit.used += uint64(max(0, r.Attempts+r.CapacityRetries)) //nolint:gosec // not negative
		}
	}
	erased := len(m.Header[streams.HeaderErased]) > 0 && f.erasures.covers(e)
	if whole := m.Header.Get(proof.HeaderRecorded); whole != "" && (erased || truncated(e)) {
		if !erased {
			f.cut++
		}
		hash, _ := proof.ParseHash(whole) // a wrong text gives the hash of no event
		return hash
	}
	if e.Row == nil && e.Call == nil {
		return proof.Hash{}
	}
	return proof.HashOf(m.Data)
}

// truncated reports whether an event says that parts of it were left out. Only such an
// event may stand by a hash that it carries itself. Otherwise somebody could alter any
// event and store the old hash beside it.
func truncated(e *auditlog.Event) bool {
	return e.Call != nil && e.Call.Truncated || e.Row != nil && e.Row.Truncated
}

// event hands an event, and its hash, to its run and its partition.
func (f *auditFeed) event(e *auditlog.Event, hash proof.Hash) error {
	var p *partitionVerifier // stays nil if the event is about no row
	if e.Partition >= 0 && int(e.Partition) < len(f.parts) {
		p = f.parts[e.Partition]
	}
	switch c := e.Call; {
	case e.Batch != nil:
		f.lane.event(e.Batch)
		return nil
	case c == nil:
	case c.Lane != "" && p != nil:
		f.runs.call(c, f.lane.call(c, p.terms.of(c.Owner).epoch))
	default:
		f.lane.wentLive(c)
		f.runs.call(c, true)
	}
	if e.Call != nil && e.Call.Unused {
		return nil // the row was answered by others
	}
	if p == nil || e.Row == nil && (e.Call == nil || e.Call.Sequence == 0) {
		return nil
	}
	if e.Call == nil {
		return p.event(e, hash)
	}
	p.checkParts(e.Call)
	for call := range e.Call.EachRow() {
		one := *e
		one.Call = call
		if err := p.event(&one, hash); err != nil {
			return err
		}
	}
	return nil
}
