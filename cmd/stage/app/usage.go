package app

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"

	"github.com/llm-stage/stage/auditlog"
)

// usageRecorder counts calls and sums the tokens and cost that were told, by provider and model. Unknown stays unknown.
// Safe for concurrent use.
type usageRecorder struct {
	mu     sync.Mutex
	models map[modelKey]*auditlog.Totals
	total  auditlog.Totals
}

type modelKey struct{ provider, model string }

func newUsageRecorder() *usageRecorder {
	return &usageRecorder{models: make(map[modelKey]*auditlog.Totals)}
}

// call counts one call.
func (u *usageRecorder) call(c *auditlog.Call) {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := modelKey{c.Provider, c.Model}
	t := u.models[key]
	if t == nil {
		t = new(auditlog.Totals)
		u.models[key] = t
	}
	t.Calls++
	t.Usage = sumUsage(t.Usage, c.Usage)
	u.total.Calls++
	u.total.Usage = sumUsage(u.total.Usage, c.Usage)
}

// totals returns the sums over all models.
func (u *usageRecorder) totals() auditlog.Totals {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.total
}

// byModel returns the sums, ordered by provider and model.
func (u *usageRecorder) byModel() []auditlog.ModelTotals {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := make([]auditlog.ModelTotals, 0, len(u.models))
	for key, t := range u.models {
		list = append(list, auditlog.ModelTotals{Provider: key.provider, Model: key.model, Totals: *t})
	}
	slices.SortFunc(list, func(a, b auditlog.ModelTotals) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Model, b.Model))
	})
	return list
}

// log writes one line for each provider and model.
func (u *usageRecorder) log(ctx context.Context, log *slog.Logger) {
	for _, m := range u.byModel() {
		attrs := []slog.Attr{slog.String("provider", m.Provider), slog.String("model", m.Model), slog.Uint64("calls", m.Calls)}
		if m.Usage != nil {
			attrs = append(attrs, slog.Int64("prompt", m.Usage.PromptTokens), slog.Int64("completion", m.Usage.CompletionTokens),
				slog.Int64("total", m.Usage.TotalTokens), slog.String("cost_usd", costText(m.Usage)))
		}
		log.LogAttrs(ctx, slog.LevelInfo, "token usage", attrs...)
	}
}

// costText prints a cost in USD, or unknown.
func costText(u *auditlog.Usage) string {
	if u == nil || u.CostUSD == nil {
		return "unknown"
	}
	return strconv.FormatFloat(*u.CostUSD, 'f', 6, 64)
}
