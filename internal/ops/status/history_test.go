package status

import (
	"encoding/json"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/internal/stagetest"
	"pgregory.net/rapid"
)

func TestASampleHasTheRatesOfItsSecond(t *testing.T) {
	h := NewHistory(epoch)
	for i := 1; i <= 10; i++ {
		n, allowed := uint64(i), 12.5
		r := Report{Time: epoch.Add(time.Duration(i) * 2 * time.Second), Pool: PoolReport{Dispatched: 20 * n, CapacityRetries: n, Allowed: &allowed, InFlight: 4}}
		if i == 10 {
			r.Pool.LawPausedUntil = &epoch
		}
		r.Rows.Succeeded, r.Rows.Failed, r.Partitions = 15*n, 5*n, []PartitionReport{{WindowRows: 3, ReorderRows: 1}, {WindowRows: 4, ReorderRows: 2}}
		h.Take(&r)
		h.Take(&r) // of the same instant: none
	}
	all := h.All()
	if len(all) != 10 || all[0].Time != epoch.Unix()+2 || all[9].Time != epoch.Unix()+20 {
		t.Fatalf("got %d samples from %d to %d", len(all), all[0].Time-epoch.Unix(), all[len(all)-1].Time-epoch.Unix())
	}
	if s := all[5]; s.Seconds != 2 || s.Calls != 10 || s.Rejected != .5 || s.Rows != 10 || *s.Allowed != 12.5 || s.InFlight != 4 || s.Window != 7 || s.Reorder != 3 || s.Held {
		t.Errorf("got %+v", s)
	}
	last, _ := h.Last()
	if !last.Held || last.Allowed != nil {
		t.Errorf("while the server asks to wait: got %+v, want held and nothing allowed", last)
	}
}

// run is a history with what it was made of.
type run struct {
	*History
	report Report
	ticks  []tick
}

// tick is one report, and what has happened since the one before.
type tick struct {
	end    time.Time
	took   float64 // seconds; 1 after a suspension
	calls  uint64
	window int
	held   bool
}

// newRun returns a run without samples.
func newRun(start time.Time) *run {
	return &run{History: NewHistory(start), report: Report{Time: start}}
}

// tick goes on for a while, in which so many calls are sent and half as many rows emitted.
func (r *run) tick(after time.Duration, calls uint64, window int, held bool) {
	took := after.Seconds()
	if after > suspendAfter {
		took = 1
	}
	r.report.Time = r.report.Time.Add(after)
	r.report.Pool.Dispatched += calls
	r.report.Rows.Succeeded = r.report.Pool.Dispatched / 2
	r.report.Partitions = []PartitionReport{{WindowRows: window}}
	if r.report.Pool.Paused = ""; held {
		r.report.Pool.Paused = "no credit"
	}
	r.ticks = append(r.ticks, tick{r.report.Time, took, calls, window, held})
	r.Take(&r.report)
}

// drawRun draws a run of up to days, with pauses of the process.
func drawRun(t *rapid.T) *run {
	r := newRun(epoch.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "start"))))
	for range rapid.IntRange(1, 12).Draw(t, "phases") {
		every := time.Duration(rapid.SampledFrom([]int{990, 1000, 1013, 3000, 5000}).Draw(t, "every")) * time.Millisecond
		calls, window, heldAt := rapid.Uint64Range(0, 50).Draw(t, "calls"), rapid.IntRange(0, 9).Draw(t, "window"), rapid.IntRange(0, 900).Draw(t, "held")
		for i := range rapid.IntRange(1, 900).Draw(t, "ticks") {
			r.tick(every, calls+uint64(i%3), window+i%7, i == heldAt)
		}
		if rapid.Bool().Draw(t, "suspend") {
			r.tick(time.Duration(rapid.Int64Range(6, 300_000).Draw(t, "suspended"))*time.Second, calls, window, false)
		}
	}
	return r
}

// Every sample stands for the ticks since the sample before, and for nothing else: at
// each border between two samples, also of different lengths, the sums of both sides are
// those of the ticks.
func TestThinningLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRun(t)
		if n := len(r.samples); n > samplesMax+thinEvery {
			t.Fatalf("%d samples", n)
		}
		ticks, rows := r.ticks, float64(0)
		for i := range r.samples {
			s := &r.samples[i]
			if i > 0 && s.Time <= r.samples[i-1].Time {
				t.Fatalf("sample %d ends at %d, the one before at %d", i, s.Time, r.samples[i-1].Time)
			}
			var want tick
			for len(ticks) > 0 && ticks[0].end.Unix() <= s.Time {
				want = tick{ticks[0].end, want.took + ticks[0].took, want.calls + ticks[0].calls, max(want.window, ticks[0].window), want.held || ticks[0].held}
				ticks = ticks[1:]
			}
			if !near(s.Seconds, want.took) || !near(s.Calls*s.Seconds, float64(want.calls)) || s.Window != want.window || s.Held != want.held || s.Time != want.end.Unix() {
				t.Fatalf("sample %d: got %+v, %v calls, want %+v", i, s, s.Calls*s.Seconds, want)
			}
			rows += s.Rows * s.Seconds
		}
		if len(ticks) > 0 || !near(rows, float64(r.report.Rows.Succeeded)) {
			t.Fatalf("%d ticks are in no sample; %v of %d rows", len(ticks), rows, r.report.Rows.Succeeded)
		}
	})
}

// near reports whether two sums differ by no more than floating point does.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

func TestWhatIsOldIsThinned(t *testing.T) {
	r := newRun(epoch.Add(-12345 * time.Second))
	counts := make(map[int]int) // samples, by hours
	for i := range 72 * 3600 {
		r.tick(time.Second, uint64(i%2), 0, false)
		if hour := (i + 1) / 3600; (i+1)%3600 == 0 {
			counts[hour] = len(r.samples)
		}
	}
	for i := 1; i < len(r.samples)-1; i++ { // the first and the last span may have begun earlier or go on
		s := &r.samples[i]
		age := r.report.Time.Unix() - s.Time
		// Within a minute it is thinned, and until the span that it belongs to has passed
		// it is a part.
		most, least := secondsAt(age, r.coarsest), secondsAt(max(0, age-thinEvery-r.coarsest), r.coarsest)
		if got := int64(s.Seconds); got > most || got < least {
			t.Fatalf("of age %d: %d s, want %d to %d", age, got, least, most)
		}
	}
	t.Logf("samples by hours: 1: %d, 2: %d, 10: %d, 24: %d, 72: %d; the oldest of %d s", counts[1], counts[2], counts[10], counts[24], counts[72], r.coarsest)
	for hour, n := range counts {
		if n > samplesMax+thinEvery {
			t.Errorf("%d samples after %d h", n, hour)
		}
	}
	if counts[24] < 1640+14*30 {
		t.Errorf("%d samples after a day, want each minute of ten hours and two minutes of the rest", counts[24])
	}
}

func TestASuspendedProcessIsAGap(t *testing.T) {
	r := newRun(epoch)
	for range 60 {
		r.tick(time.Second, 10, 5, false)
	}
	r.tick(time.Hour, 30, 5, false) // the calls that were in flight
	gap := func(longest float64) {
		t.Helper()
		widest, at := 0., 0
		for i := 1; i < len(r.samples); i++ {
			s := &r.samples[i]
			if g := float64(s.Time) - s.Seconds - float64(r.samples[i-1].Time); g > widest {
				widest, at = g, i
			}
		}
		if widest != longest {
			t.Errorf("the widest gap is of %v s, before sample %d of %d, want %v s", widest, at, len(r.samples), longest)
		}
	}
	gap(3599)
	if s := r.samples[60]; s.Calls != 30 || s.Seconds != 1 {
		t.Errorf("got %+v, want what happened before and after in one second", s)
	}
	for range 20 * 3600 {
		r.tick(time.Second, 10, 5, false)
	}
	gap(3599) // each of its ends is also the end of a span
}

func TestTheClockIsSetBack(t *testing.T) {
	r := newRun(epoch)
	for range 100 {
		r.tick(time.Second, 10, 5, false)
	}
	r.report.Time = epoch.Add(40*time.Second + time.Millisecond)
	r.at = r.report.Time.Add(-time.Second) // as the monotonic clock has it
	r.report.Pool.Dispatched += 10
	r.Take(&r.report)
	if n := len(r.samples); n != 40 || r.samples[39].Time != epoch.Unix()+40 || r.samples[39].Seconds != 62 || r.samples[39].Calls != 10 {
		t.Errorf("got %d samples, the last %+v: want one for all from the new time on", n, r.samples[n-1])
	}
}

// The page thins by the same rule. It is tested with the same file (tools/browser).
func TestThinningIsThatOfThePage(t *testing.T) {
	const now = 1_800_000_123
	var list []Sample
	for _, ages := range []struct{ from, to, step int64 }{ // dense where the lengths change
		{43_107, 37_000, 907}, {37_000, 35_500, 23}, {6_100, 5_950, 3}, {5_000, 700, 907}, {650, 550, 3}, {500, 0, 101},
	} {
		for age := ages.from; age > ages.to; age -= ages.step {
			value := float64(age%17) + .25
			s := Sample{Time: now - age, Seconds: 1, Calls: value, Rejected: value / 8, Rows: value / 2, InFlight: value + 1, Window: int(age % 31), Reorder: int(age % 7), Held: age%101 == 0}
			if age%3 != 0 {
				s.Allowed, s.P50MS = &value, &value
			}
			if age%5 == 0 {
				s.P90MS = &value
			}
			list = append(list, s)
		}
	}
	given := columns(list)
	want := columns(thin(slices.Clone(list), now, oldestSeconds))
	text := stagetest.Value(json.MarshalIndent(map[string]any{"now": now, "given": given, "want": want}, "", ""))(t)
	golden.Check(t, filepath.Join("testdata", "thinned.json"), string(text)+"\n")
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

// BenchmarkHistory measures a second of a run that is a month old, what the run takes in
// memory, and what a page receives.
func BenchmarkHistory(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	h := NewHistory(epoch)
	report := Report{Time: epoch}
	second := func(i int) {
		report.Time = report.Time.Add(time.Second)
		report.Pool.Dispatched += uint64(i*i) % 97
		report.Rows.Succeeded += uint64(i*i) % 89
		allowed, p50, p90 := 40+float64(i%1000)/97, 800+float64(i%777)/7, 1500+float64(i%991)/3
		report.Pool.Allowed, report.Latency.P50MS, report.Latency.P90MS, report.Pool.InFlight = &allowed, &p50, &p90, i%64
		report.Partitions = []PartitionReport{{WindowRows: 900 + i%100, ReorderRows: i % 900}}
		h.Take(&report)
	}
	day := 0
	for i := range 30 * 86400 {
		if second(i); i == 86400 {
			day = size(b, h)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		second(i)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1024, "KiB")
	b.ReportMetric(float64(day)/1024, "KiB/page-day")
	b.ReportMetric(float64(size(b, h))/1024, "KiB/page-month")
}

// size returns the bytes that a page receives.
func size(b *testing.B, h *History) int {
	b.Helper()
	text := stagetest.Value(json.Marshal(h.Columns()))(b)
	return len(text)
}
