package stage

import (
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/natsconn"
)

// SideBySide is what several stages share that answer the same rows in one process, to be
// compared: the cost up to the ceiling, the calls in flight at one account, and the store
// of replies. Each has a pool and a throttle of its own.
type SideBySide struct {
	// Ledger prices the calls of all of them and adds up their cost, up to the ceiling.
	Ledger *cost.Ledger
	// Replies is the connection to the store of replies (STAGE_DEDUPE=stored). It may
	// lead to another server than the rows. The caller closes it once all stages have
	// ended.
	Replies *natsconn.Conn

	slots *processSlots
}

// NewSideBySide returns the shared parts, by the prices, the ceiling, the pool size and
// the limits per provider of cfg. The error is about the prices.
func NewSideBySide(cfg *config.Config, replies *natsconn.Conn) (*SideBySide, error) {
	prices, err := cfg.Prices()
	if err != nil {
		return nil, err
	}
	slots := newProcessSlots(cfg.Pool.Size)
	slots.providers = cfg.LLM.MaxConcurrency
	return &SideBySide{
		Ledger: cost.NewLedger(prices, cfg.Cost.MaxUSD), Replies: replies,
		slots: slots,
	}, nil
}
