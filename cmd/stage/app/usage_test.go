package app

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
)

// TestSumsOfEveryKindOfTokenAreCompared: events of versions that did not record writes to a cache have none on either
// side.
func TestSumsOfEveryKindOfTokenAreCompared(t *testing.T) {
	full := func() *auditlog.Usage {
		return &auditlog.Usage{
			PromptTokens: 9, CompletionTokens: 3, TotalTokens: 12, CachedTokens: new(int64(2)), CacheWriteTokens: new(int64(4)),
			CacheWrite1hTokens: new(int64(1)), ReasoningTokens: new(int64(1)), CostUSD: new(0.5),
		}
	}
	double := sumUsage(full(), full())
	for want, change := range map[string]func(u *auditlog.Usage){
		"":                        func(*auditlog.Usage) {},
		"prompt tokens":           func(u *auditlog.Usage) { u.PromptTokens++ },
		"cached tokens":           func(u *auditlog.Usage) { *u.CachedTokens = 0 },
		"8 cache write tokens":    func(u *auditlog.Usage) { *u.CacheWriteTokens-- },
		"2 cache write 1h tokens": func(u *auditlog.Usage) { u.CacheWrite1hTokens = nil },
		"2 reasoning tokens":      func(u *auditlog.Usage) { *u.ReasoningTokens = 7 },
		"cost in USD":             func(u *auditlog.Usage) { *u.CostUSD = 2 },
	} {
		said := cloneUsage(double)
		change(said)
		got := usageDiffers(double, said)
		if (got == nil) != (want == "") || got != nil && !strings.Contains(got.text, want) {
			t.Errorf("got %+v, want %q", got, want)
		}
	}
	old := &auditlog.Usage{PromptTokens: 1, TotalTokens: 1}
	if got := usageDiffers(old, cloneUsage(old)); got != nil {
		t.Errorf("old events: %+v", got)
	}
}
