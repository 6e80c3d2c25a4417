package app

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

// usageRecorder counts calls and sums the tokens and cost that were reported, by provider and model. A sum of costs of
// which a part is unknown is unknown too; what is known of it is kept beside it. Safe for concurrent use.
type usageRecorder struct {
	mu     sync.Mutex
	models map[modelKey]*spending
	total  spending
}

// spending is what calls took.
type spending struct {
	auditlog.Totals
	KnownUSD float64 // cost of the calls whose cost is known
	Unpriced uint64  // calls that may have been billed at a cost that is not known; if there are any, Usage has no cost
}

func (s *spending) add(c *auditlog.Call) {
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
func (s *spending) clone() spending {
	c := *s
	c.Usage = s.Usage.Clone()
	return c
}

// cost prints the cost in USD, or says how much of it is known.
func (s *spending) cost() string {
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

type modelKey struct{ provider, model string }

func newUsageRecorder() *usageRecorder {
	return &usageRecorder{models: make(map[modelKey]*spending)}
}

// call counts one call.
func (u *usageRecorder) call(c *auditlog.Call) {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := modelKey{c.Provider, c.Model}
	if _, known := u.models[key]; !known && len(u.models) >= usageModelsMax {
		key.model = otherModel
	}
	t := u.models[key]
	if t == nil {
		t = new(spending)
		u.models[key] = t
	}
	t.add(c)
	u.total.add(c)
}

// totals returns the sums over all models.
func (u *usageRecorder) totals() auditlog.Totals { return u.all().Totals }

// all returns the sums over all models, with what is known of their cost.
func (u *usageRecorder) all() spending {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.total.clone()
}

// modelSpending is what one model took.
type modelSpending struct {
	modelKey
	spending
}

// list returns the sums of each model, ordered by provider and model.
func (u *usageRecorder) list() []modelSpending {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := make([]modelSpending, 0, len(u.models))
	for key, s := range u.models {
		list = append(list, modelSpending{key, s.clone()})
	}
	slices.SortFunc(list, func(a, b modelSpending) int {
		return cmp.Or(cmp.Compare(a.provider, b.provider), cmp.Compare(a.model, b.model))
	})
	return list
}

// byModel returns the sums as the audit has them, ordered by provider and model.
func (u *usageRecorder) byModel() []auditlog.ModelTotals {
	list := []auditlog.ModelTotals{}
	for _, m := range u.list() {
		list = append(list, auditlog.ModelTotals{Provider: m.provider, Model: m.model, Totals: m.Totals})
	}
	return list
}

// log writes one line for each provider and model.
func (u *usageRecorder) log(ctx context.Context, log *slog.Logger) {
	for _, m := range u.list() {
		attrs := []slog.Attr{slog.String("provider", m.provider), slog.String("model", m.model), slog.Uint64("calls", m.Calls)}
		if m.Usage != nil {
			attrs = append(attrs, slog.Int64("prompt", m.Usage.PromptTokens), slog.Int64("completion", m.Usage.CompletionTokens),
				slog.Int64("total", m.Usage.TotalTokens))
			attrs = appendKnown(attrs, "cached", m.Usage.CachedTokens)
			attrs = appendKnown(attrs, "cache_write", m.Usage.CacheWriteTokens)
			attrs = appendKnown(attrs, "cache_write_1h", m.Usage.CacheWrite1hTokens)
			attrs = appendKnown(attrs, "reasoning", m.Usage.ReasoningTokens)
		}
		attrs = append(attrs, slog.String("cost_usd", m.cost()))
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

// costText prints a cost in USD, or unknown.
func costText(u *auditlog.Usage) string {
	if u == nil || u.CostUSD == nil {
		return "unknown"
	}
	return usd(*u.CostUSD)
}
