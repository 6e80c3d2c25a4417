package status

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/terminal"
)

// A row is late, and the state is no longer "working", when answered rows have waited for
// it
//   - for lateAlone, if every other row that was taken is answered: nothing happens but that one call;
//   - for lateAmong, if others are still called: that is how a slow provider looks, too;
//
// and in both cases for latePercentiles times as long as nine of ten calls take. With
// calls of 50 ms a row is late after 10 s, with calls of 40 s after two minutes.
const (
	lateAlone       = 10 * time.Second
	lateAmong       = time.Minute
	latePercentiles = 3
)

// stuckRow is a row that answered rows wait for.
type stuckRow struct {
	partition int
	row       uint64
	since     time.Time
	behind    int
	key       bool // it holds up the rows of its key alone
}

// stuckRow returns the row that answered rows have waited for longest, of all partitions
// where it is late; nil means that none is. Rows of the batch lane wait for hours by
// design, and in no order none waits for another.
func (r *Report) stuckRow() (found *stuckRow) {
	for i := range r.Partitions {
		p := &r.Partitions[i]
		if !p.owned() || p.Paused != "" || p.Problem != "" || p.ParkedRows > 0 || p.ReorderRows == 0 {
			continue
		}
		row, since, key := p.HeadSequence, p.HeadSince, false
		switch r.Order {
		case streams.OrderKey:
			row, since, key = p.WaitedFor, p.WaitedForSince, true
		case streams.OrderNone:
			continue
		case streams.OrderStream:
		}
		open := p.WindowRows + p.SetAsideRows - p.ReorderRows // without an answer
		if row == 0 || since == nil || open == 0 {
			continue
		}
		late := lateAmong
		if open == 1 {
			late = lateAlone
		} else if key {
			continue // other keys go on
		}
		if p90 := r.Latency.P90; p90 != nil {
			late = max(late, time.Duration(latePercentiles**p90*float64(time.Second)))
		}
		if r.Time.Sub(*since) >= late && (found == nil || since.Before(found.since)) {
			found = &stuckRow{partition: p.Partition, row: row, since: *since, behind: p.ReorderRows, key: key}
		}
	}
	return found
}

// show makes it the state of the report.
func (s *stuckRow) show(r *Report) {
	r.State, r.Since, r.Row, r.Behind = StateWaiting, instant(s.since), &s.row, &s.behind
	of := ""
	if len(r.Partitions) > 1 {
		of = fmt.Sprintf(" of partition %d", s.partition)
	}
	wait := "waits"
	if s.behind > 1 {
		wait = "wait"
	}
	r.Why = fmt.Sprintf("row %d%s has no result yet, and %s %s behind it", s.row, of, terminal.Plural(s.behind, "answered row"), wait)
}
