package stage

import (
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/natsconn"
)

// SideBySide is what several stages have in common that answer the same rows in one
// process, to be compared: what they spend together, the calls in flight at one account,
// and the store of replies. Each has a pool and a throttle of its own.
type SideBySide struct {
	// Ledger prices the calls of all of them and adds up their cost, up to the ceiling.
	Ledger *cost.Ledger
	// Replies is where replies are kept beyond their calls (STAGE_DEDUPE=stored). It may be
	// another server than that of the rows. The caller closes it once all stages have ended.
	Replies *natsconn.Conn

	slots *processSlots
}

// NewSideBySide returns what stages have in common by the prices, the ceiling, the pool
// size and the limits per provider of cfg. The error is about the prices.
func NewSideBySide(cfg *config.Config, replies *natsconn.Conn) (*SideBySide, error) {
	prices, err := cfg.Cost.Prices(cfg.Embeds())
	if err != nil {
		return nil, err
	}
	slots := newProcessSlots(cfg.Pool.Size)
	slots.providers = cfg.LLM.MaxConcurrency
	return &SideBySide{Ledger: cost.NewLedger(prices, cfg.Cost.MaxUSD), Replies: replies, slots: slots}, nil
}
