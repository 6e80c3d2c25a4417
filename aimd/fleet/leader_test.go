//go:build !race

// A world is one goroutine: the race detector would only make it ten times slower.

package fleet

import (
	"testing"
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
	news := refusal{Turn: float64(lead.turn), Epoch: lead.epoch, Term: lead.term}
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
