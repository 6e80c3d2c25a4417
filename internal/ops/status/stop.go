package status

import (
	"fmt"
	"strings"
	"time"
)

// StopReport is what a stage that stops waits for.
type StopReport struct {
	Since   time.Time `json:"since"`
	By      time.Time `json:"by"`      // it waits no longer than that
	Calls   int       `json:"calls"`   // in flight
	Results int       `json:"results"` // answered and not stored yet
}

// Text describes what the stop waits for, as in "waiting for 3 calls in flight and 1 result
// to store, at most 2m30s".
func (r *StopReport) Text(now time.Time) string {
	var parts []string
	add := func(n int, noun, rest string) {
		if n > 1 {
			noun += "s"
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s %s", n, noun, rest))
		}
	}
	add(r.Calls, "call", "in flight")
	add(r.Results, "result", "to store")
	if parts == nil {
		parts = []string{"the last events to be stored"}
	}
	text := "waiting for " + strings.Join(parts, " and ")
	if left := r.By.Sub(now).Round(time.Second); left > 0 {
		text += ", at most " + left.String()
	}
	return text
}
