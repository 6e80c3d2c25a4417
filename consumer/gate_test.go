package consumer

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/recorder"
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
		if !g.admits(&Row{Seq: step.admitted}) {
			t.Errorf("%s: row %d is held", step.what, step.admitted)
		}
		if step.held > 0 && g.admits(&Row{Seq: step.held}) {
			t.Errorf("%s: row %d may begin", step.what, step.held)
		}
	}
}

func TestARowThatIsNotWantedNeverWaitsForRoom(t *testing.T) {
	row := &Row{Seq: 2, gate: new(gate), storable: new(storable), recorder: new(recorder.Recorder), pulse: newPulse(time.Now(), time.Hour)}
	row.gate.set(true, 1)
	if !row.MayBegin() {
		t.Error("held, and so would never be handed back")
	}
	if row.wanted.Store(true); row.MayBegin() {
		t.Error("may begin though there is no room")
	}
}

func TestAKeyWhoseRepliesWaitHoldsUpItselfAlone(t *testing.T) {
	var g gate
	g.set(false, 1)
	g.setWaiting("hot", true)
	first, hot, other := &Row{Seq: 2, Key: "slow"}, &Row{Seq: 3, Key: "hot"}, &Row{Seq: 4, Key: "other"}
	first.leads.Store(true)
	for _, c := range []struct {
		what               string
		shut, stuck, heavy bool
		first, hot, other  bool
	}{
		{"room", false, false, false, true, true, true},
		{"half is replies that wait", false, false, true, true, false, true},
		{"and no room is left", true, false, true, true, false, false},
		{"nothing leaves", true, true, true, false, false, false},
	} {
		g.set(c.shut, 1)
		g.setKeyed(c.stuck, c.heavy)
		for row, want := range map[*Row]bool{first: c.first, hot: c.hot, other: c.other, {Seq: 1}: true} {
			if got := g.admits(row); got != want {
				t.Errorf("%s: row %d of key %q may begin: %v, want %v", c.what, row.Seq, row.Key, got, want)
			}
		}
	}
	g.setKeyed(false, true)
	if more := g.setWaiting("hot", false); !more {
		t.Error("rows of the key may begin, and nobody is told")
	}
	if more := g.setKeyed(false, false); !more {
		t.Error("all rows may begin, and nobody is told")
	}
}
