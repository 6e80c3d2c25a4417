package consumer

import (
	"testing"
	"time"
)

func TestAGateHoldsRowsWhileTheWindowIsFull(t *testing.T) {
	var g gate
	for _, step := range []struct {
		what     string
		shut     bool
		first    uint64
		more     bool // than the step before
		admitted uint64
		held     uint64 // 0: none
	}{
		{"open at first", false, 1, false, 50, 0},
		{"shut", true, 1, false, 1, 2},
		{"still shut", true, 1, false, 1, 2},
		{"the first one is answered", true, 7, true, 7, 8},
		{"room", false, 7, true, 50, 0},
		{"still room", false, 9, false, 50, 0},
	} {
		if more := g.set(step.shut, step.first); more != step.more {
			t.Errorf("%s: more rows may begin: %v, want %v", step.what, more, step.more)
		}
		if !g.admits(step.admitted) {
			t.Errorf("%s: row %d is held", step.what, step.admitted)
		}
		if step.held > 0 && g.admits(step.held) {
			t.Errorf("%s: row %d may begin", step.what, step.held)
		}
	}
}

func TestARowThatIsNotWantedNeverWaitsForRoom(t *testing.T) {
	row := &Row{Seq: 2, gate: new(gate), pulse: newPulse(time.Now(), time.Hour)}
	row.gate.set(true, 1)
	if !row.MayBegin() {
		t.Error("held, and so would never be handed back")
	}
	if row.wanted.Store(true); row.MayBegin() {
		t.Error("may begin though there is no room")
	}
}
