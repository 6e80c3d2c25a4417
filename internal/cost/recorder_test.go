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

func TestOnlyACallThatMayHaveBeenBilledMakesTheCostUnknown(t *testing.T) {
	t.Parallel()
	refused := auditlog.Call{Status: auditlog.CallFailure, StatusCode: 401}
	priced := auditlog.Call{Status: auditlog.CallSuccess, Usage: &auditlog.Usage{TotalTokens: 1, CostUSD: new(0.25)}}
	unpriced := auditlog.Call{Status: auditlog.CallSuccess, Usage: &auditlog.Usage{TotalTokens: 1}}
	for _, c := range []struct {
		calls []auditlog.Call
		want  string
	}{
		{nil, "0.000000"},
		{[]auditlog.Call{refused}, "0.000000"},
		{[]auditlog.Call{refused, priced}, "0.250000"},
		{[]auditlog.Call{refused, unpriced}, "unknown"},
		{[]auditlog.Call{priced, unpriced, refused}, "at least 0.250000, unknown of 1 calls"},
	} {
		var s Spending
		for i := range c.calls {
			s.Add(&c.calls[i])
		}
		if got := s.Cost(); got != c.want {
			t.Errorf("%d calls cost %q, want %q", len(c.calls), got, c.want)
		}
	}
}
