package config

import "fmt"

// BudgetConfig is the rate that the processes of one account share.
type BudgetConfig struct {
	Name   BudgetName `env:"BUDGET" help:"name of an account, [a-z0-9-]{1,64}: all processes on this NATS account with that name share one learned rate per provider, and STAGE_LLM_RPM, _TPM and _MAX_CONCURRENCY; empty: each process for itself"`
	Weight float64    `env:"BUDGET_WEIGHT, default=1" min:"0.01" max:"100" help:"with STAGE_BUDGET: share of this process against others while all want more than there is"`
}

// BudgetName is the name of a shared budget. It is empty where there is none.
type BudgetName string

// budgetPattern matches a name, and also the empty text, which stands for no budget.
const budgetPattern = `^[a-z0-9-]{0,64}$`

// checkBudgetName returns the problem of a name, or "". The name becomes a token of a
// subject, so a dot or a wildcard in it would reach the subjects of other budgets.
func checkBudgetName(name string) string {
	if budgetName.MatchString(name) {
		return ""
	}
	return fmt.Sprintf("%q is not a valid name: use 1 to 64 characters of a-z, 0-9 and -", name)
}

// Subjects returns the wildcard of the subjects on which the processes that share the
// budget talk, over core NATS.
func (n BudgetName) Subjects() string { return BudgetPrefix + string(n) + ".>" }

// BudgetPrefix starts the subjects of all budgets.
const BudgetPrefix = "llm-stage.budget."

// checkBudget reports a throttle whose law can't be shared. The classic law has one delay, and
// no rate that could be divided among processes.
func (c *checker) checkBudget() {
	if c.Budget.Name != "" && c.Pool.Throttle == "classic" && c.none("STAGE_BUDGET") {
		c.add("STAGE_BUDGET",
			"the classic throttle cannot be shared: set STAGE_THROTTLE=adaptive, or unset this")
	}
}

// BudgetOfOne is the warning for a process that shares a budget over a NATS server of its
// own. No other process can reach that server, so nobody shares the budget.
const BudgetOfOne = "STAGE_BUDGET is shared with nobody, since this process runs its own NATS " +
	"server: processes share a budget by stage run with STAGE_NATS_URL"
