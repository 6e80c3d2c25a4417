package verify

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
)

// fail makes an error of the result of a row.
func fail(j *stagetest.Job, seq uint64) {
	j.Steps[j.ResultOf(seq)].Result.Status = auditlog.RowError
	event := j.Index(func(s stagetest.Step) bool { return s.Row != nil && s.Row.Sequence == seq })
	j.Steps[event].Row.Status = auditlog.RowError
	s := j.Steps[len(j.Steps)-1].Run.Summary
	s.RowsSucceeded, s.RowsFailed = s.RowsSucceeded-1, s.RowsFailed+1
}

func TestVerifyAcceptsResultsInPlaceOfFailedOnes(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	j := b.FinishedJob(20)
	fail(j, 3)
	fail(j, 7)
	for seq, place := range map[uint64]string{7: "3", 8: "3", 12: "11"} { // again, and it fails again; again, and it succeeds
		j.Steps[j.ResultOf(seq)].Result.Replaces = place
	}
	fail(j, 11) // and stays failed until row 12
	b.Store(j)
	report, text := proven(b)
	if got := report.Partitions[0].Replacements; got != 3 || !strings.Contains(text, "17 succeeded, 3 failed, 3 of them in place of a failed one;") {
		t.Errorf("got %d replacements:\n%s", got, text)
	}
}
