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
// and what was reported of that. The zero value shares none. [sharing.join] sets the
// budget before Run; only the goroutine of watch uses notes.
type sharing struct {
	*view
	budget *budget.Budget         // nil means that this process throttles by itself
	known  func() []status.Budget // the state at each provider, or nil; tests replace it
	notes  map[string]budgetNote  // by provider; only the goroutine of watch uses it
	record func(e auditlog.Run)
}

// use makes the budget work over another connection.
func (s *sharing) use(nc *nats.Conn) {
	if s.budget != nil {
		s.budget.Use(nc)
	}
}

// all returns the state of the budget at each provider, the first provider first. It is
// nil without STAGE_BUDGET.
func (s *sharing) all() []status.Budget {
	if s.known == nil {
		return nil
	}
	return s.known()
}

// states returns the state of the budget itself.
func (s *sharing) states() (all []status.Budget) {
	for _, b := range s.budget.States() {
		all = append(all, status.Budget{
			Name: b.Name, Provider: b.Provider, Mode: status.BudgetMode(b.Mode), Members: b.Members,
			Share: b.Share, Rate: b.Rate, Leader: b.Leader,
		})
	}
	return all
}

// join joins the budget of STAGE_BUDGET and returns the law and the gates of each target.
// All processes that name the same budget learn together how much the providers allow.
// Targets of one account share its gates: otherwise each would have the whole limit.
func (s *sharing) join(nc *nats.Conn) (laws []pool.Law, gates [][]pool.Gate, err error) {
	cfg := s.Cfg
	s.budget = budget.New(nc, budget.Config{
		Name: string(cfg.Budget.Name), ID: s.runID, Weight: cfg.Budget.Weight,
		Law: lawSettings(cfg), Logger: s.Log,
	})
	s.known = s.states
	own := map[*budget.Account][]pool.Gate{}
	for i := range s.caller.Len() {
		target := s.caller.At(i)
		limits := fleet.Limits{
			RPM: cfg.LLM.RPM, TPM: cfg.LLM.TPM,
			Concurrency: cfg.LLM.MaxConcurrency[target.Provider()],
		}
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

// start starts to share the budget. stop says goodbye to the other processes, so that
// they divide this one's share at once and not after its silence was noticed, and waits.
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
		shared := slices.ContainsFunc(stages,
			func(other *Stage) bool { return other != s && other.Cfg.Budget.Name == name })
		if name != "" && s.Conn.Server != nil && !shared {
			s.Log.Warn(budgetOfOne, slog.String("budget", string(name)))
		}
	}
}

// reportChanges starts to report the changes of the shared budget, until soft ends. After
// that, this process leaves the budget itself, and reports would only be about that. stop
// ends it and waits for it.
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

// budgetNote is what was last recorded of one budget, and when.
type budgetNote struct {
	mode status.BudgetMode // empty while nothing was recorded
	at   time.Time
}

// changed records and logs a budget whose mode is no longer that of the last event. It is
// called with every look, by one goroutine, and makes at most one event in [budgetQuiet]:
// a mode that stays is recorded when that time has passed, a shorter one is not.
//
// For example, a process starts alone at 0 s, and hears the others at 1 s: at 1 s it
// records "member", and never "alone". If it hears nobody, it records "alone" at 5 s. If
// a member loses the others at 60 s for 2 s, the event of 60 s says "alone", and "member"
// follows at 65 s.
func (s *sharing) changed(ctx context.Context, b status.Budget) {
	if b.Mode == status.BudgetMember && b.Leader == s.runID {
		return // it was the leader and has lost its connection: in a moment it is alone
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
		slog.String("budget", b.Name), slog.String("provider", b.Provider),
		slog.Int("members", b.Members), slog.Float64("share", b.Share),
	}
	if facts.Rate != nil {
		attrs = append(attrs, slog.Float64("rate_per_second", tenths(*facts.Rate)))
	}
	switch b.Mode {
	case status.BudgetLeader:
		s.Log.LogAttrs(ctx, slog.LevelInfo, "leading the shared budget", attrs...)
	case status.BudgetMember:
		s.Log.LogAttrs(ctx, slog.LevelInfo, "joined the shared budget",
			append(attrs, slog.String("leader", b.Leader))...)
	case status.BudgetAlone:
		s.Log.LogAttrs(ctx, slog.LevelWarn, "alone in the shared budget: no other process is "+
			"heard, calls go at the rate of the own throttle", attrs...)
	}
}

// explain replaces the throttle or a limit as the reason of a hold by the budget, where
// others share it: this process may only do its part of the whole. A process that is
// alone in the budget goes by its own throttle and limits, and waits for nobody.
func (s *sharing) explain(h *hold.Hold) {
	for _, b := range s.all() {
		if b.Mode != status.BudgetAlone && b.Members > 1 {
			own := string(h.Kind)
			if h.Kind == hold.Limit && h.By != "" {
				own += " (" + h.By + ")"
			}
			h.Kind, h.By = hold.Budget, b.Name
			h.Why = fmt.Sprintf("%s: %.0f%% of what %d processes may do together", own, 100*b.Share,
				b.Members)
			return
		}
	}
}
