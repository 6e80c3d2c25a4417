package consumer

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/recorder"
)

func TestAGateHoldsRowsWhileTheWindowIsFull(t *testing.T) {
	var g gate
	first, second := new(Row), new(Row)
	first.leads.Store(true)
	for _, step := range []struct {
		what string
		shut bool
		more bool // than the step before
	}{
		{"open at first", false, false},
		{"shut", true, false},
		{"still shut", true, false},
		{"room", false, true},
		{"still room", false, false},
	} {
		if more := g.set(step.shut, false, false); more != step.more {
			t.Errorf("%s: more rows may begin: %v, want %v", step.what, more, step.more)
		}
		if !g.admits(first) {
			t.Errorf("%s: the row that waits for no other is held", step.what)
		}
		if g.admits(second) == step.shut {
			t.Errorf("%s: another row may begin: %v", step.what, step.shut)
		}
	}
}

func TestARowThatIsNotWantedNeverWaitsForRoom(t *testing.T) {
	row := &Row{Seq: 2, shared: &shared{gate: new(gate), storable: new(storable), recorder: new(recorder.Recorder), pulse: newPulse(time.Now(), time.Hour)}}
	row.shared.gate.set(true, false, false)
	if !row.MayBegin() {
		t.Error("held, and so would never be handed back")
	}
	if row.wanted.Store(true); row.MayBegin() {
		t.Error("may begin though there is no room")
	}
}

func TestAKeyWhoseRepliesWaitHoldsUpItselfAlone(t *testing.T) {
	var g gate
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
		g.set(c.shut, c.stuck, c.heavy)
		for row, want := range map[*Row]bool{first: c.first, hot: c.hot, other: c.other} {
			if got := g.admits(row); got != want {
				t.Errorf("%s: row %d of key %q may begin: %v, want %v", c.what, row.Seq, row.Key, got, want)
			}
		}
	}
	g.set(false, false, true)
	if more := g.setWaiting("hot", false); !more {
		t.Error("rows of the key may begin, and nobody is told")
	}
	if more := g.set(false, false, false); !more {
		t.Error("all rows may begin, and nobody is told")
	}
}
