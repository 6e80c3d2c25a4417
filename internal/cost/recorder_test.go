package cost

import (
	"fmt"
	"testing"

	"github.com/llm-stage/stage/auditlog"
)

func TestModelsAreCountedApartUpToABound(t *testing.T) {
	u := NewRecorder()
	for i := range 3 * modelsMax {
		u.Call(&auditlog.Call{Provider: "openai", Model: fmt.Sprint("m", i), Status: auditlog.CallSuccess, Usage: &auditlog.Usage{TotalTokens: 1}})
	}
	list := u.List()
	if len(list) != modelsMax+1 || u.All().Calls != 3*modelsMax {
		t.Errorf("got %d models and %d calls", len(list), u.All().Calls)
	}
	for _, m := range list {
		if m.Model == otherModel && m.Calls != 2*modelsMax {
			t.Errorf("got %d calls of other models, want %d", m.Calls, 2*modelsMax)
		}
	}
}
