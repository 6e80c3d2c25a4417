package status

import (
	"math"
	"strconv"
)

// Sample is what the stage did in the seconds up to a time. A sample of the last minutes
// covers one second, and an older one more. Rates and calls in flight are means over these
// seconds, so that a rate times its seconds is a count. For the length of queues and of
// calls it has the largest value, so that a peak can be seen however old it is.
type Sample struct {
	Time int64 `json:"time"` // Unix, in seconds
	// Seconds is how many seconds up to Time it covers, without those in which the process
	// was suspended.
	Seconds float64 `json:"seconds"`
	// Allowed is how many calls per second the throttle allows. It is null if it sets no
	// limit, or allows no call.
	Allowed  *float64 `json:"allowed"`
	Calls    float64  `json:"calls"`    // sent, per second
	Rejected float64  `json:"rejected"` // met no capacity, per second
	Rows     float64  `json:"rows"`     // emitted, per second
	InFlight float64  `json:"in_flight"`
	Window   int      `json:"window"`  // rows that are taken and not emitted, over all partitions
	Reorder  int      `json:"reorder"` // of them, answered: they wait for an earlier one
	P50MS    *float64 `json:"p50_ms"`  // of the calls of a minute, or null without any
	P90MS    *float64 `json:"p90_ms"`
	Held     bool     `json:"held"` // at some time in it: paused, or the server asked to wait
}

// merge returns the one sample for two that follow each other.
func merge(a, b Sample) Sample {
	seconds := a.Seconds + b.Seconds
	mean := func(x, y float64) float64 { return (x*a.Seconds + y*b.Seconds) / seconds }
	return Sample{
		Time: b.Time, Seconds: seconds, Allowed: both(a.Allowed, b.Allowed, mean), Calls: mean(a.Calls, b.Calls),
		Rejected: mean(a.Rejected, b.Rejected), Rows: mean(a.Rows, b.Rows), InFlight: mean(a.InFlight, b.InFlight),
		Window: max(a.Window, b.Window), Reorder: max(a.Reorder, b.Reorder),
		P50MS: both(a.P50MS, b.P50MS, math.Max), P90MS: both(a.P90MS, b.P90MS, math.Max), Held: a.Held || b.Held,
	}
}

// both returns f of two values. If one of them is nil it returns the other.
func both(a, b *float64, f func(a, b float64) float64) *float64 {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	v := f(*a, *b)
	return &v
}

// oldestSeconds are the seconds that a sample of more than ten hours covers, until there
// are too many of them.
const oldestSeconds = 120

// secondsAt returns how many seconds a sample covers at an age in seconds.
func secondsAt(age, oldest int64) int64 {
	switch {
	case age < 600:
		return 1
	case age < 6_000:
		return 10
	case age < 36_000:
		return 60
	}
	return oldest
}

// thin merges samples, in place, that end in the same span. The older samples are at now,
// the more seconds a span has. Spans begin at multiples of their length, and each length
// is a multiple of the one before, so it does not matter how often samples are thinned,
// or where.
func thin(list []Sample, now, oldest int64) []Sample {
	kept := list[:0]
	for _, s := range list {
		length := secondsAt(now-s.Time, oldest)
		if n := len(kept) - 1; n >= 0 && spanOf(kept[n].Time, length) == spanOf(s.Time, length) {
			kept[n] = merge(kept[n], s)
		} else {
			kept = append(kept, s)
		}
	}
	return kept
}

// spanOf returns the number of the span that a time ends in: one of ten seconds goes from
// :00, without it, to :10.
func spanOf(time, length int64) int64 { return (time + length - 1) / length }

// rounded returns the sample as it is shown: four digits are more than a chart has pixels
// for.
func (s Sample) rounded() Sample {
	short := func(v float64) float64 {
		// The text was formatted from a number.
		v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
		return v
	}
	shortOf := func(v *float64) *float64 {
		if v == nil {
			return nil
		}
		rounded := short(*v)
		return &rounded
	}
	s.Seconds = math.Round(100*s.Seconds) / 100
	s.Calls, s.Rejected, s.Rows, s.InFlight = short(s.Calls), short(s.Rejected), short(s.Rows), short(s.InFlight)
	s.Allowed, s.P50MS, s.P90MS = shortOf(s.Allowed), shortOf(s.P50MS), shortOf(s.P90MS)
	return s
}

// Columns are samples as a page receives them: each member is a list with the value of
// each sample, the oldest first. It is a third of the bytes of a list of samples.
type Columns struct {
	Time     []int64    `json:"time"`
	Seconds  []float64  `json:"seconds"`
	Allowed  []*float64 `json:"allowed"`
	Calls    []float64  `json:"calls"`
	Rejected []float64  `json:"rejected"`
	Rows     []float64  `json:"rows"`
	InFlight []float64  `json:"in_flight"`
	Window   []int      `json:"window"`
	Reorder  []int      `json:"reorder"`
	P50MS    []*float64 `json:"p50_ms"`
	P90MS    []*float64 `json:"p90_ms"`
	Held     []bool     `json:"held"`
}

// columns returns samples as columns.
func columns(list []Sample) *Columns {
	n := len(list)
	c := &Columns{
		Time: make([]int64, n), Seconds: make([]float64, n), Allowed: make([]*float64, n), Calls: make([]float64, n), Rejected: make([]float64, n),
		Rows: make([]float64, n), InFlight: make([]float64, n), Window: make([]int, n), Reorder: make([]int, n),
		P50MS: make([]*float64, n), P90MS: make([]*float64, n), Held: make([]bool, n),
	}
	for i := range list {
		s := &list[i]
		c.Time[i], c.Seconds[i], c.Held[i] = s.Time, s.Seconds, s.Held
		c.Allowed[i], c.Calls[i], c.Rejected[i], c.Rows[i] = s.Allowed, s.Calls, s.Rejected, s.Rows
		c.InFlight[i], c.Window[i], c.Reorder[i], c.P50MS[i], c.P90MS[i] = s.InFlight, s.Window, s.Reorder, s.P50MS, s.P90MS
	}
	return c
}
