package stage

import (
	"slices"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/pool"
	"github.com/llm-stage/stage/pool/gate"
)

// newGates returns the gates of each target, for the limits of the configuration. Calls
// and tokens per minute are limits of the process, so all targets share them; concurrent
// calls are a limit per provider.
func newGates(cfg *config.Config, targets *call.Targets) [][]pool.Gate {
	var process []pool.Gate
	if cfg.LLM.RPM > 0 {
		process = append(process, gate.NewCallsPerMinute(cfg.LLM.RPM))
	}
	if cfg.LLM.TPM > 0 {
		process = append(process, gate.NewPerMinute(cfg.LLM.TPM))
	}
	providers := map[string]pool.Gate{}
	gates := make([][]pool.Gate, targets.Len())
	for i := range targets.Len() {
		provider := targets.At(i).Provider()
		gates[i] = append(gates[i], process...)
		limit := cfg.LLM.MaxConcurrency[provider]
		if limit == 0 {
			continue
		}
		if providers[provider] == nil {
			providers[provider] = gate.NewAtMost(limit)
		}
		gates[i] = append(gates[i], providers[provider])
	}
	return gates
}

// poolConfig returns the settings of the pool: the throttle of each target, the limits,
// and what a pause does.
func (s *Stage) poolConfig() (pool.Config, error) {
	cfg := s.Cfg
	laws, gates, err := s.throttles()
	if err != nil {
		return pool.Config{}, err
	}
	pc := pool.Config{
		Size: cfg.Pool.Size, Law: laws[0], Gates: gates[0], RowTimeout: cfg.Pool.RowTimeout,
		ProbeInterval: cfg.Rows.FatalProbeInterval, OutageHold: cfg.Rows.OutageHold,
		Retry:         pool.RetryConfig(cfg.Retry),
		FallbackAfter: cfg.Fallback.After, FailOnFatal: cfg.Rows.OnFatal == "fail",
		// Enough prepared requests to keep the pool busy; the other rows of the window
		// wait unprepared.
		QueueLimit: queueLimit(cfg),
		OnPause:    s.pauses.paused,
		OnResume:   s.pauses.resumed,
		OnShortage: s.pauses.shortage,
	}
	if cfg.Journal.Enabled && cfg.Journal.After == 0 {
		pc.Unkept = s.unkept
	}
	for i := 1; i < len(laws); i++ { // each has its own throttle: the capacity of one provider does not depend on the others
		pc.Fallbacks = append(pc.Fallbacks, pool.Server{Law: laws[i], Gates: gates[i]})
	}
	return pc, nil
}

// throttles returns the law and the gates of each target: of this process, or those that
// it shares (STAGE_BUDGET).
func (s *Stage) throttles() (laws []pool.Law, gates [][]pool.Gate, err error) {
	defer func() { s.addSlots(gates) }()
	if s.Cfg.Budget.Name != "" {
		return s.sharing.join(s.nc)
	}
	for range s.caller.Len() {
		law, err := s.newLaw()
		if err != nil {
			return nil, nil, err
		}
		laws = append(laws, law)
	}
	return laws, newGates(s.Cfg, s.caller.Targets), nil
}

// addSlots adds to the gates of each target that of the slots which the stages of the
// process share. Targets of one account share the slots.
func (s *Stage) addSlots(gates [][]pool.Gate) {
	wake := func() {
		if e := s.executor; e != nil { // else it has no pool yet, and nothing waits
			e.Pool.Wake()
		}
	}
	for i := range gates {
		if g := s.opts.slots.gate(s.caller.At(i), wake); g != nil {
			gates[i] = append(slices.Clone(gates[i]), g)
		}
	}
}

// queueLimit is how many calls wait in the pool. A row whose elements all fail may not
// fill it: only other rows show whether the server is to blame.
func queueLimit(cfg *config.Config) int {
	limit := 2*cfg.Pool.Size + 16
	if cfg.FansOut() {
		limit += cfg.Foreach.Max
	}
	return limit
}

// unkept returns how many replies a crash would lose, so that they are paid for again.
// With STAGE_JOURNAL_AFTER=0 only those of calls in flight may be: each reply keeps the
// slot of its call until it is in the journal.
func (s *Stage) unkept() (n int) {
	for _, c := range s.consumers {
		n += c.Unkept()
	}
	return n
}

// newLaw returns the law of the dispatch rate (STAGE_THROTTLE).
func (s *Stage) newLaw() (pool.Law, error) {
	settings := lawSettings(s.Cfg)
	if s.Cfg.Pool.Throttle == "classic" {
		return aimd.NewClassic(settings.Config)
	}
	law, err := aimd.NewAdaptive(settings)
	if err != nil {
		return nil, err
	}
	return &replicaLaw{Adaptive: law, others: func() int { return s.spread.Others() }}, nil
}

// replicaLaw is the law of a stage that may have other replicas, which call the same
// servers.
type replicaLaw struct {
	*aimd.Adaptive
	others func() int
}

// Next implements [pool.Law].
func (l *replicaLaw) Next(now time.Time, inFlight int) time.Time {
	l.Share(l.others() > 0)
	return l.Adaptive.Next(now, inFlight)
}

func lawSettings(cfg *config.Config) aimd.AdaptiveConfig {
	return aimd.AdaptiveConfig{
		Config: aimd.Config{
			MinDelay: time.Duration(cfg.Pool.MinDispatchDelay), MaxDelay: time.Duration(cfg.Pool.MaxDispatchDelay),
			Multiplier: cfg.Pool.BackoffMultiplier, RecoveryStep: time.Duration(cfg.Pool.RecoveryStep),
		},
		PoolSize: cfg.Pool.Size,
	}
}
