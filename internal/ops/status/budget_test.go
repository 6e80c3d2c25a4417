package status

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/llm-stage/stage/auditlog"
)

func TestABudgetReadsAsASentence(t *testing.T) {
	b := Budget{Name: "team", Provider: "openai", Members: 64, Share: .03125, Leader: "run7"}
	for _, tt := range []struct {
		mode    BudgetMode
		members int
		rate    float64
		phase   auditlog.Phase
		text    string
		json    string // of the rate
	}{
		{BudgetMember, 64, 19.96, auditlog.PhaseJoined, "budget team for openai: 64 processes, 20.0 calls/s in all, share 3%, led by run7", "19.96"},
		{BudgetLeader, 1, .3125, auditlog.PhaseLeads, "budget team for openai: 1 process, 0.31 calls/s in all, share 3%", "0.3125"},
		{BudgetLeader, 2, 1234.5, auditlog.PhaseLeads, "budget team for openai: 2 processes, 1234 calls/s in all, share 3%", "1234.5"},
		{BudgetLeader, 2, 0, auditlog.PhaseLeads, "budget team for openai: 2 processes, 0.00 calls/s in all, share 3%", "0"}, // the provider asked to wait
		{BudgetAlone, 1, 5, auditlog.PhaseAlone, "budget team for openai: no other process is heard, so this one goes by its own throttle: 5.00 calls/s", "5"},
		{BudgetAlone, 1, 0, auditlog.PhaseAlone, "budget team for openai: no other process is heard, so this one goes by its own throttle: no limit is known yet", "null"},
		{BudgetAlone, 1, math.Inf(1), auditlog.PhaseAlone, "budget team for openai: no other process is heard, so this one goes by its own throttle: no limit is known yet", "null"},
	} {
		b.Mode, b.Members, b.Rate = tt.mode, tt.members, tt.rate
		phase, facts := b.Event()
		if got := b.Text(); got != tt.text || phase != tt.phase || facts.Mode != string(tt.mode) || facts.Members != tt.members {
			t.Errorf("got %s: %s, with %+v\nwant %s: %s", phase, got, facts, tt.phase, tt.text)
		}
		r := Report{}
		r.AddBudget(b)
		rate, err := json.Marshal(r.Budget[0].Rate)
		if err != nil || string(rate) != tt.json {
			t.Errorf("%s: the rate as JSON is %s, %v, want %s", tt.text, rate, err, tt.json)
		}
		if _, err := json.Marshal(facts); err != nil {
			t.Errorf("%s: %v", tt.text, err)
		}
	}
}
