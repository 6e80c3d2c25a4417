package auditlog_test

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// stored returns the messages of an audit stream: two calls and the row that they were
// made for.
func stored() (messages [][]byte) {
	head := auditlog.Header{
		Time:  time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
		RunID: "r1", Stage: "reviews", Partition: 0,
	}
	id, cost := auditlog.StateID("reviews", "ROWS", 0, 7), 0.0012
	refused := auditlog.Call{
		Header: head, StateID: id, CallID: "c1", Owner: "o1", Sequence: 7,
		Status: auditlog.CallCapacityRetry, StatusCode: 429,
	}
	answered := auditlog.Call{
		Header: head, StateID: id, CallID: "c2", Owner: "o1", Sequence: 7,
		Status: auditlog.CallSuccess, StatusCode: 200, Latency: 800 * time.Millisecond,
		Usage: &auditlog.Usage{PromptTokens: 40, CompletionTokens: 12, TotalTokens: 52, CostUSD: &cost},
	}
	row := auditlog.Row{
		Header: head, StateID: id, Owner: "o1", Sequence: 7,
		Status: auditlog.RowSuccess, Attempts: 1, CapacityRetries: 1,
	}
	const maxPayload = 1 << 20
	return [][]byte{
		refused.AppendJSON(nil, auditlog.PayloadsFull, maxPayload),
		answered.AppendJSON(nil, auditlog.PayloadsFull, maxPayload),
		row.AppendJSON(nil, auditlog.PayloadsFull, maxPayload),
	}
}

// A whole small job: what the rows of an audit stream have cost.
func Example() {
	var calls, rows int
	var sum auditlog.UsageSum
	for _, message := range stored() {
		event, err := auditlog.Decode(message)
		if err != nil {
			fmt.Println(err)
			return
		}
		switch event.Kind {
		case auditlog.KindCall:
			calls++
			sum.Add(event.Call.Usage, event.Call.Unpriced())
		case auditlog.KindRow:
			rows++
			fmt.Println("row", event.Row.Sequence, event.Row.Status, "at", event.Time.Format(time.Kitchen))
		case auditlog.KindRun, auditlog.KindBatch: // not about money
		}
	}
	total := sum.Total()
	fmt.Printf("%d row, %d calls, %d tokens, %.4f USD\n", rows, calls, total.TotalTokens, *total.CostUSD)
	// Output:
	// row 7 success at 12:00PM
	// 1 row, 2 calls, 52 tokens, 0.0012 USD
}
