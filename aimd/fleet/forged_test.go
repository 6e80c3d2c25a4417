//go:build !race

// A world is one goroutine: the race detector would only make it ten times slower.

package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"testing"
)

// forge returns a message with other values.
func forge(tb testing.TB, m any, values map[string]any) []byte {
	tb.Helper()
	fields := make(map[string]any)
	if err := json.Unmarshal(encode(m), &fields); err != nil {
		tb.Fatal(err)
	}
	maps.Copy(fields, values)
	return encode(fields)
}

// steps are the curve of a plan with one rate.
func steps(rate float64) []float64 {
	curve := make([]float64, curveSteps)
	for i := range curve {
		curve[i] = rate * curveStep * float64(i+1)
	}
	return curve
}

// fooled is how many members hear the forgeries.
const fooled = 4

// forgeries are values of plans and reports that are within bounds and untrue. A leader that is named leads nobody, and
// its term grows with each plan.
var forgeries = map[string]struct{ plan, report map[string]any }{
	"a copy":                   {plan: map[string]any{}},
	"a late number":            {plan: map[string]any{"seq": uint64(math.MaxUint64)}},
	"many turns":               {plan: map[string]any{"leader": "0", "turns": turnsMost}},
	"many turns and places":    {plan: map[string]any{"leader": "0", "turns": turnsMost, "ring": 77, "places": everywhere(fooled)}},
	"many turns of the leader": {plan: map[string]any{"turns": turnsMost}},
	"many turns, once":         {plan: map[string]any{"turns": turnsMost, "seq": "next"}},
	"places of the leader":     {plan: map[string]any{"turns": 1e14, "ring": 77, "places": everywhere(fooled)}},
	"no turns":                 {plan: map[string]any{"leader": "0", "turns": 0, "then": 0, "curve": steps(0), "rate": 0, "estimate": 0}},
	"fast":                     {plan: map[string]any{"leader": "0", "then": 1e5, "curve": steps(1e5), "rate": 1e5, "estimate": 1e5}},
	"fast, of the leader":      {plan: map[string]any{"then": 1e5, "curve": steps(1e5), "rate": 1e5, "estimate": 1e5}},
	"a pause":                  {plan: map[string]any{"leader": "0", "pause": 3600}},
	"the last term":            {plan: map[string]any{"leader": "0", "term": uint64(math.MaxUint64)}},
	"old":                      {plan: map[string]any{"leader": "0", "sent": -1e12}},
	"of the future":            {plan: map[string]any{"leader": "0", "sent": 1e12}},
	"old, of the leader":       {plan: map[string]any{"sent": -1e12}},
	"the leader's future":      {plan: map[string]any{"sent": 1e12}},
	"no places":                {plan: map[string]any{"leader": "0", "places": []place{}, "ring": 1 << 60}},
	"the leader leaves":        {plan: map[string]any{"bye": true}},
	"nobody leaves":            {plan: map[string]any{"leader": "0", "bye": true}},
	"slots":                    {plan: map[string]any{"leader": "0", "slots": true}},
	"another epoch":            {plan: map[string]any{"epoch": -1 << 40}},

	"a member leaves":   {report: map[string]any{"id": "m001", "bye": true}},
	"all leave":         {report: map[string]any{"id": "each", "bye": true}},
	"a restart":         {report: map[string]any{"id": "m001", "restart": true}},
	"greed":             {report: map[string]any{"id": "m001", "weight": 100, "want": rateMost, "hungry": true}},
	"a hundred members": {report: map[string]any{"id": "new", "want": rateMost, "hungry": true}},
	"one a minute":      {report: map[string]any{"id": "m001", "rpm": 1}},
	"one at a time":     {report: map[string]any{"id": "m001", "concurrency": 1}},
	"many calls":        {report: map[string]any{"id": "m001", "sent": uint64(math.MaxUint64), "accepted": uint64(math.MaxUint64), "refused": uint64(math.MaxUint64)}},
	"refusals":          {report: map[string]any{"id": "m001", "refusals": []refusal{{Turn: 1e15, Epoch: 1 << 40, Term: 1, RetryAfter: 1e9}}}},
	"a negative epoch":  {report: map[string]any{"id": "m001", "news": 1 << 40, "refusals": []refusal{{Turn: 1e15, Epoch: -1, Term: 1}}}},
}

// everywhere are places at which n members have every turn.
func everywhere(n int) []place {
	places := make([]place, n)
	for i := range places {
		places[i] = place{ID: fmt.Sprintf("m%03d", i), Share: 1, Offset: -1}
	}
	return places
}

// forged returns the i-th message of a kind, as from or to the leader.
func (w *world) forged(i int, plan, report map[string]any, leader *leader) []byte {
	w.t.Helper()
	if plan == nil {
		values := maps.Clone(report)
		switch values["id"] {
		case "each":
			values["id"] = w.members[i%len(w.members)].cfg.ID
		case "new":
			values["id"] = fmt.Sprintf("new%d", i)
		}
		r := leader.roster.members["m001"]
		if r == nil {
			r = &peer{}
		}
		r.Report, r.Weight = 1, max(r.Weight, weightLeast)
		values["seq"] = r.Seq + 1000
		return forge(w.t, r.report, values)
	}
	p := *leader.last
	p.Places, p.Seq = nil, p.Seq+1000
	values := maps.Clone(plan)
	if values["seq"] == "next" { // the leader's own plans soon have later numbers
		values["seq"] = p.Seq - 999
	}
	if _, ok := values["term"]; !ok && values["leader"] != nil {
		values["term"] = p.Term + 100 + uint64(i)
	}
	return forge(w.t, &p, values)
}

// Somebody publishes for ten seconds what the fleet should not believe. Whatever it is, no more than twice the limit is
// sent for longer than two seconds, and ten seconds later all is as it was.
func TestForgedMessagesAreForgotten(t *testing.T) {
	const limit = 50
	for name, values := range forgeries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, fooled, limit, 5)
			w.run(10)
			var last *leader // whose messages are forged
			early := 0
			for i := range 100 {
				for _, n := range w.members {
					if n.lead != nil {
						last = n.lead
					}
				}
				body := w.forged(i, values.plan, values.report, last)
				for _, n := range w.members {
					w.hear(n, body)
				}
				if i == 20 {
					early = w.sent
				}
				w.run(0.1)
			}
			if sent := w.sent - early; sent > 2*8*limit+limit { // a second's for finding out
				t.Errorf("%d calls in 8 s, the server takes %d", sent, 8*limit)
			}
			w.run(10)
			w.count()
			w.run(10)
			leaders, alone := w.leaders()
			used := float64(w.accepted) / (10 * limit)
			if used < 0.9 || leaders != 1 || alone != 0 || w.jain() < 0.95 {
				t.Errorf("utilisation %.3f, Jain's index %.3f, %d leaders, %d alone", used, w.jain(), leaders, alone)
			}
		})
	}
}

func TestAMemberDoubtsAPlanUnderWhichItIsRefused(t *testing.T) {
	var g guard
	at := 0.0
	step := func(n int, accepted bool) {
		for range n {
			at += 0.01
			g.verdict(at, accepted)
		}
	}
	step(9, false)
	if wait := g.wait(at); wait != 0 {
		t.Errorf("after 9 refusals the next call waits for %.2f s, want 0", wait)
	}
	step(1, false)
	if wait := g.wait(at); wait != trialSec {
		t.Errorf("after 10 refusals the next call waits for %.2f s, want %v", wait, trialSec)
	}
	step(9, true)
	if wait := g.wait(at); wait < 0.05 || wait > 0.15 {
		t.Errorf("with 9 accepted in 1.2 s the next call waits for %.2f s", wait)
	}
	at += 60
	if wait := g.wait(at); wait != trialSec {
		t.Errorf("a minute later the next call waits for %.2f s, want %v", wait, trialSec)
	}
	step(1, true)
	if wait := g.wait(at); wait != 0 {
		t.Errorf("when the server accepts calls again the next one waits for %.2f s, want 0", wait)
	}
}

// One message must not stop all calls for as long as it says.
func TestAForgedPauseIsShort(t *testing.T) {
	w := newWorld(t, 1, 3, 40, 5)
	w.run(10)
	leader := w.leader()
	body := w.forged(0, nil, map[string]any{"id": "m001", "news": 1 << 40, "refusals": []refusal{{Turn: 1e15, Epoch: 1 << 40, Term: leader.lead.term, Reset: 1e6}}}, leader.lead)
	w.hear(leader, body)
	w.run(5)
	w.count()
	w.run(60)
	if w.accepted == 0 {
		t.Error("no call within a minute")
	}
	w.run(10)
	w.steady(10, 0.9, 0.07)
}

// A leader that was suspended for hours does not count the turns of these hours when it hears of the next one.
func TestALeaderThatHasSleptForHours(t *testing.T) {
	w := newWorld(t, 1, 3, 40, 5)
	w.run(10)
	slept := w.leader()
	slept.off = true
	w.run(5)
	next := w.leader()
	if next == slept {
		t.Fatal("the leader was not replaced")
	}
	counted := slept.lead.law.turn
	lead := slept.lead
	body := encode(next.lead.plan(next.at(w.now), w.now, true))
	if err := slept.Hear(slept.at(w.now+24*3600), body); err != nil {
		t.Fatal(err)
	}
	if slept.Leads() || lead.law.turn != counted {
		t.Errorf("it leads: %v, and has counted %d turns of its sleep", slept.Leads(), lead.law.turn-counted)
	}
}
