package verify

import (
	"fmt"
	"math"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
)

// usageDifference is the first number in which two usages differ.
type usageDifference struct {
	kind violationKind // violationTokens or violationCost
	text string
}

// compareUsage compares the sum of calls with the sum that an event reports. It returns
// nil if they are equal. An unknown number is not 0. If the cost of a call that reported
// no usage is unknown, older versions wrote the sum of the others, which is accepted,
// too.
func compareUsage(sum auditlog.UsageSum, reported *auditlog.Usage) *usageDifference {
	calls := sum.Reported
	if reported != nil && reported.CostUSD == nil {
		calls = sum.Total()
	}
	if calls == nil && reported == nil {
		return nil
	}
	if calls == nil || reported == nil {
		return &usageDifference{violationTokens, fmt.Sprintf("%s in the call events, %s", "tokens "+calls.Tokens(), "tokens "+reported.Tokens())}
	}
	for _, t := range []struct {
		name string
		a, b *int64
	}{
		{"prompt", &calls.PromptTokens, &reported.PromptTokens},
		{"completion", &calls.CompletionTokens, &reported.CompletionTokens},
		{"total", &calls.TotalTokens, &reported.TotalTokens},
		{"cached", calls.CachedTokens, reported.CachedTokens},
		{"cache write", calls.CacheWriteTokens, reported.CacheWriteTokens},
		{"cache write 1h", calls.CacheWrite1hTokens, reported.CacheWrite1hTokens},
		{"reasoning", calls.ReasoningTokens, reported.ReasoningTokens},
	} {
		if (t.a == nil) != (t.b == nil) || t.a != nil && *t.a != *t.b {
			return &usageDifference{violationTokens, fmt.Sprintf("%s %s tokens in the call events, %s", numberText(t.a), t.name, numberText(t.b))}
		}
	}
	a, b := calls.CostUSD, reported.CostUSD
	// Sums that were added in another order differ by so little.
	if (a == nil) != (b == nil) || a != nil && math.Abs(*a-*b) > 1e-9+1e-9*math.Abs(*a) {
		return &usageDifference{violationCost, fmt.Sprintf("cost in USD %s in the call events, %s", cost.Format(calls), cost.Format(reported))}
	}
	return nil
}

func numberText(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// checkParts checks that the parts of the rows that share a call add up to its tokens.
func (f *findings) checkParts(c *auditlog.Call) {
	if len(c.Rows) == 0 || c.Usage == nil {
		return
	}
	var sum int64
	for _, n := range c.RowTokens {
		sum += n
	}
	if sum != c.Usage.PromptTokens || len(c.RowTokens) != len(c.Rows) {
		f.violate(violationTokens, c.Sequence, "call %s of row %d and %d others used %d tokens, the parts of its rows are %d tokens of %d rows",
			c.CallID, c.Sequence, len(c.Rows)-1, c.Usage.PromptTokens, sum, len(c.RowTokens))
	}
}
