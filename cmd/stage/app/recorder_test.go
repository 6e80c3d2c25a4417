package app

import (
	"fmt"
	"testing"

	"github.com/llm-stage/stage/auditlog"
)

func TestModelsAreCountedApartUpToABound(t *testing.T) {
	u := newUsageRecorder()
	for i := range 3 * usageModelsMax {
		u.call(&auditlog.Call{Provider: "openai", Model: fmt.Sprint("m", i), Status: auditlog.CallSuccess, Usage: &auditlog.Usage{TotalTokens: 1}})
	}
	list := u.list()
	if len(list) != usageModelsMax+1 || u.totals().Calls != 3*usageModelsMax {
		t.Errorf("got %d models and %d calls", len(list), u.totals().Calls)
	}
	for _, m := range list {
		if m.model == otherModel && m.Calls != 2*usageModelsMax {
			t.Errorf("got %d calls of other models, want %d", m.Calls, 2*usageModelsMax)
		}
	}
}
