package tail

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// Failures are one page of the rows that failed, newest first.
type Failures struct {
	Reason string      `json:"reason"` // or empty for any
	Rows   []FailedRow `json:"rows"`
	// Before is where the next page begins: it has the rows that failed before this event
	// of the audit stream. It is 0 if there is no further page.
	Before uint64 `json:"before"`
	// Events is how many events of rows were read. Since is when the oldest of them was
	// stored, or null if none was read.
	Events   int        `json:"events"`
	Since    *time.Time `json:"since"`
	Payloads bool       `json:"payloads"` // whether errors are shown
}

// FailedRow is one row that failed, as its event says: it may have been redriven since.
type FailedRow struct {
	Row             uint64             `json:"row"`
	Partition       auditlog.Partition `json:"partition"`
	Time            time.Time          `json:"time"`
	Reason          string             `json:"reason"`
	Attempts        int                `json:"attempts"`
	CapacityRetries int                `json:"capacity_retries"`
	// Error is the last error, where contents are shown.
	Error string `json:"error,omitempty"`
	// Event is the sequence of its event in the audit stream.
	Event uint64 `json:"event"`
}

// FailuresOptions say which rows are listed.
type FailuresOptions struct {
	Reason   string // or empty for any
	Before   uint64 // only events before this one of the audit stream; 0 means all
	Limit    int    // rows of a page
	Payloads bool   // with their errors
}

// Bounds of the reading for one page. JetStream reads forwards, so a page reads parts of
// the stream, the last one first. Each is larger than the one before as long as they hold
// few events.
const (
	// partFirst is how many sequences the first part has, and the least that a part has
	// that is made smaller.
	partFirst   = 4096
	partGrowth  = 4               // the factor by which the next part is larger, or smaller
	partMost    = 20_000          // events of a part
	eventsMost  = 50_000          // events of a page, beyond the first part
	enoughAfter = 4 * time.Second // no further part is begun then
	errorMost   = 300
)

// ListFailures returns a page of failed rows. It reads a bounded number of events for a
// few seconds: where that finds fewer rows than o.Limit, the page says from where the
// next one goes on.
func ListFailures(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o FailuresOptions) (*Failures, error) {
	began := time.Now()
	page := &Failures{Reason: o.Reason, Rows: []FailedRow{}, Payloads: o.Payloads}
	filter := stored.AuditSubject(cfg, auditlog.KindRow)
	last, err := streams.LastMessage(ctx, js.Conn(), cfg.Audit.Stream, filter)
	if err != nil || last == nil {
		return page, err
	}
	first, err := streams.NextSequence(ctx, js.Conn(), cfg.Audit.Stream, filter, 1)
	if err != nil || first == 0 {
		return page, err
	}
	until := last.Sequence
	if o.Before > 0 {
		until = min(until, o.Before-1)
	}
	span := uint64(partFirst)
	behind := uint64(0) // events after until
	for known := false; until >= first; {
		part := part{from: max(first, until-min(until-1, span-1)), until: until}
		events, err := part.open(ctx, js, cfg, filter)
		if err != nil {
			return page.partly(ctx, err, until)
		}
		if known {
			n := int(part.pending - min(part.pending, behind)) //nolint:gosec // bounded by what is stored
			if n > partMost && span > partFirst {
				events.Close()
				span = max(partFirst, span/partGrowth)
				continue
			}
			if page.Events+n > eventsMost || time.Since(began) > enoughAfter {
				events.Close()
				page.Before = until + 1
				return page, nil
			}
		}
		found, read, err := part.failed(ctx, events, o)
		if err != nil {
			return page.partly(ctx, err, until)
		}
		page.add(part, found, read)
		if len(page.Rows) >= o.Limit {
			page.Rows = page.Rows[:o.Limit]
			page.Before = page.Rows[o.Limit-1].Event
			return page, nil
		}
		if read < partMost/partGrowth {
			span *= partGrowth
		}
		known, behind, until = true, part.pending, part.from-1
	}
	return page, nil
}

// partly returns what was found before the time was up. If that is nothing it returns the
// error.
func (f *Failures) partly(ctx context.Context, err error, until uint64) (*Failures, error) {
	if f.Since == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, err
	}
	f.Before = until + 1
	return f, nil
}

// add adds what was found in a part.
func (f *Failures) add(p part, found []FailedRow, read int) {
	slices.Reverse(found)
	f.Rows = append(f.Rows, found...)
	if f.Events += read; !p.oldest.IsZero() {
		oldest := p.oldest.UTC()
		f.Since = &oldest
	}
}

// part is a part of the audit stream.
type part struct {
	from, until uint64
	pending     uint64    // events from its begin to the end of the stream
	oldest      time.Time // when the first one was stored, or zero
}

func (p *part) open(ctx context.Context, js jetstream.JetStream, cfg *config.Config, filter string) (*stored.Reader, error) {
	r, err := stored.Open(ctx, js, stored.ReadOptions{Stream: cfg.Audit.Stream, Filters: []string{filter}, From: p.from, Until: p.until, Brief: true})
	if err == nil {
		p.pending = r.Left
	}
	return r, err
}

// failed reads the part. It returns the rows in it that failed, the oldest first, and how
// many events the part has.
func (p *part) failed(ctx context.Context, r *stored.Reader, o FailuresOptions) (found []FailedRow, read int, err error) {
	defer r.Close()
	for {
		m, err := r.Next(ctx)
		if err != nil || m == nil {
			return found, read, err
		}
		if read++; read == 1 {
			p.oldest = m.Time
		}
		// Most rows have succeeded, and decoding takes longest.
		if !bytes.Contains(m.Data, failedStatus) {
			continue
		}
		e, err := auditlog.Decode(m.Data)
		if err != nil || e.Row == nil || e.Row.Status != auditlog.RowError {
			continue // of a newer version, or it only quotes the status
		}
		row := failedRow(e.Row, m.Sequence)
		if o.Reason != "" && row.Reason != o.Reason {
			continue
		}
		if !o.Payloads {
			row.Error = ""
		}
		found = append(found, row)
	}
}

// failedStatus is in the event of each row that failed.
var failedStatus = []byte(`"status":"` + auditlog.RowError + `"`)

func failedRow(r *auditlog.Row, at uint64) FailedRow {
	row := FailedRow{
		Row: r.Sequence, Partition: r.Partition, Time: r.Time, Reason: cmp.Or(r.Reason, r.Source), Attempts: r.Attempts, CapacityRetries: r.CapacityRetries, Event: at,
	}
	if n := len(r.Errors); n > 0 {
		row.Error = terminal.OneLine(cutText(r.Errors[n-1].Error, errorMost))
	}
	return row
}
