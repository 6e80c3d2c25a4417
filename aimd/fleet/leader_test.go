//go:build !race

// A world is one goroutine: the race detector would only make it ten times slower.

package fleet

import (
	"fmt"
	"testing"

	"github.com/llm-stage/stage/aimd"
)

// Where the pools are the limit the rate stays within what they use: a first refusal would take a dozen halvings.
func TestTheRateStaysWithinItsUse(t *testing.T) {
	w := newWorld(t, 1, 4, 1e9, 1e9) // a server without a limit, and pools that make about 100 calls a second
	w.run(30)
	w.count()
	w.run(5)
	if rate, used := w.leader().State().Rate, float64(w.sent)/5; used < 70 || rate > 5*used {
		t.Errorf("the rate is %.0f/s, of which %.0f are used", rate, used)
	}
}

// A server that is back from an outage may allow less than before. The probe by which a member finds that out is
// accepted, and so comes with the same report.
func TestTheCommonLawRestartsOnceIfNobodyWasServed(t *testing.T) {
	w := newWorld(t, 1, 3, 20, 5)
	busy := true
	for _, n := range w.members {
		n.demand = func(float64) bool { return busy }
	}
	w.run(10)
	lead := w.leader().lead
	back := func(n *node) {
		now := n.at(w.now)
		n.Accepted(now, n.Sent(now, 1))
		n.Restart(now)
		w.run(0.2)
	}
	epoch := lead.law.Epoch()
	back(w.members[0])
	if lead.law.Epoch() != epoch {
		t.Error("it restarted though other members were served")
	}
	busy = false
	w.run(6)
	epoch = lead.law.Epoch()
	back(w.members[0])
	if lead.law.Epoch() == epoch || lead.law.Phase() != aimd.Start {
		t.Errorf("epoch %d as before, phase %v; want a start, as nobody was served for 6 s", epoch, lead.law.Phase())
	}
	epoch = lead.law.Epoch()
	back(w.members[1])
	if lead.law.Epoch() != epoch {
		t.Error("it restarted once more when the next member found the server back")
	}
}

// What a report says that was doubled, or overtaken by a later one, is known already: to count it would count what the
// later one said twice.
func TestAnOldReportIsNoNews(t *testing.T) {
	w := newWorld(t, 1, 2, 20, 5)
	w.run(1)
	lead := w.leader().lead
	before := lead.use.sum.sent
	for _, r := range []report{{Seq: 1, Sent: 100}, {Seq: 2, Sent: 110}, {Seq: 3, Sent: 120}, {Seq: 2, Sent: 110}, {Seq: 3, Sent: 120}, {Seq: 4, Sent: 125}} {
		r.ID, r.Weight = "other", 1
		lead.hear(w.leader().at(w.now), &r)
	}
	if got := lead.use.sum.sent - before; got != 25 {
		t.Errorf("%d calls are counted, want the 25 since the first report", got)
	}
}

// Whoever sends reports of ever new members fills no memory, and a member that leaves before it was known is not taken
// for one.
func TestTheMembersAreBounded(t *testing.T) {
	w := newWorld(t, 1, 1, 20, 5)
	w.run(1)
	lead := w.leader().lead
	now := w.leader().at(w.now)
	lead.hear(now, &report{ID: "leaves", Seq: 1, Weight: 1, Bye: true})
	if lead.roster.members["leaves"] != nil {
		t.Error("one that has left is a member")
	}
	for i := range int(membersMax) {
		lead.roster.members[fmt.Sprint(i)] = nil
	}
	known := len(lead.roster.members)
	lead.hear(now, &report{ID: "one more", Seq: 1, Weight: 1})
	if got := len(lead.roster.members); got != known {
		t.Errorf("%d members, want no more than %d", got, known)
	}
}

// A refusal whose report was lost comes with the next one, and counts once if both arrive.
func TestARefusalIsReportedTwice(t *testing.T) {
	w := newWorld(t, 1, 2, 20, 5)
	w.run(10)
	lead := w.leader().lead
	r := report{Report: 1, ID: "other", Seq: 1, Weight: 1}
	now := w.leader().at(w.now)
	lead.hear(now, &r)
	refused := func() uint64 { return lead.law.Stats().CapacityRetries }
	before := refused()
	news := refusal{Turn: float64(lead.law.turn), Epoch: lead.law.epoch, Term: lead.term}
	for i, step := range []struct {
		refusals []refusal
		news     uint64
		want     uint64
	}{
		{[]refusal{news}, 1, 1},
		{[]refusal{news, news}, 2, 2},       // the first for the second time
		{[]refusal{news, news, news}, 5, 5}, // the report between them was lost
		{[]refusal{news}, 5, 5},
		{nil, 5, 5},
	} {
		r.Seq++
		r.Refusals, r.News = step.refusals, step.news
		lead.hear(now, &r)
		if got := refused() - before; got != step.want {
			t.Errorf("after report %d the law knows of %d refusals, want %d", i+1, got, step.want)
		}
	}
}
