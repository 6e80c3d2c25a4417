package auditlog_test

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// A process takes over partition 0 and records it; a reader of the audit stream decodes the event.
func Example() {
	run := auditlog.Run{
		Header: auditlog.Header{
			Time: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), RunID: "r1", Stage: "reviews", Partition: 0,
		},
		Phase: auditlog.PhaseClaim,
		Owner: "reviews-0-7",
	}
	msg := run.AppendJSON(nil, auditlog.PayloadsFull, 0)
	fmt.Println(string(msg))
	fmt.Println(run.MsgID(3))

	event, err := auditlog.Decode(msg)
	if err != nil {
		fmt.Println(err)
		return
	}
	switch event.Kind {
	case auditlog.KindCall:
		fmt.Println(event.Call.Provider, event.Call.Status, event.Call.Latency)
	case auditlog.KindRow:
		fmt.Println(event.Row.Sequence, event.Row.Status, event.Row.Reason)
	case auditlog.KindRun:
		fmt.Println(event.Time.Format(time.Kitchen), event.Run.Phase, "of partition", event.Partition, "by", event.Run.Owner)
	case auditlog.KindBatch:
		fmt.Println(event.Batch.Phase, event.Batch.BatchID, event.Batch.Rows)
	}
	// Output:
	// {"schema_version":1,"event":"run","time":"2026-11-21T12:00:00.000000000Z","run_id":"r1","stage":"reviews","partition":0,"phase":"claim","reason":null,"owner":"reviews-0-7","settings":null,"summary":null}
	// reviews/r1/reviews-0-7/run/3
	// 12:00PM claim of partition 0 by reviews-0-7
}
