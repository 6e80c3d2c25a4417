package status

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/terminal"
)

// A row is late, and the state is no longer "working", when answered rows have waited for
// it for lateAlone, if every other row that was taken is answered, so that nothing happens
// but that one call. If others are still called it is lateAmong, since a slow provider looks
// like that, too. In both cases the rows must have waited latePercentiles times as long as
// nine of ten calls take. With calls of 50 ms a row is late after 10 s, with calls of 40 s
// after two minutes.
//
// If fewer than lateCalls succeeded in the last minute, the time that half of them took
// counts instead: while a row waits, quick calls leave the minute, and a slow one that is
// left must not make the row punctual again.
const (
	lateAlone       = 10 * time.Second
	lateAmong       = time.Minute
	latePercentiles = 3
	lateCalls       = 10
)

// lateRow is a row that answered rows wait for.
type lateRow struct {
	row    uint64
	behind int
	hold   hold.Hold // on the rows behind it
}

// lateRow returns the row that answered rows have waited for longest, of all partitions
// where such a row is late. It returns nil if none is late. Rows of the batch lane wait for
// hours by design, and without an order no row waits for another.
func (r *Report) lateRow() *lateRow {
	var found *PartitionReport
	var row uint64
	var since time.Time
	for i := range r.Partitions {
		p := &r.Partitions[i]
		if !p.owned() || p.Paused != "" || p.Problem != "" || p.ParkedRows > 0 || p.ReorderRows == 0 {
			continue
		}
		if seq, at, late := r.late(p); late && (found == nil || at.Before(since)) {
			found, row, since = p, seq, at
		}
	}
	if found == nil {
		return nil
	}
	h := hold.OfPartition(found.Partition, hold.Order)
	if r.Order == streams.OrderKey {
		h.Scope, h.Name = hold.Key, ""
		if found.WaitedForKey != nil {
			h.Name = *found.WaitedForKey
		}
	}
	h.By, h.Since = "row "+hold.RowName(row), since
	of, wait := "", "waits"
	if len(r.Partitions) > 1 {
		of = fmt.Sprintf(" of partition %d", found.Partition)
	}
	if found.ReorderRows > 1 {
		wait = "wait"
	}
	h.Why = fmt.Sprintf("row %d%s has no result yet, and %s %s behind it", row, of, terminal.Plural(found.ReorderRows, "answered row"), wait)
	return &lateRow{row: row, behind: found.ReorderRows, hold: h}
}

// late returns the row that others of a partition wait for, since when, and whether it is
// late.
func (r *Report) late(p *PartitionReport) (row uint64, since time.Time, late bool) {
	row, at := p.HeadSequence, p.HeadSince
	switch r.Order {
	case streams.OrderKey:
		row, at = p.WaitedFor, p.WaitedForSince
	case streams.OrderNone:
		return 0, time.Time{}, false
	case streams.OrderStream:
	}
	open := p.WindowRows + p.SetAsideRows - p.ReorderRows // without an answer
	if row == 0 || at == nil || open == 0 {
		return 0, time.Time{}, false
	}
	after := lateAmong
	if open == 1 {
		after = lateAlone
	} else if r.Order == streams.OrderKey {
		return 0, time.Time{}, false // other keys go on
	}
	usual := r.Latency.P90
	if r.Latency.Calls < lateCalls {
		usual = r.Latency.P50
	}
	if usual != nil {
		after = max(after, time.Duration(latePercentiles**usual*float64(time.Second)))
	}
	return row, *at, r.Time.Sub(*at) >= after
}
