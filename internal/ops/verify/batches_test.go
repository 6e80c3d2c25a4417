package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
)

// laneJob is a job of 20 rows: a batch t1 of all of them, which answers the first twelve,
// fails row 13 for a while and expires with the others; then t2 with those, of which row
// 20 goes live and its answer is dropped.
func laneJob(b *stagetest.Bench) *stagetest.Job {
	b.T.Helper()
	b.Rows(20, "rows.a")
	j := b.Job()
	j.Now = j.Now.Add(-time.Hour)
	j.Start("run1")
	j.Claim("run1.a", 0)
	j.Batch("run1.a", "t1", auditlog.BatchIntent, 20, nil)
	j.Batch("run1.a", "t1", auditlog.BatchSubmitted, 20, nil)
	answer := func(token string, from, to uint64) {
		for seq := to; seq >= from; seq-- { // any order
			j.Line("run1.a", token, seq, auditlog.CallSuccess)
			j.Row("run1.a", seq, 0, auditlog.SourceCall)
		}
		for seq := from; seq <= to; seq++ {
			j.Result("run1.a", seq)
		}
	}
	answer("t1", 1, 12)
	j.Line("run1.a", "t1", 13, auditlog.CallFailure)
	j.Batch("run1.a", "t1", auditlog.BatchExpired, 20, func(e *auditlog.Batch) {
		e.Answered, e.Failed, e.Lapsed, e.Missing, e.Usage = 12, 1, 6, 1, j.Billed("t1")
	})
	j.Batch("run1.a", "t2", auditlog.BatchIntent, 8, nil)
	j.Batch("run1.a", "t2", auditlog.BatchAdopted, 8, nil)
	answer("t2", 13, 19)
	j.Batch("run1.a", "t2", auditlog.BatchEnded, 8, func(e *auditlog.Batch) {
		e.Answered, e.Dropped, e.Usage = 8, 1, j.Billed("t2").Plus(&auditlog.Usage{PromptTokens: 3, CompletionTokens: 4, TotalTokens: 7, CostUSD: new(0.5)})
	})
	j.Answer("run1.a", 20)
	j.End("run1")
	return j
}

func TestVerifyAddsUpBatches(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(laneJob(b))
	report, text := proven(b)
	for _, want := range []string{
		"batches: 2, of them 1 ended, 1 expired, 0 cancelled, 0 abandoned, 0 open, 0 undecided, 1 adopted; 28 rows submitted: 20 answered, 1 failed, 6 lapsed, 1 missing, 1 dropped; billed 387 tokens, cost in USD 0.519000\n",
		"audit: 21 calls, 0 of them capacity retries, 1 of rows or terms without a result; 417 tokens, cost in USD 0.520000; 1 of 1 runs",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	if got := *report.Batches; got.Calls != 20 || got.CallsAgain != 0 {
		t.Errorf("got %+v, want 20 calls", got)
	}
}

func TestVerifyKnowsThatNothingWasBilled(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Rows(2, "rows.a")
	j := b.Job()
	j.Now = j.Now.Add(-time.Hour)
	j.Start("run1")
	j.Claim("run1.a", 0)
	j.Batch("run1.a", "t1", auditlog.BatchIntent, 2, nil)
	j.Batch("run1.a", "t1", auditlog.BatchSubmitted, 2, nil)
	j.Batch("run1.a", "t1", auditlog.BatchCancelled, 2, func(e *auditlog.Batch) { e.Lapsed = 2 })
	j.Answer("run1.a", 1)
	j.Answer("run1.a", 2)
	j.End("run1")
	b.Store(j)
	if _, text := proven(b); !strings.Contains(text, "2 lapsed, 0 missing, 0 dropped; billed 0 tokens, cost in USD 0.000000\n") {
		t.Errorf("got:\n%s", text)
	}
}

// A process was killed while it read the results of t1: the next one reads, and records,
// them once more.
func TestVerifyCountsAnAnswerReadTwiceOnce(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Rows(6, "rows.a")
	j := b.Job()
	j.Start("run1")
	j.Claim("run1.a", 0)
	j.Batch("run1.a", "t1", auditlog.BatchIntent, 6, nil)
	j.Batch("run1.a", "t1", auditlog.BatchSubmitted, 6, nil)
	for seq := uint64(1); seq <= 4; seq++ {
		j.Line("run1.a", "t1", seq, auditlog.CallSuccess)
	}
	j.Row("run1.a", 1, 0, auditlog.SourceCall)
	j.Result("run1.a", 1)
	j.Start("run2")
	j.Claim("run2.a", 1)
	for seq := uint64(6); seq >= 2; seq-- {
		if seq == 4 { // it was kept
			j.Row("run2.a", seq, 0, auditlog.SourceJournal)
			continue
		}
		j.Line("run2.a", "t1", seq, auditlog.CallSuccess)
		j.Row("run2.a", seq, 0, auditlog.SourceCall)
	}
	for seq := uint64(2); seq <= 6; seq++ {
		j.Result("run2.a", seq)
	}
	j.Batch("run2.a", "t1", auditlog.BatchEnded, 6, func(e *auditlog.Batch) { e.Answered, e.Usage = 6, j.Billed("t1") })
	j.End("run2")
	b.Store(j)
	report, text := proven(b)
	if got := report.Batches; got.Calls != 6 || got.CallsAgain != 2 || report.Audit.Calls != 6 || *report.Audit.CostUSD > 0.0061 {
		t.Errorf("want 6 calls, two of them recorded again:\n%s", text)
	}
}

func TestVerifySaysWhichBatchesAreOpen(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Cfg.Window.Rows = 64
	b.Rows(400, "rows.a")
	j := b.Job()
	j.Start("run1")
	j.Claim("run1.a", 0)
	j.Answer("run1.a", 1)
	for i := range 12 {
		token := fmt.Sprintf("t%02d", i)
		j.Batch("run1.a", token, auditlog.BatchIntent, 10, nil)
		if i > 0 {
			j.Batch("run1.a", token, auditlog.BatchSubmitted, 10, nil)
		}
	}
	j.Batch("run1.a", "gone", auditlog.BatchIntent, 10, nil)
	j.Batch("run1.a", "gone", auditlog.BatchAbandoned, 10, func(e *auditlog.Batch) { e.Reason = "absent" })
	for seq := uint64(300); seq > 1; seq-- { // many more rows than the window are answered before the next result
		if seq > 150 { // as rows that are called live are, before any batch has ended
			j.Call("run1.a", seq, 0, auditlog.CallSuccess)
		} else {
			j.Line("run1.a", "t01", seq, auditlog.CallSuccess)
		}
		j.Row("run1.a", seq, 0, auditlog.SourceCall)
	}
	for seq := uint64(2); seq <= 300; seq++ {
		j.Result("run1.a", seq)
	}
	b.Store(j)
	_, text := proven(b)
	for _, want := range []string{
		"note: batches about to be submitted: t00 (10 rows)\n",
		"note: batches submitted and not over yet: batch_t01 (10 rows), batch_t02 (10 rows), batch_t03",
		", batch_t10 (10 rows) and 1 more\n",
		"1 abandoned, 11 open, 1 undecided",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
}

// What a batch that ended a moment ago was answered need not be in the audit yet.
func TestVerifyLetsABatchSettle(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	j := laneJob(b)
	j.Steps[j.Index(isEnd("t2"))].Batch.Time = time.Now()
	j.Remove(lineOf(j, "t2", 19))
	j.Steps[len(j.Steps)-1].Run.Summary = nil // of a process that is running
	j.Remove(j.ResultOf(20))
	j.Remove(j.ResultOf(19))
	b.Store(j)
	if _, text := proven(b); !strings.Contains(text, "note: 1 batches have ended just now") {
		t.Errorf("got:\n%s", text)
	}
}

// Thousands of batches, each of which has one row: few are held, and all are added up.
func TestVerifyForgetsBatchesThatAreOver(t *testing.T) {
	report := newReport("stage")
	v := newBatchVerifier(report)
	const batches = 3 * batchesKept
	for i := range batches {
		head, token, seq := auditlog.Header{Time: time.Unix(int64(i), 0)}, fmt.Sprint("t", i), uint64(i+1) //nolint:gosec // small
		usage := &auditlog.Usage{PromptTokens: 1, TotalTokens: 1, CostUSD: new(0.001)}
		for _, phase := range []auditlog.BatchPhase{auditlog.BatchIntent, auditlog.BatchSubmitted} {
			v.event(&auditlog.Batch{Header: head, Token: token, Phase: phase, Rows: 1})
		}
		call := &auditlog.Call{Header: head, CallID: fmt.Sprintf("%s-%d", token, seq), Lane: auditlog.LaneBatch, Sequence: seq, Status: auditlog.CallSuccess, Usage: usage}
		v.call(call, 0)
		v.event(&auditlog.Batch{Header: head, Token: token, Phase: auditlog.BatchEnded, Rows: 1, Answered: 1, Usage: usage})
		if again := *call; i%100 == 0 && v.call(&again, 0) {
			t.Fatalf("batch %d: the same answer counts twice", i)
		}
		if len(v.records) > batchesKept+1 {
			t.Fatalf("%d batches are held", len(v.records))
		}
	}
	v.finish()
	if s := v.stats; report.Violations.Count > 0 || s.Batches != batches || s.Calls != batches || *s.Tokens != batches || s.Open > 0 {
		t.Errorf("got %+v, %+v", s, report.Violations)
	}
}

func isEnd(token string) func(stagetest.Step) bool {
	return func(s stagetest.Step) bool { return s.Batch != nil && s.Batch.Token == token && s.Batch.Phase.Over() }
}

func lineOf(j *stagetest.Job, token string, seq uint64) int {
	return j.Index(func(s stagetest.Step) bool { return s.Call != nil && s.Call.CallID == fmt.Sprintf("%s-%d", token, seq) })
}

func phaseOf(j *stagetest.Job, token string, phase auditlog.BatchPhase) int {
	return j.Index(func(s stagetest.Step) bool { return s.Batch != nil && s.Batch.Token == token && s.Batch.Phase == phase })
}

// batchFaults are what may be wrong with the batches of laneJob.
var batchFaults = []fault{
	{
		"an intent removed", func(j *stagetest.Job) { j.Remove(phaseOf(j, "t1", auditlog.BatchIntent)) },
		[]string{"VIOLATION batch_differs: partition 0: batch t1 has no event of its intent"},
	},
	{
		"a submission removed", func(j *stagetest.Job) { j.Remove(phaseOf(j, "t2", auditlog.BatchAdopted)) },
		[]string{"batch_differs: partition 0: batch t2 is over, and has no event that it was submitted or adopted"},
	},
	{
		"answers of a batch that was abandoned", func(j *stagetest.Job) {
			j.Remove(phaseOf(j, "t2", auditlog.BatchAdopted))
			j.Steps[j.Index(isEnd("t2"))].Batch.Phase = auditlog.BatchAbandoned
		},
		[]string{"batch_differs: partition 0: batch t2 has 7 call events, and no event that it was submitted or adopted"},
	},
	{"a batch that nothing names", func(j *stagetest.Job) {
		j.Steps = slices.DeleteFunc(j.Steps, func(s stagetest.Step) bool { return s.Batch != nil && s.Batch.Token == "t2" })
	}, []string{"batch_differs: partition 0: batch t2 has 7 call events and no event of its own"}},
	{
		"counts that are not the rows", func(j *stagetest.Job) { j.Steps[j.Index(isEnd("t1"))].Batch.Lapsed-- },
		[]string{"batch_differs: partition 0: batch t1 has 20 rows; 12 are answered, 1 failed, 5 lapsed and 1 missing"},
	},
	{
		"an answer that is not in the end", func(j *stagetest.Job) {
			e := j.Steps[j.Index(isEnd("t1"))].Batch
			e.Answered, e.Lapsed = e.Answered-1, e.Lapsed+1
		},
		[]string{"batch_differs: partition 0: batch t1 has 12 answers and errors, and call events of 13 rows"},
	},
	{"a call event removed", func(j *stagetest.Job) { j.Remove(lineOf(j, "t1", 13)) }, []string{
		"batch_differs: partition 0: batch t1 has 13 answers and errors, of them 0 dropped, and call events of 12 rows",
		"run_summary_differs: run run1: 20 call events, its summary says 21 calls",
	}},
	{"the call event of a result removed", func(j *stagetest.Job) { j.Remove(lineOf(j, "t2", 14)) }, []string{
		"batch_differs: partition 0: batch t2 has 8 answers and errors, of them 1 dropped, and call events of 6 rows",
		"call_event_missing: partition 0: row 14 has 0 call events of run1.a, its row event counts 1 calls",
		"run_summary_differs: run run1: 20 call events, its summary says 21 calls",
	}},
	{
		"a cost that differs", func(j *stagetest.Job) { *j.Steps[j.Index(isEnd("t1"))].Batch.Usage.CostUSD = 0.02 },
		[]string{"batch_differs: partition 0: batch t1 cost in USD 0.012000 in the call events, 0.020000 in its own"},
	},
	{
		"tokens that differ", func(j *stagetest.Job) { j.Steps[j.Index(isEnd("t1"))].Batch.Usage.PromptTokens++ },
		[]string{"batch_differs: partition 0: batch t1 120 prompt tokens in the call events, 121 in its own"},
	},
	{
		"a row event of another answer", func(j *stagetest.Job) { j.Steps[j.Row7()].Row.Usage.CompletionTokens++ },
		[]string{"tokens_differ: partition 0: row 7 was answered by a batch, and no 1 calls of a process add up to its row event: tokens 10+8"},
	},
	{"answers joined to the wrong rows", func(j *stagetest.Job) {
		a, b := j.Steps[lineOf(j, "t1", 3)].Call, j.Steps[lineOf(j, "t1", 4)].Call
		a.CallID, b.CallID = b.CallID, a.CallID
	}, []string{
		"custom_id_differs: partition 0: row 3 was answered by the line t1-4 of batch batch_t1, which is not its own",
		"custom_id_differs: partition 0: row 4 was answered by the line t1-3", "batch_differs: partition 0: batch t1 has 13",
	}},
	{"a row in two batches", func(j *stagetest.Job) {
		j.Line("run1.a", "t2", 12, auditlog.CallSuccess)
		e := j.Steps[j.Index(isEnd("t2"))].Batch
		e.Rows, e.Answered = 9, 9
		j.Steps[len(j.Steps)-2], j.Steps[len(j.Steps)-1] = j.Steps[len(j.Steps)-1], j.Steps[len(j.Steps)-2]
		j.Remove(len(j.Steps) - 1)
	}, []string{"paid_twice: partition 0: row 12 was answered by batch t2, and by another batch before"}},
}

func TestVerifyFindsWhatIsWrongWithBatches(t *testing.T) {
	findsFaults(t, batchFaults, laneJob, verifyAll)
}

// An answer that no row took has a call of its own, and pays no row twice. Of one that an
// older stage dropped there is none.
func TestAnswersThatNoRowTookAddUp(t *testing.T) {
	usage := &auditlog.Usage{PromptTokens: 1, TotalTokens: 1, CostUSD: new(0.5)}
	tests := []struct {
		name            string
		unused, dropped int
		reason          string
		answered        int
		violations      int
	}{
		{"recorded", 2, 2, "", 4, 0},
		{"not recorded, and dropped", 0, 2, "", 4, 0},
		{"neither recorded nor dropped", 0, 0, "", 4, 1},
		{"more calls than answers", 2, 0, "", 3, 1},
		{"read by an earlier owner, and gone since", 2, 0, auditlog.ResultsGone, 0, 0},
	}
	for _, tt := range tests {
		report := newReport("stage")
		v := newBatchVerifier(report)
		head := auditlog.Header{Time: time.Unix(1, 0)}
		for _, phase := range []auditlog.BatchPhase{auditlog.BatchIntent, auditlog.BatchSubmitted} {
			v.event(&auditlog.Batch{Header: head, Token: "t", Phase: phase, Rows: 4})
		}
		end := &auditlog.Batch{Header: head, Token: "t", Phase: auditlog.BatchEnded, Rows: 4, Answered: tt.answered, Missing: 4 - tt.answered, Dropped: tt.dropped, Reason: tt.reason}
		for seq := range uint64(2 + tt.unused) { //nolint:gosec // small
			call := &auditlog.Call{
				Header: head, CallID: fmt.Sprint("t-", seq+1), Lane: auditlog.LaneBatch, Sequence: seq + 1, Status: auditlog.CallSuccess, Usage: usage, Unused: seq >= 2,
			}
			v.call(call, 0)
			end.Usage = end.Usage.Plus(usage)
		}
		v.event(end)
		v.finish()
		if n := report.Violations.Count; n != tt.violations {
			t.Errorf("%s: %d violations, want %d: %+v", tt.name, n, tt.violations, report.Violations)
		}
		if v.paid[0].rows.Add(3) != true {
			t.Errorf("%s: row 3 counts as answered by the batch", tt.name)
		}
	}
}
