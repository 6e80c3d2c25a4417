package status

import (
	"fmt"
	"math"

	"github.com/llm-stage/stage/auditlog"
)

// BudgetMode is the part of a process in the budget that it shares for one provider.
type BudgetMode string

// The modes of a budget.
const (
	BudgetLeader BudgetMode = "leader" // it makes the plan
	BudgetMember BudgetMode = "member" // it follows the plan of the leader
	// BudgetAlone hears nobody, not even itself, and follows its own throttle.
	BudgetAlone BudgetMode = "alone"
)

// BudgetModes are all modes.
var BudgetModes = []BudgetMode{BudgetLeader, BudgetMember, BudgetAlone}

// Budget is what a process knows of the budget that it shares with others (STAGE_BUDGET)
// for one provider.
type Budget struct {
	Name     string
	Provider string // the provider, with the host where the base URL is set
	Mode     BudgetMode
	Members  int     // processes that share it, this one included
	Share    float64 // of the whole, at most 1
	// Rate is how many calls per second all processes may make together. While this process
	// is alone it is its own rate, or 0 if its own throttle does not limit it.
	Rate   float64
	Leader string // run id of the process that leads, or empty without others
}

// BudgetReport is a [Budget] as JSON.
type BudgetReport struct {
	Name     string     `json:"name"`
	Provider string     `json:"provider"`
	Mode     BudgetMode `json:"mode"`
	Members  int        `json:"members"`
	Share    float64    `json:"share"`
	Rate     *float64   `json:"rate_per_second"` // null if no limit is known
	Leader   string     `json:"leader"`
}

// known returns the rate, or nil if no limit is known.
func (b *Budget) known() *float64 {
	if math.IsNaN(b.Rate) || math.IsInf(b.Rate, 0) || b.Rate == 0 && b.Mode == BudgetAlone {
		return nil
	}
	return &b.Rate
}

// AddBudget adds what is known of a shared budget.
func (r *Report) AddBudget(b Budget) {
	r.Budget = append(r.Budget, BudgetReport{
		Name: b.Name, Provider: b.Provider, Mode: b.Mode, Members: b.Members, Share: b.Share, Rate: b.known(), Leader: b.Leader,
	})
}

// Event returns the phase of the run event that reports the mode, and the facts.
func (b Budget) Event() (auditlog.Phase, *auditlog.Budget) {
	phase := map[BudgetMode]auditlog.Phase{BudgetLeader: auditlog.PhaseLeads, BudgetMember: auditlog.PhaseJoined}[b.Mode]
	if phase == "" {
		phase = auditlog.PhaseAlone
	}
	return phase, &auditlog.Budget{
		Name: b.Name, Provider: b.Provider, Mode: string(b.Mode), Members: b.Members, Share: b.Share, Rate: b.known(), Leader: b.Leader,
	}
}

// Text describes the budget after the word of its phase: joined, leads, alone.
func (b Budget) Text() string {
	rate := "no limit is known yet"
	if known := b.known(); known != nil {
		rate = perSecond(*known)
	}
	if b.Mode == BudgetAlone {
		return fmt.Sprintf("budget %s for %s: no other process is heard, so this one goes by its own throttle: %s", b.Name, b.Provider, rate)
	}
	text := fmt.Sprintf("budget %s for %s: %s, %s in all, share %.0f%%", b.Name, b.Provider, processes(b.Members), rate, 100*b.Share)
	if b.Mode == BudgetMember {
		text += ", led by " + b.Leader
	}
	return text
}

// perSecond writes a rate of calls with two or three digits.
func perSecond(rate float64) string {
	switch {
	case rate < 10:
		return fmt.Sprintf("%.2f calls/s", rate)
	case rate < 100:
		return fmt.Sprintf("%.1f calls/s", rate)
	}
	return fmt.Sprintf("%.0f calls/s", rate)
}

// processes returns a number of processes as text, as in "2 processes".
func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprint(n, " processes")
}
