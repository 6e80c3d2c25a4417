//go:build !race

// A world is one goroutine: the race detector would only make it ten times slower.

package fleet

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
)

func TestSettings(t *testing.T) {
	law := aimd.DefaultAdaptive(1)
	for _, cfg := range []Config{{Law: law}, {ID: "a", Law: law, Weight: 0.001}, {ID: "a", Law: law, Weight: 101}, {ID: "a", Law: law, Weight: -1}, {ID: "a"}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// steady checks that the members use what the server allows, fairly and with few refusals, under one leader.
func (w *world) steady(sec, least, waste float64) {
	w.t.Helper()
	used, wasted := w.used(sec)
	if used < least {
		w.t.Errorf("utilisation %.3f, want %v", used, least)
	}
	if wasted > waste {
		w.t.Errorf("waste %.3f, want at most %v", wasted, waste)
	}
	if leaders, alone := w.leaders(); leaders != 1 || alone != 0 {
		w.t.Errorf("%d lead and %d are alone, want one leader", leaders, alone)
	}
}

// used runs the world for some seconds, and returns the share of what the server offers that is used, and the share of
// attempts that are refused.
func (w *world) used(sec float64) (used, wasted float64) {
	w.count()
	w.run(sec)
	offered := 0.0
	for at := w.now - sec; at < w.now; at += 0.01 {
		offered += 0.01 * w.rate(at)
	}
	return float64(w.accepted) / offered, float64(w.refused) / float64(w.sent)
}

// Messages that are lost cost efficiency only.
func TestAFleetUsesWhatTheServerAllows(t *testing.T) {
	for _, c := range []struct {
		members           int
		rate, burst, loss float64
	}{{1, 20, 5, 0}, {4, 20, 5, 0}, {16, 20, 5, 0}, {64, 200, 10, 0}, {16, 40, 5, 0.05}} {
		w := newWorld(t, 1, c.members, c.rate, c.burst)
		w.loss = c.loss
		w.run(20)
		w.steady(30, 0.93-c.loss/5, 0.05+c.loss/5)
		if j := w.jain(); j < 0.99 {
			t.Errorf("Jain's index of %d members is %.3f", c.members, j)
		}
		if perSec := float64(w.messages) / 30 / float64(c.members); c.members >= 16 && c.loss == 0 && perSec > 2.1 {
			t.Errorf("%.2f messages a second and member of %d, want 2", perSec, c.members)
		}
	}
}

// Whoever is asked says what the leader believes, once it is in the plan.
func TestAllMembersBelieveWhatTheLeaderBelieves(t *testing.T) {
	w := newWorld(t, 1, 4, 20, 5)
	if b := w.members[0].Stats().Belief; b != (aimd.Belief{Measured: true, Shared: true}) {
		t.Errorf("at first: %+v", b)
	}
	w.run(30)
	for _, n := range w.members {
		b := n.Stats().Belief
		if !b.Shared || b.Limit < 18 || b.Limit > 22 || b.Low > b.Limit || b.High < b.Limit {
			t.Errorf("%s believes %+v", n.cfg.ID, b)
		}
		if age := n.at(w.now).Sub(b.Met); age < 0 || age > 15*time.Second {
			t.Errorf("%s believes that the limit was met %v ago", n.cfg.ID, age)
		}
	}
	// A leader of an earlier version says less.
	n := w.members[0]
	n.view.plan.Belief, n.view.plan.Estimate = nil, 19.5
	if b := n.Stats().Belief; b != (aimd.Belief{Measured: true, Shared: true, Limit: 19.5}) {
		t.Errorf("without a belief in the plan: %+v", b)
	}
}

func TestSharesFollowWeights(t *testing.T) {
	w := newWorld(t, 3, 0, 40, 5)
	for _, weight := range []float64{1, 1, 2, 4} {
		w.join(Config{Weight: weight})
	}
	w.run(15)
	w.steady(40, 0.93, 0.05)
	for i, want := range []float64{0.125, 0.125, 0.25, 0.5} {
		if got := float64(w.members[i].accepted) / float64(w.accepted); got < want*0.9 || got > want*1.1 {
			t.Errorf("member %d has %.3f of all calls, want %v", i, got, want)
		}
	}
}

// What one does not use the others have within a second, and it has its part again within a second.
func TestSharesFollowDemand(t *testing.T) {
	w := newWorld(t, 4, 4, 40, 5)
	busy := true
	w.members[1].demand = func(float64) bool { return busy }
	w.run(20)
	busy = false
	w.run(1)
	w.steady(10, 0.93, 0.06)
	busy = true
	w.run(1)
	w.count()
	w.run(10)
	if got := w.members[1].accepted; got < 85 {
		t.Errorf("the member that has work again made %d calls in 10 s, want about 100", got)
	}
}

func TestOneWithLittleToDo(t *testing.T) {
	w := newWorld(t, 5, 3, 30, 5)
	one := w.members[0]
	one.demand = func(now float64) bool { return float64(one.sent) < now } // a call each second
	w.run(20)
	w.steady(30, 0.93, 0.06)
	if got := w.members[0].accepted; got < 25 {
		t.Errorf("the member with 30 calls to make made %d", got)
	}
}

func (w *world) leader() *node {
	w.t.Helper()
	for _, n := range w.members {
		if !n.off && n.State().Mode == Lead {
			return n
		}
	}
	w.t.Fatal("nobody leads")
	return nil
}

func seeds() uint64 {
	if testing.Short() {
		return 1
	}
	return 3
}

// A leader that is gone without a word is replaced within 2 s, and meanwhile the others go on.
func TestALeaderThatDies(t *testing.T) {
	accepted, deaths := 0, 0
	for seed := range seeds() {
		w := newWorld(t, seed, 16, 40, 5)
		w.run(20)
		for range 3 {
			w.leader().off = true
			w.count()
			w.run(2)
			if leaders, alone := w.leaders(); leaders != 1 || alone != 0 {
				t.Errorf("seed %d: 2 s after the leader died %d lead and %d are alone", seed, leaders, alone)
			}
			accepted += w.accepted
			deaths++
			w.run(3)
			w.steady(10, 0.93, 0.06)
		}
	}
	if used := float64(accepted) / float64(80*deaths); used < 0.9*15/16 {
		t.Errorf("utilisation %.3f in the 2 s after a leader died, want .9 of what the others have", used)
	}
}

// Two halves that cannot hear each other have a leader each, and one when they can again, within 2 s.
func TestAPartition(t *testing.T) {
	for seed := range seeds() {
		w := newWorld(t, seed, 16, 40, 5)
		w.run(20)
		w.split = 8
		w.run(5)
		if leaders, _ := w.leaders(); leaders != 2 {
			t.Fatalf("seed %d: %d lead in two halves", seed, leaders)
		}
		w.count()
		w.run(40)
		if used, waste := float64(w.accepted)/1600, float64(w.refused)/float64(w.sent); used < 0.9 || waste > 0.2 {
			t.Errorf("seed %d: apart, utilisation is %.3f and waste %.3f", seed, used, waste)
		}
		w.split = 0
		w.run(2)
		if leaders, alone := w.leaders(); leaders != 1 || alone != 0 {
			t.Errorf("seed %d: 2 s after the partition %d lead and %d are alone", seed, leaders, alone)
		}
		w.run(3)
		w.steady(20, 0.93, 0.06)
	}
}

// A member that is suspended finds its turns void when it wakes up.
func TestASuspendedMember(t *testing.T) {
	for _, sec := range []float64{1, 3, 30} {
		w := newWorld(t, 6, 8, 40, 5)
		w.run(20)
		for _, n := range []*node{w.leader(), w.members[0], w.members[7]} {
			n.off = true
			w.run(sec)
			n.off = false
			w.count()
			w.run(1)
			if w.sent > 60 { // a probe has ten
				t.Errorf("in the second after %v s of sleep %d calls were sent, want 40, and at most 60", sec, w.sent)
			}
			w.run(4)
			w.steady(10, 0.92, 0.07)
		}
	}
}

// A member that was suspended while it was about to lead, as the leader had died, follows the one that took over
// meanwhile, though of two leaders of a term the one with its name would win.
func TestAMemberThatSleptListensBeforeItLeads(t *testing.T) {
	w := newWorld(t, 1, 8, 40, 5)
	w.run(10)
	dead, sleeper := w.leader(), w.members[0]
	if dead.off = true; sleeper == dead {
		sleeper = w.members[1]
	}
	for sleeper.election.answered == none {
		w.run(0.001)
	}
	sleeper.off = true
	w.run(5)
	leader, term := w.leader(), w.leader().State().Term
	sleeper.off = false
	w.run(2)
	if w.leader() != leader || leader.State().Term != term {
		t.Errorf("%s leads in term %d, want %s in term %d", w.leader().cfg.ID, w.leader().State().Term, leader.cfg.ID, term)
	}
}

// Without any message each goes on by its own law, at its last share, and none sends more than the rest leave it.
func TestNoMessages(t *testing.T) {
	w := newWorld(t, 8, 8, 40, 5)
	w.run(20)
	w.dead = true
	w.run(2.2)
	if _, alone := w.leaders(); alone != 8 {
		t.Errorf("%d of 8 are alone", alone)
	}
	w.count()
	w.run(40)
	if used, waste := float64(w.accepted)/1600, float64(w.refused)/float64(w.sent); used < 0.85 || waste > 0.1 {
		t.Errorf("utilisation is %.3f and waste %.3f", used, waste)
	}
	w.dead = false
	w.run(2)
	w.steady(20, 0.92, 0.06)
}

// Members that begin without any connection begin, too, and find each other when there is one.
func TestNeverAMessage(t *testing.T) {
	w := newWorld(t, 1, 4, 40, 5)
	w.dead = true
	w.run(3)
	if w.accepted < 20 {
		t.Errorf("%d calls in the first 3 s", w.accepted)
	}
	w.run(30)
	w.dead = false
	w.run(6)
	w.steady(20, 0.92, 0.06)
}

func TestJoinsAndLeaves(t *testing.T) {
	w := newWorld(t, 9, 8, 40, 5)
	w.run(20)
	for range 8 {
		w.join(Config{})
	}
	w.run(2)
	w.steady(15, 0.92, 0.06)
	for _, n := range w.members[:8] {
		w.post(n, n.Leave(n.at(w.now)))
		n.off = true
	}
	w.run(2.7)
	if got := w.leader().State().Members; got != 8 {
		t.Errorf("%d members after half have left, and the leader with them", got)
	}
	w.steady(15, 0.92, 0.06)
}

// Places are sent when they change, and not again to all: who missed them asks.
func TestAPlanThatGotLostIsAskedFor(t *testing.T) {
	w := newWorld(t, 10, 4, 40, 5)
	w.run(20)
	missed := w.members[2]
	if w.leader() == missed {
		missed = w.members[3]
	}
	missed.view.ring, missed.view.place = 1, nil // as if it had not heard the last ones
	w.run(1)
	if plan := w.leader().view.plan; missed.view.ring != plan.Ring || missed.view.place == nil {
		t.Errorf("the member has the places of version %d, the leader of %d", missed.view.ring, plan.Ring)
	}
}

// One that hears the plans but is not heard, as it may not publish, has no place in them. It goes by its own law.
func TestAMemberThatNobodyHearsIsAlone(t *testing.T) {
	w := newWorld(t, 1, 4, 50, 5)
	w.members[3].mute = true
	w.run(5)
	w.count()
	w.run(10)
	mute := w.members[3]
	if mode := mute.State().Mode; mode != Alone || mute.accepted < 20 {
		t.Errorf("it is %s, with %d calls in 10 s", mode, mute.accepted)
	}
	mute.mute = false
	w.run(2)
	leaders, alone := w.leaders()
	if leaders != 1 || alone != 0 {
		t.Errorf("heard, there are %d leaders and %d alone", leaders, alone)
	}
	w.members[1].mute, w.members[2].mute, mute.mute = true, true, true
	w.count()
	w.run(10)
	for i, n := range w.members[1:] {
		if n.accepted < 20 {
			t.Errorf("member %d of those that are no longer heard makes %d calls in 10 s", i+1, n.accepted)
		}
	}
}

// A server that asks for a minute and is back after ten seconds is found by single calls, and few of them.
func TestAPauseIsTried(t *testing.T) {
	const servers = 4 // chance decides how soon the law finds the old rate again
	used, wasted := 0.0, 0.0
	for seed := range uint64(servers) {
		w := newWorld(t, 11+seed, 16, 40, 5)
		w.hint = aimd.Hint{RetryAfter: time.Minute}
		w.run(20)
		w.rate, w.level = func(now float64) float64 {
			if now < 30 {
				return 0
			}
			return 40
		}, 0
		w.count()
		w.run(3)
		if until := w.members[3].Stats().PausedUntil; until.IsZero() {
			t.Error("nobody pauses, though the server asks for it")
		}
		early := w.refused
		w.run(7)
		if early > 40 || w.refused-early > 8 {
			t.Errorf("%d calls were refused in the first 3 s of the outage, and %d in the other 7 s", early, w.refused-early)
		}
		w.run(9)
		if until := w.members[3].Stats().PausedUntil; !until.IsZero() {
			t.Error("9 s after the server is back all still wait")
		}
		u, r := w.used(15)
		used, wasted = used+u/servers, wasted+r/servers
	}
	if used < 0.9 || wasted > 0.06 {
		t.Errorf("after that %.3f of what the server offers is used, and %.3f of the calls are refused, want at least .9 and at most .06", used, wasted)
	}
}

// What a member says of itself as soon as it is one is what the plan says: it has a place, and is counted.
func TestAMemberIsOneOnceItHasAPlace(t *testing.T) {
	w := newWorld(t, 1, 3, 40, 5)
	w.run(5)
	w.join(Config{})
	late := w.members[3]
	for late.State().Mode != Follow && w.now < 10 {
		w.run(0.001)
	}
	if s := late.State(); s.Mode != Follow || s.Members != 4 || s.Share > 0.5 {
		t.Errorf("it begins with %+v, want a share of 4 members", s)
	}
}
