package app

import "time"

// statusReport is what /api/status says. Durations are in the unit that the name ends with.
type statusReport struct {
	Stage      string            `json:"stage"`
	RunID      string            `json:"run_id"`
	Version    string            `json:"version"`
	Time       time.Time         `json:"time"`
	UptimeS    float64           `json:"uptime_seconds"`
	Ready      bool              `json:"ready"`
	Reason     string            `json:"reason"`
	Rows       rowsReport        `json:"rows"`
	Pool       poolReport        `json:"pool"`
	Usage      usageReport       `json:"usage"`
	Models     []modelReport     `json:"models"`
	Partitions []partitionReport `json:"partitions"`
}

type rowsReport struct {
	Succeeded uint64 `json:"succeeded"`
	Failed    uint64 `json:"failed"`
	Skipped   uint64 `json:"skipped"`
	Pending   uint64 `json:"pending"`
}

type poolReport struct {
	Size            int     `json:"size"`
	InFlight        int     `json:"in_flight"`
	MaxConcurrent   int     `json:"max_concurrent"`
	Waiting         int     `json:"waiting"`
	Successes       uint64  `json:"successes"`
	CapacityRetries uint64  `json:"capacity_retries"`
	DelayMS         float64 `json:"dispatch_delay_ms"`
	PeakDelayMS     float64 `json:"peak_delay_ms"`
	ThrottledS      float64 `json:"throttled_seconds"`
	ExecutingS      float64 `json:"executing_seconds"`
	Paused          string  `json:"paused"`
}

// usageReport: what was not told is null, and so is the cost while a part of it is not known; what is known stands beside.
type usageReport struct {
	Calls            uint64   `json:"calls"`
	PromptTokens     *int64   `json:"prompt_tokens"`
	CompletionTokens *int64   `json:"completion_tokens"`
	TotalTokens      *int64   `json:"total_tokens"`
	CostUSD          *float64 `json:"cost_usd"`
	KnownCostUSD     float64  `json:"known_cost_usd"`
	UnpricedCalls    uint64   `json:"unpriced_calls"`
}

type modelReport struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	usageReport
}

type partitionReport struct {
	Partition     int     `json:"partition"`
	Role          string  `json:"role"`
	Owner         string  `json:"owner"`
	WindowRows    int     `json:"window_rows"`
	ReorderRows   int     `json:"reorder_rows"`
	ReorderBytes  int64   `json:"reorder_bytes"`
	HeadSequence  uint64  `json:"head_sequence"`
	HeadOfLineS   float64 `json:"head_of_line_seconds"`
	PendingRows   uint64  `json:"pending_rows"`
	HighWaterMark uint64  `json:"high_water_mark"`
	Emitted       uint64  `json:"emitted"`
	Failed        uint64  `json:"failed"`
	Problem       string  `json:"problem"`
}

// status reports the stage as it is now. Safe for concurrent use.
func (s *stage) status() statusReport {
	ready, reason := s.ready()
	snap, now := s.snapshot(), time.Now()
	r := statusReport{
		Stage: s.cfg.Name, RunID: s.runID, Version: buildVersion().Version, Time: now.UTC(), UptimeS: now.Sub(s.started).Seconds(),
		Ready: ready, Reason: reason, Usage: newUsageReport(s.usage.all()),
		Pool: poolReport{
			Size: snap.Pool.PoolSize, InFlight: snap.Pool.InFlight, MaxConcurrent: snap.Pool.MaxConcurrent, Waiting: snap.Pool.Waiting,
			Successes: snap.Pool.Successes, CapacityRetries: snap.Pool.CapacityRetries,
			DelayMS: milliseconds(snap.Pool.CurrentDelay), PeakDelayMS: milliseconds(snap.Pool.PeakDelay),
			ThrottledS: snap.Pool.ThrottleTime.Seconds(), ExecutingS: snap.Pool.ExecTime.Seconds(), Paused: snap.Pool.Paused,
		},
		Models: []modelReport{}, Partitions: []partitionReport{},
	}
	for _, m := range s.usage.list() {
		r.Models = append(r.Models, modelReport{Provider: m.provider, Model: m.model, usageReport: newUsageReport(m.spending)})
	}
	for _, p := range snap.Partitions {
		head := 0.0
		if p.Head != 0 {
			head = now.Sub(p.HeadSince).Seconds()
		}
		r.Partitions = append(r.Partitions, partitionReport{
			Partition: p.Partition, Role: string(p.Role), Owner: p.Owner, WindowRows: p.Window, ReorderRows: p.Buffered,
			ReorderBytes: p.BufferedBytes, HeadSequence: p.Head, HeadOfLineS: head, PendingRows: p.Pending,
			HighWaterMark: p.HighWaterMark, Emitted: p.Emitted, Failed: p.Failed, Problem: p.Problem,
		})
		r.Rows.Succeeded += p.Emitted - p.Failed
		r.Rows.Failed += p.Failed
		r.Rows.Skipped += p.Skipped
		r.Rows.Pending += p.Pending
	}
	return r
}

func newUsageReport(s spending) usageReport {
	r := usageReport{Calls: s.Calls, KnownCostUSD: s.KnownUSD, UnpricedCalls: s.Unpriced}
	if u := s.Usage; u != nil {
		r.PromptTokens, r.CompletionTokens, r.TotalTokens, r.CostUSD = &u.PromptTokens, &u.CompletionTokens, &u.TotalTokens, u.CostUSD
	}
	return r
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
