package verify

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
)

// TestSumsOfEveryKindOfTokenAreCompared: events of versions that did not record writes to
// a cache have none on either side.
func TestSumsOfEveryKindOfTokenAreCompared(t *testing.T) {
	full := func() *auditlog.Usage {
		return &auditlog.Usage{
			PromptTokens: 9, CompletionTokens: 3, TotalTokens: 12, CachedTokens: new(int64(2)), CacheWriteTokens: new(int64(4)),
			CacheWrite1hTokens: new(int64(1)), ReasoningTokens: new(int64(1)), CostUSD: new(0.5),
		}
	}
	double := full().Plus(full())
	for want, change := range map[string]func(u *auditlog.Usage){
		"":                        func(*auditlog.Usage) {},
		"prompt tokens":           func(u *auditlog.Usage) { u.PromptTokens++ },
		"cached tokens":           func(u *auditlog.Usage) { *u.CachedTokens = 0 },
		"8 cache write tokens":    func(u *auditlog.Usage) { *u.CacheWriteTokens-- },
		"2 cache write 1h tokens": func(u *auditlog.Usage) { u.CacheWrite1hTokens = nil },
		"2 reasoning tokens":      func(u *auditlog.Usage) { *u.ReasoningTokens = 7 },
		"cost in USD":             func(u *auditlog.Usage) { *u.CostUSD = 2 },
	} {
		said := double.Clone()
		change(said)
		got := compareUsage(auditlog.UsageSum{Reported: double}, said)
		if (got == nil) != (want == "") || got != nil && !strings.Contains(got.text, want) {
			t.Errorf("got %+v, want %q", got, want)
		}
	}
	old := &auditlog.Usage{PromptTokens: 1, TotalTokens: 1}
	if got := compareUsage(auditlog.UsageSum{Reported: old}, old.Clone()); got != nil {
		t.Errorf("old events: %+v", got)
	}
}

// TestACallOfUnknownCostMakesTheSumUnknown: the sum of a row, of the run and of a model,
// and what verify expects of them. Events of older versions have the sum of the other
// calls; any other number is wrong.
func TestACallOfUnknownCostMakesTheSumUnknown(t *testing.T) {
	priced := auditlog.Call{Status: auditlog.CallSuccess, StatusCode: 200, Usage: &auditlog.Usage{PromptTokens: 2, TotalTokens: 2, CostUSD: new(0.25)}}
	for name, test := range map[string]struct {
		other auditlog.Call
		known bool
	}{
		"refused":                  {auditlog.Call{Status: auditlog.CallCapacityRetry, StatusCode: 429}, true},
		"refused inside of a 200":  {auditlog.Call{Status: auditlog.CallCapacityRetry, StatusCode: 200}, true},
		"failed":                   {auditlog.Call{Status: auditlog.CallFailure, StatusCode: 500}, true},
		"never sent":               {auditlog.Call{Status: auditlog.CallFailure}, true},
		"failed, reported a cost":  {auditlog.Call{Status: auditlog.CallFailure, StatusCode: 500, Usage: &auditlog.Usage{CostUSD: new(0.0)}}, true},
		"failed, reported no cost": {auditlog.Call{Status: auditlog.CallFailure, StatusCode: 500, Usage: &auditlog.Usage{PromptTokens: 1}}, false},
		"empty reply":              {auditlog.Call{Status: auditlog.CallFailure, StatusCode: 200}, false},
		"cut":                      {auditlog.Call{Status: auditlog.CallUnknown}, false},
		"no usage":                 {auditlog.Call{Status: auditlog.CallSuccess, StatusCode: 200}, false},
		"no price":                 {auditlog.Call{Status: auditlog.CallSuccess, StatusCode: 200, Usage: &auditlog.Usage{PromptTokens: 1}}, false},
	} {
		for _, calls := range [][]*auditlog.Call{{&priced, &test.other}, {&test.other, &priced}} {
			var row auditlog.UsageSum
			run := cost.NewRecorder()
			for _, c := range calls {
				row.Add(c.Usage, c.Unpriced())
				run.Call(c)
			}
			for of, sum := range map[string]*auditlog.Usage{"row": row.Total(), "run": run.All().Usage, "model": run.ByModel()[0].Usage} {
				if known := sum.CostUSD != nil; known != test.known || known && *sum.CostUSD != 0.25 {
					t.Errorf("%s: the %s costs %s, want known %v", name, of, cost.Format(sum), test.known)
				}
				if got := compareUsage(row, sum); got != nil {
					t.Errorf("%s: verify of the %s: %s", name, of, got.text)
				}
			}
			old := row.Reported.Clone()
			if got := compareUsage(row, old); got != nil {
				t.Errorf("%s: verify of an older event: %s", name, got.text)
			}
			if old.CostUSD = new(0.5); compareUsage(row, old) == nil {
				t.Errorf("%s: verify takes 0.5 for 0.25", name)
			}
			if old.CostUSD = nil; (compareUsage(row, old) == nil) == test.known {
				t.Errorf("%s: verify takes an unknown cost: %v", name, test.known)
			}
		}
	}
	if *priced.Usage.CostUSD != 0.25 || priced.Usage.TotalTokens != 2 {
		t.Errorf("the call was changed: %+v", priced.Usage)
	}
}
