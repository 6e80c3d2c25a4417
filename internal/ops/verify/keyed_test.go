package verify

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// The keys of rows 1 to 12, and an order of their results in which row 1 is slow: its key
// waits, and nobody else.
var (
	slowKeys = strings.Split("a b a b c c a b d a b c", " ")
	slowRows = []uint64{2, 5, 4, 6, 9, 8, 1, 3, 11, 7, 12, 10}
)

func byKey(place string) stagetest.Order {
	return stagetest.Order{Order: streams.OrderKey, Place: place, Keys: slowKeys}
}

func inNoOrder() stagetest.Order { return stagetest.Order{Order: streams.OrderNone, Keys: slowKeys} }

// lose has a result counted and not stored, and the process unaware of it.
func lose(j *stagetest.Job, seq uint64) {
	j.Steps[j.ResultOf(seq)].Lost = true
	j.Steps[len(j.Steps)-1].Run.Summary.RowsSucceeded--
	j.Count()
}

// keep removes the results of all other rows, as if the process had been killed before it
// stored them.
func keep(j *stagetest.Job, rows ...uint64) {
	j.Steps = slices.DeleteFunc(j.Steps, func(s stagetest.Step) bool {
		return s.Run != nil && s.Run.Phase == auditlog.PhaseEnd || s.Result != nil && !slices.Contains(rows, s.Result.Seq)
	})
	j.Count()
}

// claimAgain has the owner claim once more, after the result of row 11.
func claimAgain(j *stagetest.Job) *stored.Claim {
	c := *j.Steps[1].Claim
	j.Steps = slices.Insert(j.Steps, j.ResultOf(11)+1, stagetest.Step{Claim: &c})
	j.Count()
	return &c
}

// progressAt returns what the result of a row says.
func progressAt(j *stagetest.Job, seq uint64) *stored.Progress {
	return &j.Steps[j.ResultOf(seq)].Result.Progress
}

func TestVerifyProvesOtherOrders(t *testing.T) {
	bench := stagetest.NewBench(t, nil)
	for _, tt := range []struct {
		order  stagetest.Order
		rows   []uint64
		report string
		proven string
	}{
		{byKey("subject"), slowRows, "12 results in order by key (subject), up to row 12 and 0 above it, in 1 terms", "low-water mark has exactly one result, those of a key in stream order, and"},
		{byKey("subject.2"), slowRows[:9], "9 results in order by key (subject.2), up to row 6 and 3 above it, in 1 terms: 9 succeeded, 0 failed; 3 rows pending", ""},
		{byKey("header.Customer"), slowRows[:6], "6 results in order by key (header.Customer), up to row 0 and 6 above it, in 1 terms: 6 succeeded, 0 failed; 6 rows pending", ""},
		{byKey("field.customer"), slowRows, "in order by key (field.customer), up to row 12", ""},
		{inNoOrder(), []uint64{12, 3, 1, 2, 9, 8}, "6 results in no order, up to row 3 and 3 above it, in 1 terms: 6 succeeded, 0 failed; 6 rows pending", "low-water mark has exactly one result, and"},
	} {
		t.Run(string(tt.order.Order)+tt.order.Place, func(t *testing.T) {
			b := bench.Renew(t)
			b.Store(b.OrderedJob(tt.order, tt.rows...))
			report, text := proven(b)
			if !strings.Contains(text, tt.report) || !strings.Contains(text, tt.proven) {
				t.Errorf("want %q and %q in:\n%s", tt.report, tt.proven, text)
			}
			p := report.Partitions[0]
			if p.Order != tt.order.Order || p.OrderKey != tt.order.Place || p.ByInput != len(tt.rows) {
				t.Errorf("got order %q, key %q, %d rows in the input", p.Order, p.OrderKey, p.ByInput)
			}
		})
	}
}

// faultsByKey are planted in a job in another order than the stream's; all violations
// that are found are of kinds.
var faultsByKey = []struct {
	name  string
	order stagetest.Order
	plant func(j *stagetest.Job)
	kinds map[violationKind]int
	want  []string
}{
	{"two results of one key swapped", byKey("subject.2"), func(j *stagetest.Job) {
		a, b := j.ResultOf(4), j.ResultOf(8)
		j.Steps[a], j.Steps[b] = j.Steps[b], j.Steps[a]
		j.Count()
	}, map[violationKind]int{violationDisorder: 1}, []string{`the result of row 4, at 7 of the results stream, comes after that of row 8, a later row of the same key "b"`}},
	{"the same in no order", inNoOrder(), func(j *stagetest.Job) {
		a, b := j.ResultOf(4), j.ResultOf(8)
		j.Steps[a], j.Steps[b] = j.Steps[b], j.Steps[a]
		j.Count()
	}, nil, nil},
	{
		"a row passed by within its key", byKey("subject.2"), func(j *stagetest.Job) { keep(j, 2, 5, 8) },
		map[violationKind]int{violationDisorder: 1},
		[]string{"row 4 has no result, and row 8 has one, a later row of the same key"},
	},
	{"one doubled", byKey("subject"), func(j *stagetest.Job) {
		again := *j.Steps[j.ResultOf(5)].Result
		j.Steps = slices.Insert(j.Steps, j.ResultOf(1), stagetest.Step{Result: &again})
		j.Count()
	}, map[violationKind]int{violationDoubled: 1}, []string{"row 5 has another result at 8 of the results stream"}},
	{"one lost below the low-water mark", byKey("subject.2"), func(j *stagetest.Job) { lose(j, 1) }, map[violationKind]int{violationLost: 1}, []string{"row 1 has no result"}},
	{"one lost above it, which it passes", byKey("subject.2"), func(j *stagetest.Job) { lose(j, 5) }, map[violationKind]int{violationLost: 1}, []string{"row 5 has no result"}},
	{"one lost above it, before one of its key", byKey("subject.2"), func(j *stagetest.Job) {
		lose(j, 4)
		keep(j, 2, 5, 4, 6, 9, 8)
	}, map[violationKind]int{violationLost: 1}, []string{
		"row 4 has no result, and row 8 of the same key has one; the result of row 6, at 4 of the results stream, counts 4 rows above row 0 that have their result (Stage-Ahead)",
	}},
	{"one lost above it, of many", inNoOrder(), func(j *stagetest.Job) {
		lose(j, 5)
		keep(j, 2, 5, 4, 6, 9)
	}, map[violationKind]int{violationLost: 1}, []string{"the result of row 4, at 3 of the results stream, counts 3 rows above row 0 that have their result (Stage-Ahead); the results of 1 of them are lost, which can't be named before the mark passes them"}},
	{"a wrong key", byKey("subject.2"), func(j *stagetest.Job) {
		wrong := "z"
		j.Steps[j.ResultOf(5)].Result.Key = &wrong
	}, map[violationKind]int{violationKey: 1}, []string{`the result of row 5, at 3 of the results stream, has the key "z" (Stage-Key): by subject.2 it is "c"`}},
	{"a wrong key, and a wrong subject with it", byKey("subject.2"), func(j *stagetest.Job) {
		wrong := "z"
		r := j.Steps[j.ResultOf(5)].Result
		r.Key, r.Subject = &wrong, "rows.z"
	}, map[violationKind]int{violationKey: 1}, []string{`has the key "z" (Stage-Key): its row in the input has another one by subject.2`}},
	{"a wrong key of a header", byKey("header.Customer"), func(j *stagetest.Job) {
		wrong := ""
		j.Steps[j.ResultOf(5)].Result.Key = &wrong
	}, map[violationKind]int{violationKey: 1}, []string{`has the key "" (Stage-Key): by header.Customer it is "c"`}},
	{"a wrong key of a header that the result has lost", byKey("header.Customer"), func(j *stagetest.Job) {
		wrong := ""
		r := j.Steps[j.ResultOf(5)].Result
		r.Key, r.Header = &wrong, nil
	}, map[violationKind]int{violationKey: 1}, []string{"its row in the input has another one by header.Customer"}},
	{
		"no key", byKey("subject"), func(j *stagetest.Job) { j.Steps[j.ResultOf(5)].Result.Key = nil },
		map[violationKind]int{violationKey: 1},
		[]string{"the result of row 5, at 3 of the results stream, has no key (Stage-Key): the order is key (subject)"},
	},
	{
		"a low-water mark that is too high", byKey("subject.2"), func(j *stagetest.Job) { *progressAt(j, 8) = stored.Progress{Named: true, Low: 2, Ahead: 5, From: 3} },
		map[violationKind]int{violationLow: 1},
		[]string{
			"bad_low: partition 0: the result of row 1, at 8 of the results stream, comes after message 7, by which every row up to row 2 has its result (Stage-Low)",
		},
	},
	{
		"a low-water mark above all results", byKey("subject.2"), func(j *stagetest.Job) { progressAt(j, 10).Low = 13 },
		map[violationKind]int{violationLow: 1},
		[]string{"the result of row 10, at 13 of the results stream, names row 13 as the low-water mark (Stage-Low), and no row above row 12 has a result"},
	},
	{
		"a low-water mark that falls", byKey("subject.2"), func(j *stagetest.Job) { *progressAt(j, 11) = stored.Progress{Named: true} },
		map[violationKind]int{violationLow: 1},
		[]string{"the result of row 11, at 10 of the results stream, names row 0 as the low-water mark (Stage-Low), the message before it row 6: it never falls"},
	},
	{
		"no low-water mark", byKey("subject.2"), func(j *stagetest.Job) { progressAt(j, 5).Named = false },
		map[violationKind]int{violationLow: 1},
		[]string{"the result of row 5, at 3 of the results stream, lacks Stage-Low, or has one that is no number: the order is key (subject.2)"},
	},
	{
		"too many above it", byKey("subject.2"), func(j *stagetest.Job) { progressAt(j, 6).Ahead++ },
		map[violationKind]int{violationLow: 1},
		[]string{"the result of row 6, at 5 of the results stream, counts 5 rows above row 0 that have their result (Stage-Ahead); 1 of them have none"},
	},
	{
		"too few above it", byKey("subject.2"), func(j *stagetest.Job) { progressAt(j, 6).Ahead-- },
		map[violationKind]int{violationLow: 1},
		[]string{"the result of row 6, at 5 of the results stream, counts 3 rows above row 0 that have their result (Stage-Ahead); it is 4"},
	},
	{
		"a first place that is too late", byKey("subject.2"), func(j *stagetest.Job) { progressAt(j, 6).From = 3 },
		map[violationKind]int{violationLow: 1},
		[]string{"(Stage-Ahead), from 3 of the results stream on (Stage-Ahead-From); it is from 2 on"},
	},
	{"a first place that is early", byKey("subject.2"), func(j *stagetest.Job) { progressAt(j, 6).From = 1 }, nil, nil},
	{
		"no first place", byKey("subject.2"), func(j *stagetest.Job) { progressAt(j, 6).From = 0 },
		map[violationKind]int{violationLow: 1},
		[]string{"and does not name the first of their places (Stage-Ahead-From)"},
	},
	{
		"a claim without an order", byKey("subject"), func(j *stagetest.Job) { j.Steps[1].Claim.Order = "" },
		map[violationKind]int{violationClaim: 1},
		[]string{"the claim at 1 of the results stream, of run1.a, has format 2 and names no order"},
	},
	{
		"a claim of an order in an old format", byKey("subject"), func(j *stagetest.Job) { j.Steps[1].Claim.Version = 1 },
		map[violationKind]int{violationClaim: 1},
		[]string{"names the order key and has format 1"},
	},
	{
		"a claim of an order that does not exist", byKey("subject"), func(j *stagetest.Job) { j.Steps[1].Claim.Order = "size" },
		map[violationKind]int{violationClaim: 1},
		[]string{`names the order "size", which does not exist`},
	},
	{
		"no claim at the beginning", byKey("subject.2"), func(j *stagetest.Job) {
			j.Remove(1)
			for i, s := range j.Steps {
				if s.Result != nil && s.Result.Progress.From > 0 {
					j.Steps[i].Result.Progress.From--
				}
			}
		},
		map[violationKind]int{violationClaim: 1},
		[]string{"the log begins with the result of row 2, at 1 of the results stream, without a claim before it"},
	},
	{"a claim with a mark that falls", byKey("subject.2"), func(j *stagetest.Job) {
		c := claimAgain(j)
		c.Mark, c.Progress.Low = 5, 5
	}, map[violationKind]int{violationLow: 1}, []string{
		"the claim at 11 of the results stream, of run1.a, names row 5 as the low-water mark (Stage-Low), the message before it row 6: it never falls",
	}},
	{
		"a claim with two marks", byKey("subject.2"), func(j *stagetest.Job) { claimAgain(j).Mark = 5 },
		map[violationKind]int{violationClaim: 1},
		[]string{"the claim at 11 of the results stream, of run1.a, names row 5 as the low-water mark, and row 6 in Stage-Low"},
	},
	{
		"a claim with a mark that is too high", byKey("subject.2"), func(j *stagetest.Job) {
			c := claimAgain(j)
			c.Mark, c.Progress = 7, stored.Progress{Named: true, Low: 7, Ahead: 3, From: 6}
		},
		map[violationKind]int{violationLow: 1},
		[]string{"the result of row 7, at 12 of the results stream, comes after message 11, by which every row up to row 7 has its result (Stage-Low)"},
	},
	{
		"a claim without a mark", byKey("subject.2"), func(j *stagetest.Job) { claimAgain(j).Progress.Named = false },
		map[violationKind]int{violationLow: 1},
		[]string{"the claim at 11 of the results stream, of run1.a, lacks Stage-Low, or has one that is no number"},
	},
	{"a claim that moves the mark on", byKey("subject.2"), func(j *stagetest.Job) { // as over rows of an earlier owner
		claimAgain(j)
		*progressAt(j, 3) = stored.Progress{Named: true, Low: 4, Ahead: 4, From: 3}
		*progressAt(j, 11) = stored.Progress{Named: true, Low: 4, Ahead: 5, From: 3}
	}, nil, nil},
}

func TestVerifyFindsFaultsInOrderByKey(t *testing.T) {
	bench := stagetest.NewBench(t, nil)
	for _, tt := range faultsByKey {
		t.Run(tt.name, func(t *testing.T) {
			b := bench.Renew(t)
			j := b.OrderedJob(tt.order, slowRows...)
			tt.plant(j)
			b.Store(j)
			report, text, _ := verifyAll(b)
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("want %q in:\n%s", want, text)
				}
			}
			if got := report.Violations.ByKind; len(got) != len(tt.kinds) {
				t.Errorf("got violations %v, want %v:\n%s", got, tt.kinds, text)
			}
			for kind, n := range tt.kinds {
				if got := report.Violations.ByKind[kind]; got != n {
					t.Errorf("got %d %s, want %d:\n%s", got, kind, n, text)
				}
			}
		})
	}
}

// A stage may be changed from one order to another when nothing above the low-water mark is done.
func TestVerifyFollowsAChangeOfTheOrder(t *testing.T) {
	change := func(b *stagetest.Bench, safe bool) *stagetest.Job {
		b.RowsOfKeys(slowKeys)
		j := b.Job()
		j.Start("run1")
		j.Claim("run1.a", 0)
		j.Answer("run1.a", 1)
		j.Answer("run1.a", 2)
		j.ClaimOrder("run1.b", byKey("subject.2"))
		j.Answer("run1.b", 4)
		j.Answer("run1.b", 3)
		j.ClaimOrder("run1.c", inNoOrder())
		j.Answer("run1.c", 7)
		if safe {
			j.Answer("run1.c", 6)
			j.Answer("run1.c", 5)
		}
		j.Count()
		last := uint64(4)
		if safe {
			last = 7
		}
		j.Claim("run1.d", last)
		for seq := last + 1; seq <= 12; seq++ {
			j.Answer("run1.d", seq)
		}
		return j
	}
	b := stagetest.NewBench(t, nil)
	b.Store(change(b, true))
	_, text := proven(b)
	for _, want := range []string{
		"partition 0: 12 results up to row 12 in 4 terms: 12 succeeded, 0 failed; 0 rows pending\n",
		"note: partition 0: the order of the results changes at 4 of the results stream from stream to key (subject.2)\n",
		"note: partition 0: the order of the results changes at 7 of the results stream from key (subject.2) to none\n",
		"note: partition 0: the order of the results changes at 11 of the results stream from none to stream\n",
		"proven: every row up to the low-water mark has exactly one result, in the order that its claim names, and the audit adds up\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	b = stagetest.NewBench(t, nil)
	b.Store(change(b, false))
	_, text, code := verifyAll(b)
	want := "VIOLATION bad_claim: partition 0: the claim at 9 of the results stream, of run1.d, changes the order from none to stream while 1 rows above row 4 have their result"
	if code != codeViolated || !strings.Contains(text, want) || !strings.Contains(text, "row 7 has another result") {
		t.Errorf("want %q in:\n%s", want, text)
	}
}

// What was purged of a log in another order than the stream's is not missed, and what is
// left is checked in full.
func TestVerifyChecksAPurgedLogByKey(t *testing.T) {
	bench := stagetest.NewBench(t, nil)
	for below := uint64(3); below <= 13; below++ {
		for _, claim := range []bool{false, true} {
			b := bench.Renew(t)
			j := b.OrderedJob(byKey("subject.2"), slowRows...)
			if claim { // the log that is left begins with one
				c := *j.Steps[1].Claim
				i, at := 0, uint64(0)
				for ; at < below-1; i++ {
					if s := j.Steps[i]; s.Claim != nil || s.Result != nil {
						at++
					}
				}
				j.Steps = slices.Insert(j.Steps, i, stagetest.Step{Claim: &c})
				j.Count()
			}
			b.Store(j)
			b.Purge("RESULTS", below)
			report, text, code := verifyAll(b)
			if code != codeUnproven || report.Violations.Count > 0 || !strings.Contains(text, "the results begin in the middle, after row ") {
				t.Errorf("below %d, claim %t: got exit code %d:\n%s", below, claim, code, text)
			}
			if got := report.Partitions[0]; got.Order != streams.OrderKey || got.Results+got.ResultsGone != 12 {
				t.Errorf("below %d, claim %t: got %d results, %d gone:\n%s", below, claim, got.Results, got.ResultsGone, text)
			}
		}
	}
}

// Rows that were answered are acked, and a work queue has deleted them, whatever waits below.
func TestVerifyChecksOtherOrdersOverAWorkQueue(t *testing.T) {
	bench := stagetest.NewBench(t, func(s []jetstream.StreamConfig) { s[0].Retention = jetstream.WorkQueuePolicy })
	for _, order := range []stagetest.Order{byKey("subject.2"), inNoOrder()} {
		for _, lost := range []uint64{0, 5} {
			b := bench.Renew(t)
			j := b.OrderedJob(order, slowRows...)
			if lost > 0 {
				lose(j, lost)
			}
			keep(j, slowRows[:9]...)
			b.Store(j)
			for _, seq := range slowRows[:9] {
				stagetest.Must(t, b.Stream("ROWS").DeleteMsg(t.Context(), seq))
			}
			_, text, code := verifyAll(b)
			switch {
			case lost == 0 && code != codeProven:
				t.Errorf("got exit code %d:\n%s", code, text)
			case lost > 0 && (code != codeViolated || !strings.Contains(text, "row 5 has no result; it is in the audit and no longer in the input")):
				t.Errorf("a lost result: got exit code %d:\n%s", code, text)
			}
		}
	}
}

// The key that the audit has is another record of it.
func TestVerifyComparesKeysWithTheAudit(t *testing.T) {
	for _, wrong := range []uint64{0, 5} {
		j := newPureJobOf(byKey("field.customer"), slowRows, time.Hour, 10*time.Second)
		for _, m := range j.audit.msgs {
			if row := m.is.Row; row != nil {
				key := slowKeys[row.Sequence-1]
				if row.Sequence == wrong {
					key = "z"
				}
				row.Key = &key
			}
		}
		report := j.verify()
		switch {
		case wrong == 0 && report.Verdict != VerdictProven:
			t.Errorf("got %+v, want it proven", report)
		case wrong > 0 && (report.Violations.Count != 1 || report.Violations.First[0].Text != `row 5 has a result with key "c" and a row event with key "z"`):
			t.Errorf("got violations %+v", report.Violations)
		}
	}
}

// A row that waits for an earlier one of its key is older than the rows whose results
// come before its own, and so is its audit: that may have expired, when theirs has not.
func TestVerifyKnowsThatARowWhichWaitedIsOld(t *testing.T) {
	keys := strings.Split("a a b b b b b b b b b b", " ")
	j := newPureJobOf(stagetest.Order{Order: streams.OrderKey, Place: "subject.2", Keys: keys}, []uint64{3, 4, 5, 6, 1, 2, 7, 8, 9, 10, 11, 12}, 40*day, 3*day)
	isOld := func(m pureEvent) bool { return isRow(2)(m) || isCall(2)(m) }
	var old []pureEvent
	for _, m := range j.audit.msgs {
		if isOld(m) {
			m.stored = j.audit.msgs[0].stored
			old = append(old, m)
		}
		if isRow(1)(m) { // for which row 2 waits
			m.is.Row.QueuedAt = j.audit.msgs[0].stored
		}
	}
	j.audit.remove(isOld)
	j.audit.msgs = slices.Insert(j.audit.msgs, 1, old...)
	for i := range j.audit.msgs {
		j.audit.msgs[i].seq = uint64(i + 1) //nolint:gosec // small
	}
	j.age()
	if report := j.verify(); report.Verdict != VerdictCannotTell || report.Partitions[0].AuditGone != 1 {
		t.Errorf("got %s, audit of %d rows gone: %+v", report.Verdict, report.Partitions[0].AuditGone, report.Violations)
	}
}

// By key, rows that one owner has called may be set aside by the next, while others pass:
// their events are held longer.
func TestVerifyHoldsTheEventsOfRowsSetAside(t *testing.T) {
	v := &verification{store: store{cfg: stagetest.Config(t, "STAGE_WINDOW", "100")}, runs: newRunVerifier()}
	v.runs.run(&auditlog.Run{Header: auditlog.Header{RunID: "run1"}, Phase: auditlog.PhaseStart, Settings: map[string]string{"STAGE_WINDOW": "90"}})
	known, unknown := stored.Claim{Owner: "run1.a", Version: 1}, stored.Claim{Owner: "run2.a", Version: 1}
	byKey := stored.Claim{Owner: "run1.b", Version: 2, Order: streams.OrderKey}
	for _, row := range []struct {
		claims []stored.Claim
		want   int
	}{{[]stored.Claim{known}, 200}, {[]stored.Claim{known, byKey}, 800}, {[]stored.Claim{known, unknown}, 100_000}} {
		if got := v.windowRows(row.claims); got != row.want {
			t.Errorf("%+v: got %d rows, want %d", row.claims, got, row.want)
		}
	}
}
