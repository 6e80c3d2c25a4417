package stage

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/llm-stage/stage/aimd/fleet"
	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/budget"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/llm-stage/stage/pool"
	"github.com/nats-io/nats.go"
)

const (
	// budgetLook is the time between two looks at the shared budget.
	budgetLook = 250 * time.Millisecond
	// budgetQuiet is the shortest time between two events about one budget. A process
	// that starts is alone until it has heard the others, which is no event if it takes
	// no longer.
	budgetQuiet = 5 * time.Second

	budgetOfOne = config.BudgetOfOne // the logger takes constants of this package
)

// sharing is this process's part in the budget that it shares with others (STAGE_BUDGET),
// and what was reported of it. The zero value is that it shares none.
type sharing struct {
	*view
	budget *budget.Budget         // nil means that this process throttles by itself
	known  func() []status.Budget // what is known of each provider, or nil
	notes  map[string]budgetNote  // by provider; one goroutine has it
	record func(e auditlog.Run)
}

// use has the budget work over another connection.
func (s *sharing) use(nc *nats.Conn) {
	if s.budget != nil {
		s.budget.Use(nc)
	}
}

// all returns what is known of the budget, of each provider, the first one first; nil
// without STAGE_BUDGET.
func (s *sharing) all() []status.Budget {
	if s.known == nil {
		return nil
	}
	return s.known()
}

// states returns what the budget itself knows.
func (s *sharing) states() (all []status.Budget) {
	for _, b := range s.budget.States() {
		all = append(all, status.Budget{
			Name: b.Name, Provider: b.Provider, Mode: status.BudgetMode(b.Mode), Members: b.Members, Share: b.Share, Rate: b.Rate, Leader: b.Leader,
		})
	}
	return all
}

// join joins the account of STAGE_BUDGET and returns the law and the gates of each
// target: what the providers allow is learned together with all processes that name the
// same account.
func (s *sharing) join(nc *nats.Conn) (laws []pool.Law, gates [][]pool.Gate, err error) {
	cfg := s.Cfg
	s.budget = budget.New(nc, budget.Config{
		Name: string(cfg.Budget.Name), ID: s.runID, Weight: cfg.Budget.Weight, Law: lawSettings(cfg), Logger: s.Log,
	})
	s.known = s.states
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

// start starts to share what the providers allow. stop says goodbye and waits.
func (s *sharing) start(hard context.Context, wake func()) (stop func()) {
	if s.budget == nil {
		return func() {}
	}
	s.budget.Wake = wake
	return stopping.Background(hard, s.budget.Run)
}

// warnOfOwnServer logs that nobody shares the budget of a stage in a process which runs
// its own server, unless another stage in the process does.
func warnOfOwnServer(stages ...*Stage) {
	for _, s := range stages {
		name := s.Cfg.Budget.Name
		shared := slices.ContainsFunc(stages, func(other *Stage) bool { return other != s && other.Cfg.Budget.Name == name })
		if name != "" && s.Conn.Server != nil && !shared {
			s.Log.Warn(budgetOfOne, slog.String("budget", string(name)))
		}
	}
}

// reportChanges starts to report what becomes of the shared budget, until soft ends: who
// leaves it is no news then. stop ends it and waits for it.
func (s *sharing) reportChanges(soft context.Context) (stop func()) {
	if s.Cfg.Budget.Name == "" {
		return func() {}
	}
	return stopping.Background(soft, func(ctx context.Context) { s.watch(soft, ctx) })
}

// watch records each change of the mode in a shared budget, until soft or ctx ends.
func (s *sharing) watch(soft, ctx context.Context) {
	tick := time.NewTicker(budgetLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, b := range s.all() {
				s.changed(ctx, b)
			}
		case <-soft.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// budgetNote is what was last recorded of one budget.
type budgetNote struct {
	mode status.BudgetMode // empty: nothing
	at   time.Time
}

// changed records a budget, and logs it, if its mode is another than that of the
// last event. There is at most one event in [budgetQuiet], so it is called with every
// look: a mode that stays is recorded once that has passed, one that was over before is
// not. One goroutine calls it.
func (s *sharing) changed(ctx context.Context, b status.Budget) {
	if b.Mode == status.BudgetMember && b.Leader == s.runID {
		return // it led, and has lost its connection: in a moment it is alone
	}
	now := time.Now()
	last, known := s.notes[b.Provider]
	if !known {
		last.at = now
		if b.Mode != status.BudgetAlone {
			last.at = now.Add(-budgetQuiet)
		}
	}
	first := last.mode == "" && b.Mode != status.BudgetAlone
	if b.Mode != last.mode && (first || now.Sub(last.at) >= budgetQuiet) {
		s.report(ctx, b)
		last = budgetNote{b.Mode, now}
	}
	s.notes[b.Provider] = last
}

// report records and logs the present mode.
func (s *sharing) report(ctx context.Context, b status.Budget) {
	phase, facts := b.Event()
	s.record(auditlog.Run{Phase: phase, Reason: b.Text(), Budget: facts})
	attrs := []slog.Attr{
		slog.String("budget", b.Name), slog.String("provider", b.Provider), slog.Int("members", b.Members), slog.Float64("share", b.Share),
	}
	if facts.Rate != nil {
		attrs = append(attrs, slog.Float64("rate_per_second", tenths(*facts.Rate)))
	}
	switch b.Mode {
	case status.BudgetLeader:
		s.Log.LogAttrs(ctx, slog.LevelInfo, "leading the shared budget", attrs...)
	case status.BudgetMember:
		s.Log.LogAttrs(ctx, slog.LevelInfo, "joined the shared budget", append(attrs, slog.String("leader", b.Leader))...)
	case status.BudgetAlone:
		s.Log.LogAttrs(ctx, slog.LevelWarn, "alone in the shared budget: no other process is heard, calls go at the rate of the own throttle", attrs...)
	}
}

// explain gives the throttle or a limit, where others share it, the name of the budget.
// What this process may do is its part of the whole then. A process that is alone in the
// budget goes by its own throttle and limits, and has nobody to wait for.
func (s *sharing) explain(h *hold.Hold) {
	for _, b := range s.all() {
		if b.Mode != status.BudgetAlone && b.Members > 1 {
			own := string(h.Kind)
			if h.Kind == hold.Limit && h.By != "" {
				own += " (" + h.By + ")"
			}
			h.Kind, h.By = hold.Budget, b.Name
			h.Why = fmt.Sprintf("%s: %.0f%% of what %d processes may do together", own, 100*b.Share, b.Members)
			return
		}
	}
}
