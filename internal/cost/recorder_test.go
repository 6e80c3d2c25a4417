package cost

import (
	"fmt"
	"testing"

	"github.com/llm-stage/stage/auditlog"
)

func TestModelsAreCountedApartUpToABound(t *testing.T) {
	u := NewRecorder()
	for i := range 3 * usageModelsMax {
		u.Call(&auditlog.Call{Provider: "openai", Model: fmt.Sprint("m", i), Status: auditlog.CallSuccess, Usage: &auditlog.Usage{TotalTokens: 1}})
	}
	list := u.List()
	if len(list) != usageModelsMax+1 || u.Totals().Calls != 3*usageModelsMax {
		t.Errorf("got %d models and %d calls", len(list), u.Totals().Calls)
	}
	for _, m := range list {
		if m.Model == otherModel && m.Calls != 2*usageModelsMax {
			t.Errorf("got %d calls of other models, want %d", m.Calls, 2*usageModelsMax)
		}
	}
}
