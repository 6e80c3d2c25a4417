package pool

import (
	"testing"
	"time"
)

// The example of the type's comment, and a second pause.
func TestADeadlineStandsStillInAPause(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	after := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }

	var c clock
	deadline := c.running(noon).Add(30 * time.Second)
	if got := c.due(deadline); got != after(30) {
		t.Errorf("before any pause the deadline is due %v, want 12:00:30", got)
	}

	c.stop(after(20))
	if got := c.due(deadline); !got.IsZero() {
		t.Errorf("in a pause the deadline is due %v, want never", got)
	}
	if c.past(after(600), deadline) {
		t.Error("the deadline passes in a pause")
	}
	inPause := c.running(after(600)).Add(30 * time.Second) // of a job that starts as a probe

	c.start(after(620))
	for _, d := range []struct {
		name     string
		deadline time.Time
		due      int
	}{{"one from before", deadline, 630}, {"one made in the pause", inPause, 650}} {
		if got := c.due(d.deadline); got != after(d.due) {
			t.Errorf("%s is due %v, want %v", d.name, got, after(d.due))
		}
		if c.past(after(d.due-1), d.deadline) || !c.past(after(d.due), d.deadline) {
			t.Errorf("%s does not pass at %v", d.name, after(d.due))
		}
	}

	c.stop(after(625))
	c.start(after(635))
	if got := c.due(deadline); got != after(640) {
		t.Errorf("after a second pause, of 10 s, the deadline is due %v, want 12:10:40", got)
	}
	if c.past(after(9999), time.Time{}) {
		t.Error("a job without a deadline is past it")
	}
}
