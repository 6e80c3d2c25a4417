package verify

import (
	"strings"
	"testing"
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
