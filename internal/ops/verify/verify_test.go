package verify

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go/jetstream"
)

// faults are what may be wrong with a finished job of 20 rows.
var faults = []fault{
	{"a removed result", func(j *stagetest.Job) {
		j.Remove(j.ResultOf(7))
		j.Steps[len(j.Steps)-1].Run.Summary.RowsSucceeded--
	}, []string{"VIOLATION lost: partition 0: row 7 has no result"}},
	{
		"the last result removed", func(j *stagetest.Job) { j.Remove(j.ResultOf(20)) },
		[]string{"VIOLATION run_summary_differs: run run1: 19 results are stored, its summary says 20"},
	},
	{"a doubled result", func(j *stagetest.Job) {
		i := j.ResultOf(7)
		j.Steps = slices.Insert(j.Steps, i+9, j.Steps[i])
	}, []string{"VIOLATION doubled: partition 0: row 7 has another result at "}},
	{"the same result twice in a row", func(j *stagetest.Job) {
		i := j.ResultOf(7)
		j.Steps = slices.Insert(j.Steps, i, j.Steps[i])
	}, []string{"VIOLATION doubled: partition 0: row 7 has another result at 9 of the results stream"}},
	{"two results swapped", func(j *stagetest.Job) {
		a, b := j.ResultOf(7), j.ResultOf(8)
		j.Steps[a], j.Steps[b] = j.Steps[b], j.Steps[a]
		j.Steps[a], j.Steps[b-1] = j.Steps[b-1], j.Steps[a] // the events of row 8 before its result
	}, []string{"VIOLATION out_of_order: partition 0: the result of row 7, at 9 of the results stream, comes after that of row 8"}},
	{"two distant results swapped", func(j *stagetest.Job) {
		a, b := j.ResultOf(3), j.ResultOf(18)
		j.Steps[a].Result.Seq, j.Steps[b].Result.Seq = 18, 3
		j.Steps[a].Result.StateID, j.Steps[b].Result.StateID = j.Steps[b].Result.StateID, j.Steps[a].Result.StateID
	}, []string{"row 3, at 19 of the results stream, comes after that of row 18", "row 4, at 5", "row 17, at 18", "15 out_of_order"}},
	{"the call event of a row removed", func(j *stagetest.Job) {
		j.Remove(j.CallOf(7))
	}, []string{
		"call_event_missing: partition 0: row 7 has 0 call events of run1.a, its row event counts 1 calls, call 0 is missing",
		"run_summary_differs: run run1: 25 call events, its summary says 26 calls",
	}},
	{"the first of two call events removed", func(j *stagetest.Job) { j.Remove(j.CallOf(6)) }, []string{
		"call_event_missing: partition 0: row 6 has 1 call events of run1.a, its row event counts 2 calls, call 0 is missing",
		"run_summary_differs: run run1: 25 call events, its summary says 26 calls",
	}},
	{
		"a call event that is numbered wrongly", func(j *stagetest.Job) { j.Steps[j.CallOf(7)].Call.CallIndex = 1 },
		[]string{"call_event_missing: partition 0: row 7 has call events of run1.a that are not numbered from 0, call 0 is missing"},
	},
	{"a call that the row event does not count", func(j *stagetest.Job) {
		i := j.CallOf(7)
		extra := *j.Steps[i].Call
		extra.CallIndex = 1
		j.Steps = slices.Insert(j.Steps, i, stagetest.Step{Call: &extra})
	}, []string{"call_event_extra: partition 0: row 7 has 2 call events", "run_summary_differs: run run1: 27 call events"}},
	{
		"a capacity retry that was none", func(j *stagetest.Job) { j.Steps[j.CallOf(6)].Call.Status = auditlog.CallFailure },
		[]string{"retries_differ: partition 0: row 6 has 0 capacity retries in the call events, 1 in the row event", "run_summary_differs: run run1: 5 capacity retries"},
	},
	{
		"tokens of a row that do not add up", func(j *stagetest.Job) { j.Steps[j.Row7()].Row.Usage.CompletionTokens++ },
		[]string{"tokens_differ: partition 0: row 7: 7 completion tokens in the call events, 8 in the row event"},
	},
	{
		"tokens of a call that do not add up", func(j *stagetest.Job) { j.Steps[j.CallOf(7)].Call.Usage.TotalTokens = 99 },
		[]string{"tokens_differ: partition 0: row 7: 99 total tokens in the call events, 17 in the row event", "run_summary_differs: run run1: 492 total tokens in the call events, 410"},
	},
	{
		"tokens that were not reported", func(j *stagetest.Job) { j.Steps[j.Row7()].Row.Usage = nil },
		[]string{"tokens_differ: partition 0: row 7: tokens 10+7 in the call events, tokens - in the row event"},
	},
	{
		"a cost that does not add up", func(j *stagetest.Job) { *j.Steps[j.Row7()].Row.Usage.CostUSD = 0.5 },
		[]string{"cost_differs: partition 0: row 7: cost in USD 0.001000 in the call events, 0.500000 in the row event"},
	},
	{
		"tokens of the run that do not add up", func(j *stagetest.Job) { j.Steps[len(j.Steps)-1].Run.Summary.Total.Usage.PromptTokens++ },
		[]string{"run_summary_differs: run run1: 200 prompt tokens in the call events, 201 in its summary", "run run1: mock small: 200 prompt"},
	},
	{
		"a row without its row event", func(j *stagetest.Job) { j.Remove(j.Row7()) },
		[]string{"row_event_missing: partition 0: row 7 has no row event of run1.a"},
	},
	{
		"a row event of another term", func(j *stagetest.Job) { j.Steps[j.Row7()].Row.Owner = "run1.x" },
		[]string{"row_event_missing: partition 0: row 7 has no row event of run1.a"},
	},
	{
		"a row event with another status", func(j *stagetest.Job) { j.Steps[j.Row7()].Row.Status = auditlog.RowError },
		[]string{"row_event_differs: partition 0: row 7 has a result with status success and a row event with status error"},
	},
	{"a claim with a wrong mark", func(j *stagetest.Job) {
		j.Steps = slices.Insert(j.Steps, j.ResultOf(7)+1, stagetest.Step{Claim: &stored.Claim{Owner: "run1.a", Mark: 6, Version: 1, Input: "ROWS", Created: j.Created}})
	}, []string{"bad_claim: partition 0: the claim at 9 of the results stream, of run1.a, names row 6 as the last before it; it was row 7"}},
	{"a result of a fenced owner", func(j *stagetest.Job) {
		j.Steps = slices.Insert(j.Steps, j.ResultOf(19)+1, stagetest.Step{Claim: &stored.Claim{Owner: "run2.a", Mark: 19, Version: 1, Input: "ROWS", Created: j.Created}})
	}, []string{"bad_claim: partition 0: the result of row 20 is of run1.a, after the claim of run2.a"}},
	{
		"a result of a row that never was", func(j *stagetest.Job) { j.Answer("run1.a", 21) },
		[]string{"bad_result: partition 0: message 22 of the results: it is about a row that the input never had", "run_summary_differs"},
	},
	{
		"a result with the id of another row", func(j *stagetest.Job) { j.Steps[j.ResultOf(7)].Result.StateID = "stage/ROWS/0/8" },
		[]string{`bad_result: partition 0: message 8 of the results: its state id "stage/ROWS/0/8" is that of another row`},
	},
	{
		"a replacement of a row that did not fail", func(j *stagetest.Job) { j.Steps[j.ResultOf(7)].Result.Replaces = "3" },
		[]string{"bad_replacement: partition 0: the result of row 7, at 8 of the results stream, takes the place of row 3, which had not failed"},
	},
	{
		"a replacement of a row that never was", func(j *stagetest.Job) { j.Steps[j.ResultOf(7)].Result.Replaces = "99" },
		[]string{"bad_replacement: partition 0: the result of row 7, at 8 of the results stream, takes the place of row 99, which has no result before it"},
	},
	{
		"a replacement of itself", func(j *stagetest.Job) { j.Steps[j.ResultOf(7)].Result.Replaces = "7" },
		[]string{"bad_replacement: partition 0: the result of row 7, at 8 of the results stream, takes the place of row 7, which has no result before it"},
	},
	{
		"a replacement of nothing", func(j *stagetest.Job) { j.Steps[j.ResultOf(7)].Result.Replaces = "seven" },
		[]string{`bad_replacement: partition 0: the result of row 7, at 8 of the results stream, takes the place of row "seven", which is no number of a row`},
	},
	{
		"a second replacement after a success", func(j *stagetest.Job) {
			fail(j, 3)
			j.Steps[j.ResultOf(7)].Result.Replaces, j.Steps[j.ResultOf(9)].Result.Replaces = "3", "3"
		},
		[]string{"bad_replacement: partition 0: the result of row 9, at 10 of the results stream, takes the place of row 3, which had not failed"},
	},
	{
		"a body in a bucket that is gone", func(j *stagetest.Job) {
			ref := objects.NewRef("LARGE", "stage/0/7/x", []byte("{}"))
			j.Steps[j.ResultOf(7)].Result.Object = &ref
		},
		[]string{"bad_object: partition 0: the result of row 7, at 8 of the results stream, has no body: object LARGE/stage/0/7/x: "},
	},
}

// The body of a result that is an object is read, and compared with the row event.
func TestVerifyReadsObjects(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	stagetest.Value(b.JS.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "LARGE", Storage: jetstream.MemoryStorage}))(t)
	ref := stagetest.Value(objects.Put(t.Context(), b.NC, "LARGE", "stage/0/7/x", []byte("{}")))(t)
	job := b.FinishedJob(20)
	job.Steps[job.ResultOf(7)].Result.Object = &ref
	job.Steps[job.Row7()].Row.ResultHash = llm.Hash([]byte("{}"))
	b.Store(job)
	if report, text := proven(b); report.Partitions[0].Objects != 1 || !strings.Contains(text, ", 1 with the body in the object store; ") {
		t.Errorf("verified %d objects:\n%s", report.Partitions[0].Objects, text)
	}
	for _, name := range []string{"stage/0/7/left", "stage/0/21/pending", "other/0/7/x", "somebody's"} {
		stagetest.Value(objects.Put(t.Context(), b.NC, "LARGE", name, []byte("abc")))(t)
	}
	if _, text := proven(b); !strings.Contains(text, "note: bucket LARGE has objects that no result names: 1, with 3 bytes. ") || !strings.Contains(text, "NAME removes one: stage/0/7/left\n") {
		t.Errorf("of an object that no result names verify says:\n%s", text)
	}
	stagetest.Must(t, objects.Remove(t.Context(), b.NC, "LARGE", ref.Name))
	stagetest.Value(objects.Put(t.Context(), b.NC, "LARGE", ref.Name, []byte("[]")))(t)
	if _, text, _ := verifyAll(b); !strings.Contains(text, "bad_object: partition 0: the result of row 7, at 8 of the results stream, has no body: LARGE/stage/0/7/x: the object is damaged") {
		t.Errorf("of another object verify says:\n%s", text)
	}
}

func TestVerifyFindsPlantedFaults(t *testing.T) {
	findsFaults(t, faults, func(b *stagetest.Bench) *stagetest.Job { return b.FinishedJob(20) }, verifyAll)
	var found []string // by all of them
	for _, f := range slices.Concat(faults, batchFaults, itemFaults, linkFaults, chainFaults) {
		found = append(found, f.want...)
	}
	for _, f := range faultsByKey {
		for kind := range f.kinds {
			found = append(found, string(kind))
		}
	}
	found = append(found, "deleted", "erasure_unfinished", "root_differs") // by tests of streams, in chained_test.go
	for _, c := range checks {
		if !strings.Contains(strings.Join(found, "\n"), string(c.kind)) {
			t.Errorf("no violation of kind %s is planted", c.kind)
		}
	}
}

// proven fails the test unless the job is proven.
func proven(b *stagetest.Bench) (*Report, string) {
	b.T.Helper()
	report, text, code := verifyAll(b)
	if code != codeProven || report.Verdict != VerdictProven {
		b.T.Errorf("got exit code %d, verdict %s, want %d:\n%s", code, report.Verdict, codeProven, text)
	}
	return report, text
}

func TestVerifyProvesAFinishedJob(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(b.FinishedJob(20))
	report, text := proven(b)
	for _, want := range []string{
		"partition 0: 20 results up to row 20 in 1 terms: 20 succeeded, 0 failed; 0 rows pending\n",
		"audit: 26 calls, 6 of them capacity retries, 0 of rows or terms without a result; 410 tokens, cost in USD 0.020000; 1 of 1 runs have a summary\n",
		"proven: every row up to the high-water mark has exactly one result, in stream order, and the audit adds up\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	var out strings.Builder
	stagetest.Must(t, terminal.WriteJSON(&out, report))
	var got struct {
		Verdict    string
		Partitions []map[string]any
		Violations struct{ Count int }
	}
	stagetest.Must(t, json.Unmarshal([]byte(out.String()), &got))
	if got.Verdict != "proven" || len(got.Partitions) != 1 || got.Partitions[0]["results"] != 20.0 || got.Partitions[0]["pending"] != 0.0 {
		t.Errorf("got as JSON:\n%s", out.String())
	}
}

func TestVerifyAcceptsTheEventsOfASharedBudget(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	j := b.FinishedJob(20)
	for _, phase := range []auditlog.Phase{auditlog.PhaseJoined, auditlog.PhaseAlone, auditlog.PhaseLeads} {
		event := &auditlog.Run{
			Header: auditlog.Header{Time: j.Now, RunID: "run1", Stage: "stage", Partition: auditlog.All}, Phase: phase,
			Reason: "budget team for mock", Budget: &auditlog.Budget{Name: "team", Provider: "mock", Mode: "member", Members: 2, Share: .5},
		}
		j.Steps = slices.Insert(j.Steps, 2, stagetest.Step{Run: event})
	}
	b.Store(j)
	proven(b)
}

func TestVerifyTakesRowsBehindTheMarkForPending(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Rows(30, "rows.a")
	j := b.Job()
	j.Start("run1")
	j.Claim("run1.a", 0)
	for seq := uint64(1); seq <= 10; seq++ {
		j.Answer("run1.a", seq)
	}
	for seq := uint64(11); seq <= 20; seq++ { // finished, but for an earlier row
		j.Call("run1.a", seq, 0, auditlog.CallSuccess)
		j.Row("run1.a", seq, 0, auditlog.SourceCall)
	}
	b.Store(j)
	report, text := proven(b)
	if p := report.Partitions[0]; p.Results != 10 || p.HighWaterMark != 10 || p.Pending == nil || *p.Pending != 20 {
		t.Errorf("want 10 results and 20 rows pending:\n%s", text)
	}
	if report.Audit.Elsewhere != 10 {
		t.Errorf("want 10 calls without a result:\n%s", text)
	}
}

func TestVerifyExpectsNoDeletedOrFilteredRow(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Rows(2, "rows.a")   // 1, 2
	b.Rows(2, "other.a")  // 3, 4
	b.Rows(4, "rows.b.c") // 5 to 8
	for _, seq := range []uint64{2, 6} {
		stagetest.Must(t, b.Stream("ROWS").DeleteMsg(t.Context(), seq))
	}
	j := b.Job()
	j.Start("run1")
	j.Claim("run1.a", 0)
	for _, seq := range []uint64{1, 5, 6, 7} { // 6 was deleted when it was taken already
		j.Answer("run1.a", seq)
	}
	b.Store(j)
	report, text := proven(b)
	if p := report.Partitions[0]; p.Results != 4 || p.ByInput != 3 || p.ByAudit != 1 || *p.Pending != 1 {
		t.Errorf("want 3 results by the input, 1 by the audit, 1 row pending:\n%s", text)
	}
}

func TestVerifyFollowsARowThroughTerms(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Rows(6, "rows.a")
	j := b.Job()
	j.Start("run1")
	j.Claim("run1.a", 0)
	j.Answer("run1.a", 1)
	// Row 2 was called and its process lost the partition; row 3 was even ready. Nothing
	// of it is in the results.
	j.Call("run1.a", 2, 0, auditlog.CallCapacityRetry)
	j.Call("run1.a", 3, 0, auditlog.CallSuccess)
	j.Row("run1.a", 3, 0, auditlog.SourceCall)
	j.Call("run1.a", 5, 1, auditlog.CallSuccess) // its first event was never stored
	j.Start("run2")
	j.Claim("run2.a", 1)
	j.Answer("run2.a", 2)
	// The first process has the partition again, and still the reply to row 3 in its
	// hands; row 4 was called in both.
	j.Claim("run1.b", 2)
	j.Row("run1.b", 3, 0, auditlog.SourceCall)
	j.Result("run1.b", 3)
	j.Call("run1.a", 4, 0, auditlog.CallCapacityRetry)
	j.Call("run1.b", 4, 0, auditlog.CallSuccess)
	j.Row("run1.b", 4, 1, auditlog.SourceCall)
	j.Result("run1.b", 4)
	// Row 5 was kept in the journal by a third process, in the second of its two calls.
	j.Call("run3.a", 5, 0, auditlog.CallUnknown)
	j.Call("run3.a", 5, 1, auditlog.CallSuccess)
	j.Row("run1.b", 5, 0, auditlog.SourceJournal)
	j.Result("run1.b", 5)
	// Late events of the fenced term do no harm, nor does a second copy of one.
	j.Row("run2.a", 3, 0, auditlog.SourceCall)
	j.Call("run1.b", 6, 0, auditlog.CallSuccess)
	j.Steps = append(j.Steps, j.Steps[len(j.Steps)-1])
	j.Row("run1.b", 6, 0, auditlog.SourceCall)
	j.Result("run1.b", 6)
	b.Store(j)
	if report, text := proven(b); report.Partitions[0].Claims != 3 || report.Partitions[0].Results != 6 {
		t.Errorf("want 6 results in 3 terms:\n%s", text)
	}
}

func TestVerifyFindsAJournalReplyThatNobodyPaidFor(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Rows(1, "rows.a")
	j := b.Job()
	j.Claim("run1.a", 0)
	j.Row("run1.a", 1, 0, auditlog.SourceJournal)
	j.Result("run1.a", 1)
	b.Store(j)
	if _, text, code := verifyAll(b); code != codeViolated || !strings.Contains(text, "call_event_missing: partition 0: row 1") {
		t.Errorf("got exit code %d:\n%s", code, text)
	}
}
