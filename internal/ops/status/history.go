package status

import (
	"sync"
	"time"
)

// SampleEvery is the time between two samples.
const SampleEvery = time.Second

const (
	// samplesMax is how many samples thinning keeps: at most 1,640 of the last ten hours,
	// which leaves 560 for older ones.
	samplesMax   = 2200
	thinEvery    = 60              // samples that are added between two thinnings
	suspendAfter = 5 * time.Second // if a tick is later than this, the process was suspended
	// rateOver is over how many samples the rows per second are averaged. The time left
	// follows from these.
	rateOver = 30
)

// History keeps the samples of the whole run, for the charts of a page that is opened
// later. What is old is thinned, so that it takes at most 0.3 MB however long the run is:
//
//	a sample covers  for
//	1 s              the last ten minutes
//	10 s             the last hundred minutes
//	1 min            the last ten hours
//	2 min            the rest
//
// The rest has room for 560 samples at least. If it needs more, a sample of it covers 4 min
// instead, then 8 min, and so on.
//
// The page thins what it receives by the same rule. A History is created by [NewHistory],
// and safe for concurrent use.
type History struct {
	mu       sync.Mutex
	samples  []Sample     // oldest first, of different times
	added    int          // since they were thinned
	coarsest int64        // seconds that the oldest samples cover
	emitted  ring[uint64] // rows, at the instants of the last samples
	at       time.Time    // of the last sample
	calls    uint64       // the counters then
	rejected uint64
	rows     uint64
}

// NewHistory returns a history without samples, for a stage that has started at start.
func NewHistory(start time.Time) *History {
	return &History{coarsest: oldestSeconds, emitted: newRing[uint64](rateOver + 1), at: start}
}

// Take adds a sample of a report. One that is not later than the last sample is ignored.
func (h *History) Take(r *Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := r.Time.Sub(h.at)
	if since <= 0 {
		return
	}
	if since > suspendAfter {
		// What happened before and after the process was suspended counts for this
		// sample. The time between is a gap.
		since = SampleEvery
	}
	perSecond := func(now uint64, before *uint64) float64 {
		rate := float64(now-min(now, *before)) / since.Seconds()
		*before = now
		return rate
	}
	s := Sample{
		Time: r.Time.Unix(), Seconds: since.Seconds(), InFlight: float64(r.Pool.InFlight), P50MS: r.Latency.P50MS, P90MS: r.Latency.P90MS,
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
	h.emitted.add(h.rows)
	h.add(s)
}

// add adds a sample. The lock is held.
func (h *History) add(s Sample) {
	// Two ticks may end in the same second, and the clock may be set back: then one
	// sample covers both, and the times keep growing.
	for n := len(h.samples) - 1; n >= 0 && h.samples[n].Time >= s.Time; n-- {
		s = merge(h.samples[n], s)
		h.samples = h.samples[:n]
	}
	h.samples = append(h.samples, s)
	if h.added++; h.added < thinEvery {
		return
	}
	h.added = 0
	h.samples = thin(h.samples, s.Time, h.coarsest)
	for len(h.samples) > samplesMax {
		h.coarsest *= 2
		h.samples = thin(h.samples, s.Time, h.coarsest)
	}
}

// Last returns the last sample, and the rows emitted per second over the last half minute.
// The sample is nil if there is none yet.
func (h *History) Last() (s *Sample, rows float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.samples); n > 0 {
		last := h.samples[n-1].rounded()
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
	list := make([]Sample, len(h.samples))
	for i := range list {
		list[i] = h.samples[i].rounded()
	}
	return list
}

// Columns returns the samples as a page receives them.
func (h *History) Columns() *Columns { return columns(h.All()) }
