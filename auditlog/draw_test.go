package auditlog

import (
	"bytes"
	"encoding/json"
	"math"
	"time"

	"pgregory.net/rapid"
)

// Drawn events have every field set to anything that it may hold, bad UTF-8 and control characters included. Durations are
// whole microseconds and times are in UTC: the encoding keeps no more.

var (
	drawText = rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"", "plain", "\u2028\u2029", "\x00\x1f\x7f", "a\"b\\c\b\f\n\r\t", "<&>", "caf\xe9", "🙂", "\xf0\x9f\x99"}),
	)
	drawName     = rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z0-9-]{1,12}`))
	drawCount    = rapid.IntRange(0, math.MaxInt32)
	drawDuration = rapid.Map(rapid.OneOf(rapid.Int64Range(0, 5_000_000), rapid.Int64Range(0, 1e15)), func(us int64) time.Duration {
		return time.Duration(us) * time.Microsecond
	})
	drawTime = rapid.Map(rapid.Int64Range(0, 250_000_000_000), func(s int64) time.Time {
		return time.Unix(s, s*7919%1e9).UTC()
	})
	drawMaybeTime = rapid.OneOf(rapid.Just(time.Time{}), drawTime)
	drawPartition = rapid.Map(rapid.IntRange(-1, 40), func(n int) Partition { return Partition(n) })
	drawBody      = rapid.OneOf(
		rapid.Just[[]byte](nil),
		rapid.Map(rapid.SliceOf(rapid.Byte()), bytes.TrimSpace), // encoding/json would drop the blanks around a number
		rapid.Map(rapid.MapOf(rapid.String(), rapid.Float64()), func(m map[string]float64) []byte {
			b, err := json.Marshal(m)
			if err != nil {
				panic(err)
			}
			return b
		}),
	)
	drawUsage = rapid.Custom(func(t *rapid.T) *Usage {
		if rapid.Bool().Draw(t, "untold") {
			return nil
		}
		return &Usage{
			PromptTokens:       rapid.Int64().Draw(t, "prompt"),
			CompletionTokens:   rapid.Int64().Draw(t, "completion"),
			TotalTokens:        rapid.Int64().Draw(t, "total"),
			CachedTokens:       rapid.Ptr(rapid.Int64(), true).Draw(t, "cached"),
			CacheWriteTokens:   rapid.Ptr(rapid.Int64(), true).Draw(t, "cache write"),
			CacheWrite1hTokens: rapid.Ptr(rapid.Int64(), true).Draw(t, "cache write 1h"),
			ReasoningTokens:    rapid.Ptr(rapid.Int64(), true).Draw(t, "reasoning"),
			CostUSD:            rapid.Ptr(rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1e-5)), true).Draw(t, "cost"),
		}
	})
	drawHeader = rapid.Custom(func(t *rapid.T) Header {
		return Header{
			Time:      drawTime.Draw(t, "time"),
			RunID:     drawName.Draw(t, "run"),
			Stage:     drawName.Draw(t, "stage"),
			Partition: drawPartition.Draw(t, "partition"),
		}
	})
	drawCall = rapid.Custom(func(t *rapid.T) *Call {
		return &Call{
			Header:        drawHeader.Draw(t, "head"),
			StateID:       drawName.Draw(t, "state id"),
			Owner:         drawName.Draw(t, "owner"),
			CallID:        drawName.Draw(t, "call id"),
			CallIndex:     drawCount.Draw(t, "index"),
			Sequence:      rapid.Uint64().Draw(t, "seq"),
			BatchID:       drawName.Draw(t, "batch"),
			Item:          rapid.SampledFrom([]*int{nil, new(0), new(255)}).Draw(t, "item"),
			Lane:          rapid.SampledFrom([]string{"", LaneBatch}).Draw(t, "lane"),
			Unused:        rapid.Bool().Draw(t, "unused"),
			Provider:      drawName.Draw(t, "provider"),
			Model:         drawText.Draw(t, "model"),
			Status:        rapid.SampledFrom([]CallStatus{CallSuccess, CallFailure, CallCapacityRetry, CallUnknown}).Draw(t, "status"),
			StatusCode:    rapid.SampledFrom([]int{0, 200, 429, 503}).Draw(t, "code"),
			ErrorClass:    rapid.SampledFrom([]string{"", "capacity", "transient", "permanent", "fatal"}).Draw(t, "class"),
			Latency:       drawDuration.Draw(t, "latency"),
			DispatchDelay: drawDuration.Draw(t, "delay"),
			RetryAfter:    drawDuration.Draw(t, "retry after"),
			RequestHash:   drawHash.Draw(t, "request hash"),
			ResponseHash:  drawHash.Draw(t, "response hash"),
			Request:       drawBody.Draw(t, "request"),
			Response:      drawBody.Draw(t, "response"),
			Truncated:     rapid.Bool().Draw(t, "truncated"),
			Usage:         drawUsage.Draw(t, "usage"),
			Error:         drawText.Draw(t, "error"),
		}
	})
	drawHash = rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[0-9a-f]{64}`))
	drawRow  = rapid.Custom(func(t *rapid.T) *Row {
		return &Row{
			Header:          drawHeader.Draw(t, "head"),
			StateID:         drawName.Draw(t, "state id"),
			Owner:           drawName.Draw(t, "owner"),
			Sequence:        rapid.Uint64Min(1).Draw(t, "seq"),
			SubmitIndex:     rapid.Uint64().Draw(t, "submit"),
			CompleteIndex:   rapid.Uint64().Draw(t, "complete"),
			Status:          rapid.SampledFrom([]string{RowSuccess, RowError}).Draw(t, "status"),
			Reason:          drawName.Draw(t, "reason"),
			Attempts:        drawCount.Draw(t, "attempts"),
			CapacityRetries: drawCount.Draw(t, "retries"),
			Errors:          drawErrors.Draw(t, "errors"),
			QueuedAt:        drawMaybeTime.Draw(t, "queued"),
			StartedAt:       drawMaybeTime.Draw(t, "started"),
			FinishedAt:      drawMaybeTime.Draw(t, "finished"),
			TemplateHash:    drawHash.Draw(t, "template"),
			VariablesHash:   drawHash.Draw(t, "variables"),
			Usage:           drawUsage.Draw(t, "usage"),
			Source:          rapid.SampledFrom([]string{"", SourceCall, SourceJournal, SourceDedupe, SourceUpstream}).Draw(t, "source"),
			PoolConfig:      PoolConfig{PoolSize: drawCount.Draw(t, "size"), DispatchDelay: drawDuration.Draw(t, "delay")},
			PoolStats: PoolStats{
				CapacityRetries: rapid.Uint64().Draw(t, "pool retries"), Successes: rapid.Uint64().Draw(t, "successes"),
				MaxConcurrent: drawCount.Draw(t, "max"), ThrottleTime: drawDuration.Draw(t, "throttled"),
				PeakDelay: drawDuration.Draw(t, "peak"), CurrentDelay: drawDuration.Draw(t, "current"),
			},
			ResultHash:   drawHash.Draw(t, "result"),
			Key:          rapid.Ptr(drawText, true).Draw(t, "key"),
			EarlierCalls: drawEarlierCalls.Draw(t, "earlier calls"),

			HeadersLeftOut: rapid.Bool().Draw(t, "headers left out"),
			Truncated:      rapid.Bool().Draw(t, "truncated"),
		}
	})
	drawEarlierCalls = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) TermCalls {
		return TermCalls{
			Owner: drawName.Draw(t, "owner"),
			Items: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ItemCalls {
				return ItemCalls{Item: drawCount.Draw(t, "item"), CallIndex: drawCount.Draw(t, "call index"), Calls: drawCount.Draw(t, "calls")}
			}), 1, 3).Draw(t, "items"),
		}
	}), 0, 2)
	drawErrors = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) AttemptError {
		return AttemptError{
			Item:       rapid.SampledFrom([]*int{nil, new(0), new(9)}).Draw(t, "item"),
			Attempt:    drawCount.Draw(t, "attempt"),
			Provider:   drawName.Draw(t, "provider"),
			Class:      rapid.SampledFrom([]string{"", "capacity", "transient", "permanent", "fatal"}).Draw(t, "class"),
			StatusCode: rapid.SampledFrom([]int{0, 500}).Draw(t, "code"),
			Error:      drawText.Draw(t, "error"),
		}
	}), 0, 4)
	drawTotals = rapid.Custom(func(t *rapid.T) Totals {
		return Totals{Calls: rapid.Uint64().Draw(t, "calls"), Usage: drawUsage.Draw(t, "usage")}
	})
	drawSummary = rapid.Custom(func(t *rapid.T) *Summary {
		n := rapid.Uint64()
		return &Summary{
			RowsSucceeded: n.Draw(t, "succeeded"), RowsFailed: n.Draw(t, "failed"), RowsSkipped: n.Draw(t, "skipped"),
			CapacityRetries: n.Draw(t, "retries"), PeakDelay: drawDuration.Draw(t, "peak"),
			Throttled: drawDuration.Draw(t, "throttled"), Executing: drawDuration.Draw(t, "executing"),
			Usage: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ModelTotals {
				return ModelTotals{Provider: drawName.Draw(t, "provider"), Model: drawText.Draw(t, "model"), Totals: drawTotals.Draw(t, "totals")}
			}), 0, 3).Draw(t, "usage"),
			Total: drawTotals.Draw(t, "total"),
		}
	})
	drawRun = rapid.Custom(func(t *rapid.T) *Run {
		r := &Run{
			Header:    drawHeader.Draw(t, "head"),
			Phase:     rapid.SampledFrom([]Phase{PhaseStart, PhaseClaim, PhaseFenced, PhasePause, PhaseResume, PhaseJoined, PhaseLeads, PhaseAlone, PhaseEnd}).Draw(t, "phase"),
			Reason:    drawText.Draw(t, "reason"),
			Owner:     drawName.Draw(t, "owner"),
			Truncated: rapid.Bool().Draw(t, "truncated"),
		}
		if rapid.Bool().Draw(t, "has settings") {
			r.Settings = rapid.MapOf(rapid.String(), drawText).Draw(t, "settings")
		}
		if rapid.Bool().Draw(t, "has summary") {
			r.Summary = drawSummary.Draw(t, "summary")
		}
		if rapid.Bool().Draw(t, "has a budget") {
			r.Budget = &Budget{
				Name: drawName.Draw(t, "budget"), Provider: drawName.Draw(t, "provider"), Mode: rapid.SampledFrom([]string{"leader", "member", "alone"}).Draw(t, "mode"),
				Members: drawCount.Draw(t, "members"), Share: rapid.Float64Range(0, 1).Draw(t, "share"),
				Rate: rapid.Ptr(rapid.Float64(), true).Draw(t, "rate"), Leader: drawName.Draw(t, "leader"),
			}
		}
		return r
	})
	drawBatch = rapid.Custom(func(t *rapid.T) *Batch {
		return &Batch{
			Header:   drawHeader.Draw(t, "head"),
			Owner:    drawName.Draw(t, "owner"),
			Phase:    rapid.SampledFrom([]BatchPhase{BatchIntent, BatchSubmitted, BatchAdopted, BatchEnded, BatchCancelled, BatchExpired, BatchAbandoned}).Draw(t, "phase"),
			Token:    rapid.StringMatching(`[a-z0-9]{1,12}`).Draw(t, "token"),
			BatchID:  drawName.Draw(t, "batch"),
			Provider: drawName.Draw(t, "provider"),
			Model:    drawText.Draw(t, "model"),
			Rows:     rapid.IntRange(1, math.MaxInt32).Draw(t, "rows"),
			Bytes:    rapid.Int64Min(0).Draw(t, "bytes"),
			Answered: drawCount.Draw(t, "answered"),
			Failed:   drawCount.Draw(t, "failed"),
			Lapsed:   drawCount.Draw(t, "lapsed"),
			Missing:  drawCount.Draw(t, "missing"),
			Foreign:  drawCount.Draw(t, "foreign"),
			Dropped:  drawCount.Draw(t, "dropped"),
			Usage:    drawUsage.Draw(t, "usage"),
			Reason:   drawText.Draw(t, "reason"),
		}
	})
	drawEvent = rapid.OneOf(
		rapid.Map(drawCall, func(c *Call) encoder { return c }),
		rapid.Map(drawRow, func(r *Row) encoder { return r }),
		rapid.Map(drawRun, func(r *Run) encoder { return r }),
		rapid.Map(drawBatch, func(b *Batch) encoder { return b }),
	)
)

// encoder is what all kinds of events have in common.
type encoder interface {
	AppendJSON(dst []byte, payloads Payloads, bytesMax int) []byte
}
