package stage

import (
	"context"

	"github.com/llm-stage/stage/aimd/fleet"
	"github.com/llm-stage/stage/internal/budget"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/pool"
)

// shareBudget joins the account of STAGE_BUDGET and returns the law and the gates of each
// target: what the providers allow is learned together with all processes that name the
// same account.
func (s *Stage) shareBudget() (laws []pool.Law, gates [][]pool.Gate, err error) {
	cfg := s.Cfg
	s.budget = budget.New(s.nc, budget.Config{
		Name: string(cfg.Budget.Name), ID: s.runID, Weight: cfg.Budget.Weight, Law: lawSettings(cfg), Logger: s.Log,
	})
	s.known = s.shared
	own := map[*budget.Account][]pool.Gate{}
	for i := range s.caller.Len() {
		target := s.caller.At(i)
		limits := fleet.Limits{RPM: cfg.LLM.RPM, TPM: cfg.LLM.TPM, Concurrency: cfg.LLM.MaxConcurrency[target.Provider()]}
		account, err := s.budget.Account(target.Account(), limits)
		if err != nil {
			return nil, nil, err
		}
		if own[account] == nil {
			own[account] = account.Gates()
		}
		laws, gates = append(laws, account), append(gates, own[account])
	}
	return laws, gates, nil
}

// startBudget starts to share what the providers allow. stop says goodbye and waits.
func (s *Stage) startBudget(hard context.Context) (stop func()) {
	if s.budget == nil {
		return func() {}
	}
	s.budget.Wake = s.executor.Pool.Wake
	return stopping.Background(hard, s.budget.Run)
}
