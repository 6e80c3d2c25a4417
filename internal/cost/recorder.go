package cost

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"

	"github.com/llm-stage/stage/auditlog"
)

// Recorder counts calls and sums the tokens and cost that were reported, by provider and model. A sum of costs of
// which a part is unknown is unknown too; what is known of it is kept beside it. Safe for concurrent use.
type Recorder struct {
	mu     sync.Mutex
	models map[ModelKey]*Spending
	total  Spending
}

// Spending is what calls took.
type Spending struct {
	auditlog.Totals
	KnownUSD float64 // cost of the calls whose cost is known
	Unpriced uint64  // calls that may have been billed at a cost that is not known; if there are any, Usage has no cost
}

func (s *Spending) add(c *auditlog.Call) {
	s.Calls++
	switch { // the sums are ours: nothing is made for a call
	case c.Usage == nil:
	case s.Usage == nil:
		s.Usage = c.Usage.Clone()
	default:
		s.Usage.Add(c.Usage)
	}
	if c.Unpriced() {
		s.Unpriced++
	} else if c.Usage != nil {
		s.KnownUSD += *c.Usage.CostUSD
	}
	if s.Unpriced > 0 && s.Usage != nil {
		s.Usage.CostUSD = nil
	}
}

// clone returns a copy that later calls do not change.
func (s *Spending) clone() Spending {
	c := *s
	c.Usage = s.Usage.Clone()
	return c
}

// Cost prints the cost in USD, or says how much of it is known.
func (s *Spending) Cost() string {
	switch {
	case s.Calls == 0:
		return usd(0)
	case s.Usage == nil, s.Unpriced > 0 && s.KnownUSD == 0:
		return "unknown"
	case s.Unpriced == 0:
		return usd(s.KnownUSD)
	default:
		return fmt.Sprintf("at least %s, unknown of %d calls", usd(s.KnownUSD), s.Unpriced)
	}
}

// usageModelsMax bounds the models that are counted apart, for a row may name any; the rest are other.
const usageModelsMax = 256

// otherModel is the name of all models beyond the bound together.
const otherModel = "other"

type ModelKey struct{ Provider, Model string }

func NewRecorder() *Recorder {
	return &Recorder{models: make(map[ModelKey]*Spending)}
}

// Call counts one call.
func (u *Recorder) Call(c *auditlog.Call) {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := ModelKey{c.Provider, c.Model}
	if _, known := u.models[key]; !known && len(u.models) >= usageModelsMax {
		key.Model = otherModel
	}
	t := u.models[key]
	if t == nil {
		t = new(Spending)
		u.models[key] = t
	}
	t.add(c)
	u.total.add(c)
}

// Totals returns the sums over all models.
func (u *Recorder) Totals() auditlog.Totals { return u.All().Totals }

// All returns the sums over all models, with what is known of their cost.
func (u *Recorder) All() Spending {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.total.clone()
}

// modelSpending is what one model took.
type modelSpending struct {
	ModelKey
	Spending
}

// List returns the sums of each model, ordered by provider and model.
func (u *Recorder) List() []modelSpending {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := make([]modelSpending, 0, len(u.models))
	for key, s := range u.models {
		list = append(list, modelSpending{key, s.clone()})
	}
	slices.SortFunc(list, func(a, b modelSpending) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Model, b.Model))
	})
	return list
}

// ByModel returns the sums as the audit has them, ordered by provider and model.
func (u *Recorder) ByModel() []auditlog.ModelTotals {
	list := []auditlog.ModelTotals{}
	for _, m := range u.List() {
		list = append(list, auditlog.ModelTotals{Provider: m.Provider, Model: m.Model, Totals: m.Totals})
	}
	return list
}

// Log writes one line for each provider and model.
func (u *Recorder) Log(ctx context.Context, log *slog.Logger) {
	for _, m := range u.List() {
		attrs := []slog.Attr{slog.String("provider", m.Provider), slog.String("model", m.Model), slog.Uint64("calls", m.Calls)}
		if m.Usage != nil {
			attrs = append(attrs, slog.Int64("prompt", m.Usage.PromptTokens), slog.Int64("completion", m.Usage.CompletionTokens),
				slog.Int64("total", m.Usage.TotalTokens))
			attrs = appendKnown(attrs, "cached", m.Usage.CachedTokens)
			attrs = appendKnown(attrs, "cache_write", m.Usage.CacheWriteTokens)
			attrs = appendKnown(attrs, "cache_write_1h", m.Usage.CacheWrite1hTokens)
			attrs = appendKnown(attrs, "reasoning", m.Usage.ReasoningTokens)
		}
		attrs = append(attrs, slog.String("cost_usd", m.Cost()))
		log.LogAttrs(ctx, slog.LevelInfo, "token usage", attrs...)
	}
}

func appendKnown(attrs []slog.Attr, name string, tokens *int64) []slog.Attr {
	if tokens == nil {
		return attrs
	}
	return append(attrs, slog.Int64(name, *tokens))
}

func usd(cost float64) string { return strconv.FormatFloat(cost, 'f', 6, 64) }

// CostText prints a cost in USD, or unknown.
func CostText(u *auditlog.Usage) string {
	if u == nil || u.CostUSD == nil {
		return "unknown"
	}
	return usd(*u.CostUSD)
}
