package status

import (
	"testing"
	"time"
)

func TestHistoryKeepsTenMinutesOfRates(t *testing.T) {
	h := NewHistory(epoch)
	var dispatched, rejected uint64
	for i := 1; i <= 700; i++ {
		dispatched += 20
		rejected++
		pause := epoch
		r := Report{Time: epoch.Add(time.Duration(i) * 2 * time.Second), Pool: PoolReport{Dispatched: dispatched, CapacityRetries: rejected}}
		allowed := 12.5
		if r.Pool.Allowed = &allowed; i == 700 {
			r.Pool.LawPausedUntil = &pause
		}
		r.Rows.Succeeded, r.Partitions = dispatched, []PartitionReport{{WindowRows: 3, ReorderRows: 1}, {WindowRows: 4, ReorderRows: 2}}
		h.Take(&r)
		h.Take(&r) // of the same instant: none
	}
	all := h.All()
	if len(all) != samplesMax || all[0].Time != epoch.Unix()+202 || all[samplesMax-1].Time != epoch.Unix()+1400 {
		t.Fatalf("got %d samples from %d to %d", len(all), all[0].Time-epoch.Unix(), all[len(all)-1].Time-epoch.Unix())
	}
	if s := all[5]; s.Calls != 10 || s.Rejected != 0.5 || s.Rows != 10 || *s.Allowed != 12.5 || s.Window != 7 || s.Reorder != 3 || s.Held {
		t.Errorf("got %+v", s)
	}
	last, _ := h.Last()
	if !last.Held || last.Allowed != nil {
		t.Errorf("while the server asks to wait: got %+v, want held and nothing allowed", last)
	}
}

func TestTimeToGoComesFromTheLastHalfMinute(t *testing.T) {
	h := NewHistory(epoch)
	rows := uint64(0)
	for i := 1; i <= 100; i++ {
		if i > 60 {
			rows += 6
		}
		r := Report{Time: epoch.Add(time.Duration(i) * time.Second)}
		r.Rows.Succeeded = rows
		h.Take(&r)
	}
	if _, got := h.Last(); got != 6 {
		t.Errorf("got %v rows/s, want 6: what was before does not count", got)
	}
}
