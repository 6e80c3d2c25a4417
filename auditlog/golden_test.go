package auditlog

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/golden"
)

var (
	noon     = time.Date(2026, 11, 21, 12, 0, 0, 0, time.FixedZone("CET", 3600))
	head     = Header{Time: noon, RunID: "01K9ZK2M4T", Stage: "reviews", Partition: 0}
	reported = &Usage{PromptTokens: 120, CompletionTokens: 15, TotalTokens: 135, CachedTokens: new(int64(64)), CostUSD: new(0.00042)}
)

// samples are events as they come, one of each sort that a reader will meet. The goldens are how they look, indented.
func samples() map[string]event {
	call := Call{
		Header:  head,
		StateID: StateID("reviews", "ROWS", 0, 41), Owner: "reviews-0-7", CallID: "01K9ZK2M4T-93", CallIndex: 1, Sequence: 41,
		Provider: "openai", Model: "gpt-4.1-mini", Status: CallSuccess, StatusCode: 200,
		Latency: 1203482 * time.Microsecond, DispatchDelay: 50 * time.Millisecond,
		RequestHash: strings.Repeat("ab", 32), ResponseHash: strings.Repeat("cd", 32),
		Request:  []byte(`{"model":"gpt-4.1-mini","messages":[{"role":"user","content":"Caf\u00e9 <5>?"}]}`),
		Response: []byte(`{"choices":[{"message":{"content":"good"}}],"usage":{"prompt_tokens":120.0}}`),
		Usage:    reported,
	}
	retry := call
	retry.CallIndex, retry.Status, retry.StatusCode, retry.ErrorClass = 0, CallCapacityRetry, 429, "capacity"
	retry.Latency, retry.RetryAfter, retry.Usage = 60*time.Millisecond, 2*time.Second, nil
	retry.Throttled, retry.Belief = 2340*time.Millisecond, "limit about 20/s (18-22), 3% of calls refused at random"
	retry.Response, retry.Error = []byte("<html>\xff\x00 slow down</html>"), "openai: 429: slow down"
	batch := call
	batch.Usage = &Usage{
		PromptTokens: 120, CompletionTokens: 15, TotalTokens: 135, CachedTokens: new(int64(64)),
		CacheWriteTokens: new(int64(32)), CacheWrite1hTokens: new(int64(16)), ReasoningTokens: new(int64(8)), CostUSD: new(0.00042),
	}
	batch.StateID, batch.Sequence, batch.BatchID, batch.Partition = "", 0, "01K9ZKBATCH", All
	cutOff := call
	cutOff.Status, cutOff.StatusCode, cutOff.ErrorClass, cutOff.Usage = CallUnknown, 0, "", nil
	cutOff.Response, cutOff.ResponseHash, cutOff.Error = nil, "", "connection closed after the request was sent"
	line := call
	line.CallID, line.BatchID, line.Lane, line.CallIndex = "B7QK2M4T-41", "batch_68a1", LaneBatch, 0
	line.Latency, line.DispatchDelay = 2*time.Hour, 0
	unused := line
	unused.Unused, unused.Request, unused.RequestHash = true, nil, ""
	several := call
	several.Rows, several.CallIndexes, several.Owners = []uint64{41, 42, 45}, []int{1, 0, 0}, []string{"reviews-0-7", "reviews-0-7", "reviews-0-8"}
	several.RowTokens, several.Usage = []int64{60, 40, 20}, &Usage{PromptTokens: 120, TotalTokens: 120, CostUSD: new(0.00012)}
	ofElements := several
	ofElements.Rows, ofElements.Items, ofElements.CallIndexes, ofElements.Owners = []uint64{41, 41, 42}, []int{3, 4, 0}, nil, nil
	ofElements.Item, ofElements.StateID = new(3), ItemStateID(call.StateID, 3)
	large := call
	large.Truncated, large.Request, large.Response = true, nil, nil

	row := Row{
		Header: head, StateID: call.StateID, Owner: call.Owner, Sequence: 41, SubmitIndex: 40, CompleteIndex: 38,
		Status: RowSuccess, Attempts: 1, CapacityRetries: 1,
		QueuedAt: noon.Add(-2 * time.Second), StartedAt: noon.Add(-1900 * time.Millisecond), FinishedAt: noon.Add(123 * time.Nanosecond),
		TemplateHash: strings.Repeat("12", 32), VariablesHash: strings.Repeat("34", 32), ResultHash: strings.Repeat("56", 32), Usage: reported, Source: SourceCall,
		CallsHash: strings.Repeat("78", 32), Salt: "K7QW2MZ4R3T5NVXH6YBDCJ2LPA",
		PoolConfig: PoolConfig{PoolSize: 32, DispatchDelay: 51500 * time.Microsecond},
		PoolStats: PoolStats{
			CapacityRetries: 17, Successes: 380, MaxConcurrent: 32, ThrottleTime: 2340 * time.Millisecond,
			PeakDelay: 200 * time.Millisecond, CurrentDelay: 51500 * time.Microsecond,
		},
	}
	failed := row
	failed.Status, failed.Reason, failed.Usage, failed.Attempts = RowError, "api_call_failed", nil, 2
	failed.Errors = []AttemptError{
		{Attempt: 1, Provider: "openai", Class: "transient", Error: "openai: connection reset"},
		{Attempt: 2, Provider: "openai", Class: "permanent", StatusCode: 400, Error: "openai: 400 invalid_value: \"n\"\nis wrong"},
	}
	invalid := Row{
		Header: head, StateID: call.StateID, Owner: call.Owner, Sequence: 41, SubmitIndex: 40, CompleteIndex: 38,
		Status: RowError, Reason: "invalid_row", QueuedAt: noon, FinishedAt: noon, PoolConfig: row.PoolConfig, PoolStats: row.PoolStats,
	}

	keyed, keyless := row, row
	keyed.Key, keyless.Key = new("customer 17 \"north\""), new("")
	elements := row
	elements.EarlierCalls = []TermCalls{
		{Owner: "01K9ZK2M50.1", Items: []ItemCalls{{Item: 0, CallIndex: 7, Calls: 2}, {Item: 3, CallIndex: 4, Calls: 1}}},
		{Owner: "01K9ZK2M50.2", Items: []ItemCalls{{Item: 1, CallIndex: 0, Calls: 3}}},
	}

	intent := Batch{
		Header: head, Owner: call.Owner, Phase: BatchIntent, Token: "B7QK2M4T", Provider: "openai", Model: "gpt-4.1-mini", Rows: 10000, Bytes: 7340032,
	}
	submitted, expired, abandoned := intent, intent, intent
	submitted.Phase, submitted.BatchID = BatchSubmitted, "batch_68a1"
	expired.Phase, expired.BatchID, expired.Usage = BatchExpired, "batch_68a1", reported
	expired.Answered, expired.Failed, expired.Lapsed, expired.Missing, expired.Foreign, expired.Dropped = 9000, 12, 986, 2, 1, 3
	abandoned.Phase, abandoned.Reason = BatchAbandoned, "not at the provider after 30s, its input file deleted: certain"

	item := call
	item.StateID, item.Item = ItemStateID(call.StateID, 3), new(3)
	failed.Errors = append(slices.Clip(failed.Errors), AttemptError{Attempt: 4, Item: new(3), Provider: "openai", Class: "permanent", StatusCode: 400, Error: "no"})

	process := head
	process.Partition = All
	return map[string]event{
		"call_success":        &call,
		"call_capacity_retry": &retry,
		"call_batch":          &batch,
		"call_unknown":        &cutOff,
		"call_item":           &item,
		"call_lane":           &line,
		"call_rows":           &several,
		"call_items":          &ofElements,
		"call_unused":         &unused,
		"call_truncated":      &large,
		"row_success":         &row,
		"row_error":           &failed,
		"row_invalid":         &invalid,
		"row_key":             &keyed,
		"row_key_empty":       &keyless,
		"row_elements":        &elements,
		"run_start": &Run{Header: process, Phase: PhaseStart, Settings: map[string]string{
			"STAGE_POOL_SIZE": "32", "STAGE_NAME": "reviews", "STAGE_LLM_MODEL": "gpt-4.1-mini",
		}},
		"batch_intent":    &intent,
		"batch_submitted": &submitted,
		"batch_expired":   &expired,
		"batch_abandoned": &abandoned,
		"run_claim":       &Run{Header: head, Phase: PhaseClaim, Owner: call.Owner},
		"run_pause":       &Run{Header: process, Phase: PhasePause, Reason: "openai: 401 invalid_api_key"},
		"run_joined": &Run{Header: process, Phase: PhaseJoined, Reason: "budget team for openai: 4 processes", Budget: &Budget{
			Name: "team", Provider: "openai", Mode: "member", Members: 4, Share: 0.25, Rate: new(20.5), Leader: "01K9ZK2M99",
		}},
		"run_alone": &Run{Header: process, Phase: PhaseAlone, Budget: &Budget{Name: "team", Provider: "openai", Mode: "alone", Members: 1, Share: 1}},
		"run_end": &Run{Header: process, Phase: PhaseEnd, Reason: "SIGTERM", Summary: &Summary{
			RowsSucceeded: 380, RowsFailed: 2, RowsSkipped: 1, CapacityRetries: 17,
			PeakDelay: 200 * time.Millisecond, Throttled: 2340 * time.Millisecond, Executing: 459 * time.Second, Belief: "limit about 20/s (18-22)",
			Usage: []ModelTotals{
				{Provider: "openai", Model: "gpt-4.1-mini", Totals: Totals{Calls: 399, Usage: &Usage{
					PromptTokens: 45600, CompletionTokens: 5700, TotalTokens: 51300,
				}}},
				{Provider: "mock", Model: "mock", Totals: Totals{Calls: 1}},
			},
			Total: Totals{Calls: 400, Usage: &Usage{PromptTokens: 45600, CompletionTokens: 5700, TotalTokens: 51300}},
		}},
	}
}

func TestEventsLookLikeTheGoldens(t *testing.T) {
	for name, e := range samples() {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := json.Indent(&got, e.AppendJSON(nil, PayloadsFull, 0), "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
			golden.Check(t, filepath.Join("testdata", name+".json"), got.String())
		})
	}
}
