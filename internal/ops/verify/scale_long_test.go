//go:build long

package verify

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/ops/stored"
)

// Batches answer a hundred thousand rows in any order before the first of them has its result.
func TestVerifyHoldsTheRowsOfBatches(t *testing.T) {
	const rows = 100_000
	g := &generatedJob{rows: rows, term: "run1.a", mixed: rows, lane: true}
	claim := stored.Claim{At: 1, Owner: g.term, Version: 1, Input: "ROWS"}
	began := time.Now()
	report, _ := verifyGenerated(t, &generated{rows: rows, claim: claim, result: g.result, input: g.input, events: g.events, batches: rows}, nil, 120<<20)
	if report.Violations.Count > 0 {
		t.Errorf("got %+v", report.Violations)
	}
	t.Log(time.Since(began))
}
