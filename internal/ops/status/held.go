package status

import (
	"sync"
	"time"
)

// Held remembers since when a stage is held, as its reports say. The zero value knows of
// none. Safe for concurrent use.
type Held struct {
	mu    sync.Mutex
	since time.Time // zero: it was not when it was last reported
}

// Note fills in since when the stage is held, if it is. A stage that nobody asks for its
// report knows only since when it was held as one was made.
func (h *Held) Note(r *Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case r.State != StateHeld:
		h.since = time.Time{}
		return
	case h.since.IsZero():
		h.since = r.Time
	}
	r.Since = instant(h.since)
}
