package replicas

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// of returns the summary of a replica that owns partitions by claims.
func of(id string, claims map[int]uint64) Summary {
	s := Summary{Format: Format, Stage: "s", PartitionCount: 4, Facts: Facts{
		Replica: id, Host: "host-" + id, State: status.StateWorking, Ready: true, Rows: Rows{Succeeded: 10, PerSecond: 2},
		Pool: Pool{Size: 4, InFlight: 3}, Usage: status.UsageReport{Calls: 12, KnownCostUSD: .5},
	}}
	for p := range 4 {
		if claim, owns := claims[p]; owns {
			s.Partitions = append(s.Partitions, Partition{Partition: p, Role: "owner", Claim: claim, PendingRows: 7, OpenRows: 2})
		}
	}
	return s
}

// gathered are answers, the first one that of the replica that asks.
func gathered(t *testing.T, summaries ...Summary) Gathered {
	t.Helper()
	g := Gathered{Stage: "s", Own: &summaries[0]}
	for _, s := range summaries[1:] {
		body := stagetest.Value(json.Marshal(&s))(t)
		g.answers = append(g.answers, body)
	}
	return g
}

// brief writes who is there and who owns what.
func brief(w *Whole) string {
	var b strings.Builder
	for _, r := range w.Replicas {
		fmt.Fprintf(&b, "%s %s %v; ", r.Replica, r.Status, r.Partitions)
	}
	for _, p := range w.Partitions {
		fmt.Fprintf(&b, "%d:%s%v ", p.Partition.Partition, p.Replica, p.Rivals)
	}
	return strings.TrimSpace(b.String())
}

func TestTheNewestClaimOwnsAPartitionAndWhatWaitsCountsOnce(t *testing.T) {
	a, b := of("a", map[int]uint64{0: 10, 1: 11}), of("b", map[int]uint64{1: 20, 2: 5})
	for _, order := range [][]Summary{{a, b}, {b, a}} {
		w := Merge(gathered(t, order...), nil, noon)
		if got, want := brief(&w), "a answers [0]; b answers [1 2]; 0:a[] 1:b[a] 2:b[] 3:[]"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if w.Rows.Pending != 21 || w.Rows.Open != 6 || w.Rows.Succeeded != 20 || w.Rows.PerSecond != 4 || w.Pool.InFlight != 6 || w.Usage.Calls != 24 || w.Usage.KnownCostUSD != 1 {
			t.Errorf("sums: %+v %+v %+v", w.Rows, w.Pool, w.Usage)
		}
		if w.Rows.ETAS == nil || *w.Rows.ETAS != 27./4 {
			t.Errorf("time left: %v", w.Rows.ETAS)
		}
	}
}

// "0 pending" beside a partition that nobody owns would say that nothing waits.
func TestRowsThatNobodyCountsAreNotSaidToBeNone(t *testing.T) {
	for _, tt := range []struct {
		claims map[int]uint64
		want   string
	}{
		{map[int]uint64{0: 5}, "10 succeeded, 0 failed, 2 open, 7 pending"},
		{nil, "10 succeeded, 0 failed\n"},
	} {
		w := Merge(gathered(t, of("a", tt.claims)), nil, noon)
		var b strings.Builder
		if err := w.WriteText(&b); err != nil || !strings.Contains(b.String(), tt.want) {
			t.Errorf("claims %v: %v, want %q in\n%s", tt.claims, err, tt.want, b.String())
		}
	}
}

// What the throttles believe is said once where they agree, and for the first few
// replicas where they don't.
func TestBeliefsOfThrottlesAreShown(t *testing.T) {
	for _, tt := range []struct {
		beliefs []string
		want    string
	}{
		{[]string{"limit about 20/s for all together", "limit about 20/s for all together"}, "\nthrottle  limit about 20/s for all together\nlatency"},
		{[]string{"no limit seen yet", "limit about 9.8/s (9.0-11)"}, "\nthrottle  a: no limit seen yet\n          b: limit about 9.8/s (9.0-11)\nlatency"},
		{[]string{"", ""}, " capacity retries\nlatency"},
		{[]string{"", "1", "2", "3", "4", "5", "6"}, "\n          e: 4\n          (and 2 more replicas: stage status -o json)\nlatency"},
	} {
		var all []Summary
		for i, belief := range tt.beliefs {
			s := of(string(rune('a'+i)), nil)
			s.Pool.Belief = belief
			all = append(all, s)
		}
		w := Merge(gathered(t, all...), nil, noon)
		var text strings.Builder
		if err := w.WriteText(&text); err != nil || !strings.Contains(text.String(), tt.want) {
			t.Errorf("%q: %v, want %q in\n%s", tt.beliefs, err, tt.want, text.String())
		}
	}
}

func TestAnAnswerThatCannotBeReadIsShown(t *testing.T) {
	g := gathered(t, of("a", nil), of("b", nil))
	g.answers = append(g.answers,
		[]byte("\x00garbage"), nil, []byte("null"), []byte("[]"), []byte(`{"format":2,"replica":"c","host":"h","partitions":"many"}`), []byte(`{"format":1,"stage":"other","replica":"d"}`),
		[]byte(`{"format":1,"stage":"s","replica":"e","partitions":[{"partition":-1,"role":"owner"},{"partition":4000000000,"role":"owner"}],"partition_count":-3}`),
		[]byte(`{"format":1,"stage":"s","replica":"f","partition_count":1000000000}`), g.answers[0])
	w := Merge(g, nil, noon)
	by := make(map[Status]int)
	for _, r := range w.Replicas {
		by[r.Status]++
		if r.Status == Unreadable && r.Note == "" {
			t.Errorf("nothing says why %+v can't be read", r)
		}
	}
	if by[Answers] != 4 || by[Unreadable] != 6 {
		t.Errorf("got %v of 4 that answer and 6 that can't be read: %s", by, brief(&w))
	}
	if len(w.Partitions) != partitionsMax {
		t.Errorf("%d partitions, want no more than there may be", len(w.Partitions))
	}
	var text strings.Builder
	if err := w.WriteText(&text); err != nil || !strings.Contains(text.String(), "another version") || strings.ContainsRune(text.String(), 0) {
		t.Errorf("error %v, text:\n%.3000s", err, text.String())
	}
}

func TestWhoFallsSilentIsMissingForAMinute(t *testing.T) {
	m := NewMemory()
	a, b, c, d := of("a", nil), of("b", nil), of("c", nil), of("d", nil)
	d.State = status.StateStopping
	Merge(gathered(t, a, b, c, d), m, noon)
	m.depart("c", noon)
	steps := []struct {
		after time.Duration
		g     Gathered
		want  string
	}{
		{2 * time.Second, gathered(t, a), "a answers []; b missing []; 0:[] 1:[] 2:[] 3:[]"},
		{30 * time.Second, Gathered{Stage: "s", Own: &a, Problem: "not connected to NATS"}, "a answers []; 0:[] 1:[] 2:[] 3:[]"},
		{59 * time.Second, gathered(t, a), "a answers []; b missing []; 0:[] 1:[] 2:[] 3:[]"},
		{61 * time.Second, gathered(t, a), "a answers []; 0:[] 1:[] 2:[] 3:[]"},
		{62 * time.Second, gathered(t, a, b), "a answers []; b answers []; 0:[] 1:[] 2:[] 3:[]"},
	}
	for _, s := range steps {
		w := Merge(s.g, m, noon.Add(s.after))
		if got := brief(&w); got != s.want {
			t.Errorf("after %v\ngot  %s\nwant %s", s.after, got, s.want)
		}
	}
	// A single question knows whom the replicas miss, unless that one has left.
	a.Missing = []Missing{{"lost", noon.Add(-5 * time.Second)}, {"left", noon}, {"b", noon}, {"old", noon.Add(-time.Hour)}, {"", noon}}
	b.Departed = []string{"left"}
	w := Merge(gathered(t, a, b), nil, noon)
	if got, want := brief(&w), "lost missing []; a answers []; b answers []; 0:[] 1:[] 2:[] 3:[]"; got != want && got != "a answers []; b answers []; lost missing []; 0:[] 1:[] 2:[] 3:[]" {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTheMostTellingStateIsThatOfTheStage(t *testing.T) {
	with := func(id string, state status.State, why string) Summary {
		s := of(id, nil)
		s.State, s.Why = state, why
		if state == status.StatePaused {
			s.Pause = &Pause{Reason: hold.Billing, Error: why}
		}
		return s
	}
	owner := func(id string, state status.State) Summary {
		s := with(id, state, "")
		s.Partitions = of(id, map[int]uint64{0: 1}).Partitions
		return s
	}
	tests := []struct {
		summaries []Summary
		want      string
	}{
		{[]Summary{owner("a", status.StateWorking)}, "working: "},
		{[]Summary{owner("a", status.StatePaused)}, "paused: "},
		{[]Summary{with("a", status.StateWorking, ""), with("b", status.StatePaused, "no credit"), with("c", status.StateStandby, "")}, "paused: 1 of 2 replicas: no credit"},
		{[]Summary{with("a", status.StatePaused, "no credit"), with("c", status.StateStandby, "")}, "paused: no credit"},
		{[]Summary{with("a", status.StateDrained, "drained by x"), with("b", status.StateIdle, "")}, "idle: "},
		{[]Summary{with("a", "of a later version", "")}, "of a later version: "},
	}
	for _, tt := range tests {
		w := Merge(gathered(t, tt.summaries...), nil, noon)
		if got := string(w.State) + ": " + w.Why; got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
		if (w.Rows.ETAS != nil) != (w.State == status.StateWorking) {
			t.Errorf("%s: time left %v", w.State, w.Rows.ETAS)
		}
	}
}

func TestThePaceOfReplicasIsOne(t *testing.T) {
	old, young := of("a", nil), of("b", nil)
	old.Pool.Size, old.Pace = 16, auditlog.NewPace(800*time.Second, 100*time.Second, 3*time.Second, 16)
	young.Pool.Size, young.Pace = 16, auditlog.NewPace(160*time.Second, 20*time.Second, time.Second, 16)
	w := Merge(gathered(t, old, young), nil, noon)
	if want := (auditlog.Pace{CallsS: 960, ElapsedS: 100, Speedup: 9.6, Utilisation: .5, ThrottledS: 4}); w.Pace != want {
		t.Errorf("got %+v, want %+v", w.Pace, want)
	}
	var text strings.Builder
	if err := w.WriteText(&text); err != nil || !strings.Contains(text.String(), "speed-up  9.6: calls of 16m0s in 1m40s, 50% of 32 slots in use, throttled for 4s\n") {
		t.Errorf("error %v, text\n%s", err, text.String())
	}
}

func TestALaneIsPausedWhereAllReplicasAre(t *testing.T) {
	with := func(id string, l Lane) Summary {
		s := of(id, nil)
		s.Lane = &l
		return s
	}
	working, paused, standby := with("a", Lane{Open: 1}), with("b", Lane{Open: 1, Paused: "no credit"}), with("c", Lane{})
	for _, tt := range []struct {
		summaries    []Summary
		paused, part string
	}{
		{[]Summary{working, paused}, "", "no credit"},
		{[]Summary{paused, working}, "", "no credit"},
		{[]Summary{paused, standby}, "no credit", ""},
	} {
		w := Merge(gathered(t, tt.summaries...), nil, noon)
		if w.Lane.Paused != tt.paused || w.Lane.Partly != tt.part {
			t.Errorf("got %+v, want paused %q, partly %q", w.Lane, tt.paused, tt.part)
		}
	}
}

func TestASummaryIsBounded(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	r := status.Report{Stage: "s", RunID: "a", State: status.StatePaused, Why: long, Pool: status.PoolReport{Paused: long, PauseReason: hold.Other}}
	for p := range 1024 {
		r.Partitions = append(r.Partitions, status.PartitionReport{Partition: p, Role: "owner", Owner: strings.Repeat("o", 21), Claim: 1 << 60, Problem: long})
	}
	for range 100 {
		r.Budget = append(r.Budget, status.BudgetReport{Name: "n"})
	}
	s := Summarize(&r, 1024)
	for _, most := range []int{summaryBytesMax, 10_000} {
		body, err := s.encode(most)
		if err != nil || len(body) > most {
			t.Fatalf("%d bytes, error %v, want at most %d", len(body), err, most)
		}
		got, note := decode("s", body)
		if note != "" || len(got.Partitions) == 0 || got.LeftOut+len(got.Partitions) != 1024 {
			t.Errorf("%q, %d partitions and %d left out", note, len(got.Partitions), got.LeftOut)
		}
	}
	// Without texts all partitions of the largest stage fit.
	for p := range r.Partitions {
		r.Partitions[p].Problem = ""
	}
	s = Summarize(&r, 1024)
	if body, err := s.encode(summaryBytesMax << 1); err != nil || len(body) > summaryBytesMax<<1 {
		t.Errorf("%d bytes, error %v", len(body), err)
	}
}

func TestWhoIsRememberedIsBounded(t *testing.T) {
	m := NewMemory()
	var all []Summary
	for i := range 2 * Most {
		all = append(all, of(fmt.Sprint(i), nil))
	}
	w := Merge(gathered(t, all...), m, noon)
	if len(w.Replicas) != Most || w.LeftOut != Most {
		t.Errorf("%d replicas and %d left out, want %d each", len(w.Replicas), w.LeftOut, Most)
	}
	for i := range 2 * Most {
		m.depart(fmt.Sprint("left", i), noon)
	}
	if len(m.seen) > Most || len(m.departed) > Most {
		t.Errorf("%d are remembered, %d that have left", len(m.seen), len(m.departed))
	}
}

// What a replica was drained of is shown beside what it owns, also where that is all, and
// it has taken some back.
func TestAPartitionThatAReplicaWasDrainedOfIsShown(t *testing.T) {
	r := status.Report{Stage: "s", RunID: "a", Partitions: []status.PartitionReport{{Partition: 0, Role: "owner"}, {Partition: 1, Role: "standby"}, {Partition: 2, Role: "standby"}}}
	r.AddWishes(nil, []status.Wish{{Partition: 1, Text: "drained by alice@laptop"}})
	for _, want := range []string{"  0, not 1  ", "  0, drained  ", "  0  "} {
		a := Summarize(&r, 3)
		w := Merge(gathered(t, of("b", nil), a), nil, noon)
		var text strings.Builder
		if err := w.WriteText(&text); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("error %v, want %q in\n%s", err, want, text.String())
		}
		r.AddWishes(nil, []status.Wish{{Partition: 1}})
		if r.Drained = ""; strings.Contains(want, "not") {
			r.Drained = "drained by alice@laptop"
		}
	}
}

func FuzzMerge(f *testing.F) {
	body := stagetest.Value(json.Marshal(of("b", map[int]uint64{0: 1})))(f)
	f.Add(body)
	f.Add([]byte(`{"format":1,"stage":"s","replica":"x","rows":{"per_second":1.7e308},"usage":{"cost_usd":1.7e308,"known_cost_usd":1.7e308}}`))
	f.Add([]byte(`{"format":1,"stage":"s","replica":"x","partitions":[{"partition":3,"role":"owner","head_of_line_seconds":1e308}],"lane":{},"pause":{"next_probe":"9999-12-31T23:59:59Z"},"budget":[{}],"missing":[{}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		own := of("a", map[int]uint64{0: 1})
		own.Rows.PerSecond = 1e300
		w := Merge(Gathered{Stage: "s", Own: &own, answers: [][]byte{body}}, NewMemory(), noon)
		if !slices.ContainsFunc(w.Replicas, func(r Replica) bool { return r.Self && r.Status == Answers }) {
			t.Errorf("the replica that asks is lost: %s", brief(&w))
		}
		if _, err := json.Marshal(&w); err != nil {
			t.Error(err)
		}
		if err := w.WriteText(&strings.Builder{}); err != nil {
			t.Error(err)
		}
	})
}
