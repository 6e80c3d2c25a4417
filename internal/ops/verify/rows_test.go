package verify

import (
	"slices"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
)

// sharedJob is a job whose calls serve several rows each: one for rows 1 to 6 is refused
// for one of its texts, and its halves are answered.
func sharedJob(b *stagetest.Bench) *stagetest.Job {
	b.T.Helper()
	const owner = "run1.a"
	b.Rows(6, "rows.a")
	j := b.Job()
	j.Start("run1")
	j.Claim(owner, 0)
	shared := func(status auditlog.CallStatus, index int, rows []uint64, tokens []int64) {
		j.Call(owner, rows[0], index, status)
		c := j.Steps[len(j.Steps)-1].Call
		if c.Rows, c.RowTokens, c.Usage = rows, tokens, nil; tokens != nil {
			sum := tokens[0] + tokens[1] + tokens[2]
			c.Usage = &auditlog.Usage{PromptTokens: sum, TotalTokens: sum, CostUSD: new(0.25)}
		}
	}
	shared(auditlog.CallFailure, 0, []uint64{1, 2, 3, 4, 5, 6}, nil)
	shared(auditlog.CallSuccess, 1, []uint64{1, 2, 3}, []int64{1, 2, 5})
	shared(auditlog.CallSuccess, 1, []uint64{4, 5, 6}, []int64{2, 2, 4})
	for seq := range uint64(6) {
		j.Row(owner, seq+1, 0, auditlog.SourceCall)
		event := j.Steps[len(j.Steps)-1].Row
		event.Attempts, event.Usage = 0, nil
		for _, s := range j.Steps {
			if s.Call == nil {
				continue
			}
			for c := range s.Call.EachRow() {
				if c.Sequence == event.Sequence {
					event.Attempts++
					event.Usage = event.Usage.Plus(c.Usage)
				}
			}
		}
		j.Result(owner, seq+1)
	}
	j.End("run1")
	return j
}

// sharedCall is the call that answered rows from this one on.
func sharedCall(j *stagetest.Job, first uint64) int {
	return j.Index(func(s stagetest.Step) bool {
		return s.Call != nil && s.Call.Status == auditlog.CallSuccess && s.Call.Rows[0] == first
	})
}

func TestVerifyAddsUpSharedCalls(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(sharedJob(b))
	if report, text, _ := verifyAll(b); report.Verdict != VerdictProven || report.Audit.Calls != 3 {
		t.Errorf("%d calls\n%s", report.Audit.Calls, text)
	}
}

// sharedFaults are what may be wrong with the calls of sharedJob.
var sharedFaults = []fault{
	{
		"a shared call removed", func(j *stagetest.Job) { j.Remove(sharedCall(j, 1)) },
		[]string{"call_event_missing: partition 0: row 1 has 1 call events", "call_event_missing: partition 0: row 3 has 1 call events", "run_summary_differs: run run1: 2 call events, its summary says 3 calls"},
	},
	{
		"a row left out of its call", func(j *stagetest.Job) {
			c := j.Steps[sharedCall(j, 4)].Call
			c.Rows, c.RowTokens = c.Rows[:2], []int64{4, 4}
		},
		[]string{"call_event_missing: partition 0: row 6 has 1 call events", "tokens_differ: partition 0: row 4"},
	},
	{
		"a row that the call was not for", func(j *stagetest.Job) {
			c := j.Steps[sharedCall(j, 4)].Call
			c.Rows, c.RowTokens, c.CallIndexes = append(slices.Clone(c.Rows), 3), append(slices.Clone(c.RowTokens), 0), []int{1, 1, 1, 2}
		},
		[]string{"call_event_extra: partition 0: row 3 has 3 call events"},
	},
	{
		"tokens moved from one row to another", func(j *stagetest.Job) {
			c := j.Steps[sharedCall(j, 1)].Call
			c.RowTokens = []int64{1, 3, 4}
		},
		[]string{"tokens_differ: partition 0: row 2", "tokens_differ: partition 0: row 3"},
	},
	{
		"parts that don't add up", func(j *stagetest.Job) { j.Steps[sharedCall(j, 1)].Call.RowTokens = []int64{2, 2, 5} },
		[]string{"tokens_differ: partition 0: call 2 of row 1 and 2 others used 8 tokens, the parts of its rows are 9 tokens of 3 rows", "tokens_differ: partition 0: row 1"},
	},
}

func TestVerifyFindsFaultsOfSharedCalls(t *testing.T) {
	findsFaults(t, sharedFaults, sharedJob, verifyAll)
}
