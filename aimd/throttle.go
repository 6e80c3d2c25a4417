package aimd

import (
	"sync"
	"time"
)

// A Throttle is a delay that capacity errors multiply and successes shorten by a step. It starts at 0 and, once it
// has risen, stays between Config.MinDelay and Config.MaxDelay.
//
// It decides how long to wait between dispatches and leaves the waiting to its caller. It is safe for concurrent
// use, so that calls may report to it from their own goroutines.
type Throttle struct {
	cfg Config

	mu    sync.Mutex // held for a few instructions, never while anything waits
	stats Stats      // CurrentDelay is the state, the rest are counters
}

// NewThrottle returns a Throttle with a delay of 0, or the problems of cfg as [Config.Validate] reports them.
func NewThrottle(cfg Config) (*Throttle, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Throttle{cfg: cfg}, nil
}

// Delay returns the present delay between dispatches: 0 or within [Config.MinDelay, Config.MaxDelay].
func (t *Throttle) Delay() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats.CurrentDelay
}

// CapacityError records that the server had no room. A delay of 0 becomes the recovery step, at least the floor; any
// other is multiplied. It never passes the ceiling.
func (t *Throttle) CapacityError() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.CapacityRetries++
	if t.stats.CurrentDelay == 0 {
		t.set(min(max(t.cfg.RecoveryStep, t.cfg.MinDelay), t.cfg.MaxDelay))
		return
	}
	// Compared as floats, as a product beyond the range of a Duration must not wrap.
	longer := float64(t.stats.CurrentDelay) * t.cfg.Multiplier
	if longer >= float64(t.cfg.MaxDelay) {
		t.set(t.cfg.MaxDelay)
		return
	}
	t.set(time.Duration(longer))
}

// Success records that the server took the call. The delay falls by the recovery step, down to the floor.
func (t *Throttle) Success() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Successes++
	t.set(max(t.stats.CurrentDelay-t.cfg.RecoveryStep, t.cfg.MinDelay))
}

// Restart sets the delay to 0, as at first. The counters and the peak stay.
func (t *Throttle) Restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(0)
}

// set is called with mu held.
func (t *Throttle) set(delay time.Duration) {
	t.stats.CurrentDelay = delay
	t.stats.PeakDelay = max(t.stats.PeakDelay, delay)
}

// Stats returns the counters and the delay as of now.
func (t *Throttle) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

// ResetStats clears the counters and sets the peak to the present delay. The delay itself stays.
func (t *Throttle) ResetStats() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats = Stats{PeakDelay: t.stats.CurrentDelay, CurrentDelay: t.stats.CurrentDelay}
}
