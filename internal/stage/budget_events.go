package stage

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stopping"
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

// budgets returns what is known of the budget that this process shares, of each provider,
// the first one first; nil without STAGE_BUDGET.
func (s *Stage) budgets() []status.Budget {
	if s.known == nil {
		return nil
	}
	return s.known()
}

// shared returns what s.budget knows.
func (s *Stage) shared() (all []status.Budget) {
	for _, b := range s.budget.States() {
		all = append(all, status.Budget{
			Name: b.Name, Provider: b.Provider, Mode: status.BudgetMode(b.Mode), Members: b.Members, Share: b.Share, Rate: b.Rate, Leader: b.Leader,
		})
	}
	return all
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

// reportBudget starts to report what becomes of the shared budget, until soft ends: who
// leaves it is no news then. stop ends it and waits for it.
func (s *Stage) reportBudget(soft context.Context) (stop func()) {
	if s.Cfg.Budget.Name == "" {
		return func() {}
	}
	return stopping.Background(soft, func(ctx context.Context) { s.watchBudget(soft, ctx) })
}

// watchBudget records each change of the mode in a shared budget, until soft or ctx ends.
func (s *Stage) watchBudget(soft, ctx context.Context) {
	tick := time.NewTicker(budgetLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, b := range s.budgets() {
				s.budgetChanged(ctx, b)
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

// budgetChanged records a budget, and logs it, if its mode is another than that of the
// last event. There is at most one event in [budgetQuiet], so it is called with every
// look: a mode that stays is recorded once that has passed, one that was over before is
// not. One goroutine calls it.
func (s *Stage) budgetChanged(ctx context.Context, b status.Budget) {
	if b.Mode == status.BudgetMember && b.Leader == s.runID {
		return // it led, and has lost its connection: in a moment it is alone
	}
	now := time.Now()
	last, known := s.budgetNotes[b.Provider]
	if !known {
		last.at = now
		if b.Mode != status.BudgetAlone {
			last.at = now.Add(-budgetQuiet)
		}
	}
	first := last.mode == "" && b.Mode != status.BudgetAlone
	if b.Mode != last.mode && (first || now.Sub(last.at) >= budgetQuiet) {
		s.recordBudget(ctx, b, now)
		last = budgetNote{b.Mode, now}
	}
	s.budgetNotes[b.Provider] = last
}

// recordBudget records and logs the present mode.
func (s *Stage) recordBudget(ctx context.Context, b status.Budget, now time.Time) {
	phase, facts := b.Event()
	s.recorder.RecordRun(&auditlog.Run{
		Header: auditlog.Header{Time: now, RunID: s.runID, Stage: s.Cfg.Name, Partition: auditlog.All},
		Phase:  phase, Reason: b.Text(), Budget: facts,
	})
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
