//go:build real

package real

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/test/throttle"
)

// TestTheThrottleDoesOverHTTPWhatTheSimulatorSays takes a job of three minutes through a server whose rate changes each
// minute, and the same job through the simulator.
func TestTheThrottleDoesOverHTTPWhatTheSimulatorSays(t *testing.T) {
	t.Parallel()
	const (
		fast, slow = 20.0, 5.0 // calls a second, for a minute each
		rows       = 2700      // what three minutes admit
	)
	sc := *throttle.Scenarios()[1]
	if sc.Name != "S2" {
		t.Fatalf("the second scenario is %s, want S2", sc.Name)
	}
	sc.Rows, sc.Refusal = rows, time.Millisecond // the mock refuses at once
	var runs []throttle.Figures
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(10) {
			runs = append(runs, throttle.Run(t.Context(), &sc, throttle.Adaptive, seed))
		}
	})
	simulated := throttle.Mean(runs)

	began := time.Now()
	addr := mock(t, "--schedule", "20:60s,5:60s", "--burst", "5", "--latency", "1.2s", "--latency-sigma", "0.3")
	r := process(t, rows, map[string]string{
		"STAGE_LLM_PROVIDER": "mock", "STAGE_LLM_BASE_URL": "http://" + addr + "/v1", "STAGE_POOL_SIZE": "32",
	})
	r.inOrder(t, rows)
	first, last, rejected := r.arrivals(began)
	offered := 0.0
	for minute := range int(last/60) + 1 {
		from, to := max(first, 60*float64(minute)), min(last, 60*float64(minute+1))
		offered += max(to-from, 0) * []float64{fast, slow}[minute%2]
	}
	utilisation, waste := rows/offered, float64(rejected)/float64(len(r.calls))
	t.Logf("over HTTP: utilisation %.3f, waste %.1f%%; simulated: %.3f, %.1f%%; %d rows in %.0f s\n%s",
		utilisation, 100*waste, simulated.Utilisation, 100*simulated.Waste, rows, r.took.Seconds(), r.summary)
	// The machine's load costs some. A throttle that did not work would show a utilisation of 0.05, and calls that are
	// not paced a waste of 30%.
	if utilisation < 0.9*simulated.Utilisation {
		t.Errorf("utilisation is %.3f, the simulator says %.3f", utilisation, simulated.Utilisation)
	}
	if waste > 2*simulated.Waste {
		t.Errorf("%.1f%% of the calls were rejected, the simulator says %.1f%%", 100*waste, 100*simulated.Waste)
	}
}

// arrivals returns when the first call began and the last that was admitted, in seconds, and how many were rejected.
func (r *run) arrivals(since time.Time) (first, last float64, rejected int) {
	var admitted []float64
	for _, c := range r.calls {
		if c.Status == auditlog.CallCapacityRetry {
			rejected++
			continue
		}
		admitted = append(admitted, c.Time.Add(-c.Latency).Sub(since).Seconds())
	}
	slices.Sort(admitted)
	return admitted[0], admitted[len(admitted)-1], rejected
}
