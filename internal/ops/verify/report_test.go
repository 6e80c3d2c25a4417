package verify

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

func TestVerifyKnowsWhatNoCallsCost(t *testing.T) {
	var text strings.Builder
	report := newReport("stage")
	report.conclude()
	report.WriteText(&text)
	if !strings.Contains(text.String(), "audit: 0 calls, 0 of them capacity retries, 0 of rows or terms without a result; 0 tokens, cost in USD 0.000000;") {
		t.Error(text.String())
	}
}

func TestVerifyNamesTheFirstViolationsAndCountsTheOthers(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Rows(100, "rows.a")
	j := b.Job()
	j.Claim("run1.a", 0)
	j.Answer("run1.a", 100)
	b.Store(j)
	report, text, code := verifyAll(b)
	if code != codeViolated || report.Violations.Count != 99 || len(report.Violations.First) != violationsKept {
		t.Errorf("got exit code %d, %d violations, %d of them named; want %d, 99, %d", code, report.Violations.Count, len(report.Violations.First), codeViolated, violationsKept)
	}
	if !strings.Contains(text, "VIOLATION lost: and 49 more\n") || !strings.Contains(text, "stage: verify found violations: 99 lost\n") {
		t.Errorf("got:\n%s", text)
	}
}
