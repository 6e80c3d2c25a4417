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
// and tokens per minute are limits of the process, so all targets share them. Concurrent
// calls are a limit per provider, so the targets of one provider share that gate: with
// openai=8 and a fallback at openai, 8 calls are in flight at both together.
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
// and the reports of pauses.
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
	// Each has its own throttle: the capacity of one provider does not depend on the
	// others.
	for i := 1; i < len(laws); i++ {
		pc.Fallbacks = append(pc.Fallbacks, pool.Server{Law: laws[i], Gates: gates[i]})
	}
	return pc, nil
}

// throttles returns the law and the gates of each target: those of this process, or with
// STAGE_BUDGET those that it shares.
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

// addSlots adds to each target the gate of the slots that the stages of the process
// share, see [slots]. The gates are cloned, since targets may share a slice of gates.
func (s *Stage) addSlots(gates [][]pool.Gate) {
	wake := func() {
		if e := s.executor; e != nil { // without an executor there is no pool, and nothing waits
			e.Pool.Wake()
		}
	}
	for i := range gates {
		if g := s.opts.slots.gate(s.caller.At(i), wake); g != nil {
			gates[i] = append(slices.Clone(gates[i]), g)
		}
	}
}

// queueLimit returns how many calls wait in the pool. Twice the pool's size keeps the
// pool busy, and 16 more keep a small pool busy.
//
// A row whose elements all fail must not fill the queue, or the pool could not tell
// whether the row or the server is to blame: only calls of other rows show that. So a
// fan-out has room for one whole row more.
func queueLimit(cfg *config.Config) int {
	limit := 2*cfg.Pool.Size + 16
	if cfg.FansOut() {
		limit += cfg.Foreach.Max
	}
	return limit
}

// unkept returns how many replies a crash would lose, so that they would be paid for
// again. With STAGE_JOURNAL_AFTER=0 only calls in flight may be lost, so each reply keeps
// the slot of its call until it is in the journal: a pool of 16 repays at most 16 calls.
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
// servers. The law must know, since others change its share: a queue at the server, for
// example, may be theirs.
type replicaLaw struct {
	*aimd.Adaptive
	others func() int
}

// Next implements [pool.Law]. It first tells the law whether other replicas are there
// now.
func (l *replicaLaw) Next(now time.Time, inFlight int) time.Time {
	l.Share(l.others() > 0)
	return l.Adaptive.Next(now, inFlight)
}

// lawSettings returns the settings of the law, the same for a law of this process and for
// one that is shared.
func lawSettings(cfg *config.Config) aimd.AdaptiveConfig {
	return aimd.AdaptiveConfig{
		Config: aimd.Config{
			MinDelay:     time.Duration(cfg.Pool.MinDispatchDelay),
			MaxDelay:     time.Duration(cfg.Pool.MaxDispatchDelay),
			Multiplier:   cfg.Pool.BackoffMultiplier,
			RecoveryStep: time.Duration(cfg.Pool.RecoveryStep),
		},
		PoolSize: cfg.Pool.Size,
	}
}
