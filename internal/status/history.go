package status

import (
	"math"
	"sync"
	"time"
)

// SampleEvery is the time between two samples.
const SampleEvery = time.Second

const (
	samplesMax = 600 // ten minutes
	rateOver   = 30  // samples that the rows per second are an average of, and so the time left
)

// Sample is one second of the stage's work. Rates are per second, over the time since the sample before.
type Sample struct {
	Time     int64    `json:"time"`     // Unix, in seconds
	Allowed  *float64 `json:"allowed"`  // calls, by the throttle; null: it sets no limit, or allows none
	Calls    float64  `json:"calls"`    // sent
	Rejected float64  `json:"rejected"` // met no capacity
	Rows     float64  `json:"rows"`     // emitted
	InFlight int      `json:"in_flight"`
	Window   int      `json:"window"`  // rows, over all partitions
	Reorder  int      `json:"reorder"` // of them, answered
	P50MS    *float64 `json:"p50_ms"`
	P90MS    *float64 `json:"p90_ms"`
	Held     bool     `json:"held"` // paused, or the server asked to wait
}

// History keeps the samples of the last ten minutes, for the charts of a page that is opened later. Create it with
// [NewHistory]. Safe for concurrent use.
type History struct {
	mu       sync.Mutex
	samples  ring[Sample]
	emitted  ring[uint64] // rows, at the same instants
	at       time.Time    // of the last sample
	calls    uint64       // the counters then
	rejected uint64
	rows     uint64
}

// NewHistory returns a history without samples, for a stage that has started at start.
func NewHistory(start time.Time) *History {
	return &History{samples: newRing[Sample](samplesMax), emitted: newRing[uint64](rateOver + 1), at: start}
}

// Take adds a sample of a report. One that is not later than the last sample is ignored.
func (h *History) Take(r *Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := r.Time.Sub(h.at).Seconds()
	if since <= 0 {
		return
	}
	perSecond := func(now uint64, before *uint64) float64 {
		rate := math.Round(100*float64(now-min(now, *before))/since) / 100
		*before = now
		return rate
	}
	s := Sample{
		Time: r.Time.Unix(), InFlight: r.Pool.InFlight, P50MS: r.Latency.P50MS, P90MS: r.Latency.P90MS,
		Calls: perSecond(r.Pool.Dispatched, &h.calls), Rejected: perSecond(r.Pool.CapacityRetries, &h.rejected),
		Rows: perSecond(r.Rows.Succeeded+r.Rows.Failed, &h.rows),
		Held: r.Pool.Paused != "" || r.Pool.LawPausedUntil != nil,
	}
	if !s.Held {
		s.Allowed = r.Pool.Allowed
	}
	for i := range r.Partitions {
		s.Window += r.Partitions[i].WindowRows
		s.Reorder += r.Partitions[i].ReorderRows
	}
	h.at = r.Time
	h.samples.add(s)
	h.emitted.add(h.rows)
}

// Last returns the last sample, nil if there is none, and the rows emitted per second over the last half minute.
func (h *History) Last() (s *Sample, rows float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.samples.values); n > 0 {
		last := *h.samples.at(n - 1)
		s = &last
	}
	if n := len(h.emitted.values); n > 1 {
		rows = float64(h.rows-*h.emitted.at(0)) / (float64(n-1) * SampleEvery.Seconds())
	}
	return s, rows
}

// All returns the samples, the oldest first.
func (h *History) All() []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]Sample, len(h.samples.values))
	for i := range list {
		list[i] = *h.samples.at(i)
	}
	return list
}
