package status

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
)

func TestAnsweredRowsThatWaitForOneRowAreNoWork(t *testing.T) {
	now := epoch.Add(time.Hour)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	slow := 30.0 // seconds
	for name, tt := range map[string]struct {
		partition PartitionReport
		order     streams.Order
		p90       *float64
		want      State
	}{
		"99 answers wait for one call":             {PartitionReport{WindowRows: 100, ReorderRows: 99, HeadSequence: 4711, HeadSince: ago(10 * time.Second)}, streams.OrderStream, nil, StateWaiting},
		"it is not late yet":                       {PartitionReport{WindowRows: 100, ReorderRows: 99, HeadSequence: 4711, HeadSince: ago(9 * time.Second)}, streams.OrderStream, nil, StateWorking},
		"others are called":                        {PartitionReport{WindowRows: 100, ReorderRows: 80, HeadSequence: 4711, HeadSince: ago(59 * time.Second)}, streams.OrderStream, nil, StateWorking},
		"others are called, for a minute":          {PartitionReport{WindowRows: 100, ReorderRows: 80, HeadSequence: 4711, HeadSince: ago(time.Minute)}, streams.OrderStream, nil, StateWaiting},
		"all calls are slow":                       {PartitionReport{WindowRows: 100, ReorderRows: 99, HeadSequence: 4711, HeadSince: ago(89 * time.Second)}, streams.OrderStream, &slow, StateWorking},
		"slower than slow ones":                    {PartitionReport{WindowRows: 100, ReorderRows: 99, HeadSequence: 4711, HeadSince: ago(90 * time.Second)}, streams.OrderStream, &slow, StateWaiting},
		"nothing is answered":                      {PartitionReport{WindowRows: 100, HeadSequence: 4711, HeadSince: ago(time.Hour)}, streams.OrderStream, nil, StateWorking},
		"all is answered and being stored":         {PartitionReport{WindowRows: 100, ReorderRows: 100, HeadSequence: 4711, HeadSince: ago(time.Hour)}, streams.OrderStream, nil, StateWorking},
		"an operator holds the partition":          {PartitionReport{WindowRows: 100, ReorderRows: 99, HeadSequence: 4711, HeadSince: ago(time.Hour), Paused: "by alice"}, streams.OrderStream, nil, StateWorking},
		"it is in a batch":                         {PartitionReport{WindowRows: 100, ReorderRows: 99, HeadSequence: 4711, HeadSince: ago(time.Hour), ParkedRows: 1}, streams.OrderStream, nil, StateWorking},
		"no row waits for another":                 {PartitionReport{WindowRows: 100, ReorderRows: 99, HeadSequence: 4711, HeadSince: ago(time.Hour)}, streams.OrderNone, nil, StateWorking},
		"the only row without an answer has a key": {PartitionReport{WindowRows: 100, ReorderRows: 99, WaitedFor: 4711, WaitedForSince: ago(10 * time.Second)}, streams.OrderKey, nil, StateWaiting},
		"other keys go on":                         {PartitionReport{WindowRows: 100, ReorderRows: 80, WaitedFor: 4711, WaitedForSince: ago(time.Hour)}, streams.OrderKey, nil, StateWorking},
	} {
		tt.partition.Role = string(consumer.Owner)
		r := Report{Time: now, Ready: true, Order: tt.order, Rows: rowsReport{Open: 100}, Latency: LatencyReport{Calls: 10, P90: tt.p90}, Partitions: []PartitionReport{tt.partition}}
		r.Judge()
		if r.State != tt.want {
			t.Errorf("%s: %s %q, want %s", name, r.State, r.Why, tt.want)
		}
		if waits := r.State == StateWaiting; waits != (r.Row != nil && *r.Row == 4711) || waits != (r.Behind != nil && *r.Behind == tt.partition.ReorderRows) || waits != (r.Since != nil) || waits != (r.Do != "") {
			t.Errorf("%s: %s with row %v, behind %v, since %v, to do %q", name, r.State, r.Row, r.Behind, r.Since, r.Do)
		}
	}
}

// A slow call is most of what the last minute has left when the quick ones before it are older.
func TestOneSlowCallDoesNotMakeALateRowPunctual(t *testing.T) {
	now := epoch.Add(time.Hour)
	since := now.Add(-40 * time.Second)
	quick, slow := .05, 25.0
	r := Report{
		Time: now, Ready: true, Order: streams.OrderStream, Rows: rowsReport{Open: 4}, Latency: LatencyReport{Calls: 5, P50: &quick, P90: &slow},
		Partitions: []PartitionReport{{Role: string(consumer.Owner), WindowRows: 4, ReorderRows: 3, HeadSequence: 7, HeadSince: &since}},
	}
	if r.Judge(); r.State != StateWaiting {
		t.Errorf("%s %q, want waiting", r.State, r.Why)
	}
	r.Holds, r.Row, r.Behind, r.Latency.P50 = nil, nil, nil, &slow
	if r.Judge(); r.State != StateWorking {
		t.Errorf("where calls take 25 s: %s %q, want working", r.State, r.Why)
	}
}

// Of several partitions the one that waits is named: the others may work.
func TestTheRowThatIsWaitedForLongestIsShown(t *testing.T) {
	now := epoch.Add(time.Hour)
	at, before := now.Add(-time.Minute), now.Add(-2*time.Minute)
	r := Report{Time: now, Ready: true, Order: streams.OrderStream, Rows: rowsReport{Open: 9}, Partitions: []PartitionReport{
		{Role: string(consumer.Owner), WindowRows: 3, ReorderRows: 2, HeadSequence: 7, HeadSince: &at},
		{Partition: 1, Role: string(consumer.Owner), WindowRows: 2, ReorderRows: 1, HeadSequence: 9, HeadSince: &before},
		{Partition: 2, Role: string(consumer.Owner), WindowRows: 4},
	}}
	r.Judge()
	if want := "row 9 of partition 1 has no result yet, and 1 answered row waits behind it"; r.State != StateWaiting || r.Why != want || *r.Row != 9 || *r.Behind != 1 || !r.Since.Equal(before) {
		t.Errorf("%s %q, row %v behind %v since %v, want %q", r.State, r.Why, *r.Row, *r.Behind, r.Since, want)
	}
}
