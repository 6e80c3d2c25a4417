package stage

import (
	"context"

	"github.com/llm-stage/stage/aimd/fleet"
	"github.com/llm-stage/stage/internal/budget"
	"github.com/llm-stage/stage/internal/status"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/pool"
)

// share joins the account of STAGE_BUDGET and returns the law and the gates of each target: what the providers allow is
// learned together with all processes that name the same account.
func (s *Stage) share() (laws []pool.Law, gates [][]pool.Gate, err error) {
	cfg := s.Cfg
	s.account = budget.New(s.Conn.NC, budget.Config{
		Name: string(cfg.Budget.Name), ID: s.runID, Weight: cfg.Budget.Weight, Law: lawSettings(cfg), Logger: s.Log,
	})
	s.shared = s.states
	own := map[*budget.Account][]pool.Gate{}
	for i := range s.caller.Len() {
		target := s.caller.At(i)
		limits := fleet.Limits{RPM: cfg.LLM.RPM, TPM: cfg.LLM.TPM, Concurrency: cfg.LLM.MaxConcurrency[target.Provider()]}
		account, err := s.account.Account(target.Account(), limits)
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

// states returns what is known of each provider.
func (s *Stage) states() []status.Budget {
	states := s.account.States()
	all := make([]status.Budget, len(states))
	for i, st := range states {
		all[i] = status.Budget{
			Name: st.Name, Provider: st.Provider, Mode: status.BudgetMode(st.Mode), Members: st.Members, Share: st.Share, Rate: st.Rate,
			Leader: st.Leader,
		}
	}
	return all
}

// startSharing exchanges messages with the others. stop says goodbye and waits.
func (s *Stage) startSharing(hard context.Context) (stop func()) {
	if s.account == nil {
		return func() {}
	}
	s.account.Wake = s.executor.Pool.Wake
	return stopping.Background(hard, s.account.Run)
}
