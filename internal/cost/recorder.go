package cost

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// Recorder counts calls and sums the tokens and cost that were reported, by provider and
// model. A sum with an unknown cost in it is unknown; its known part is kept as well.
// Safe for concurrent use. The zero value is not usable.
type Recorder struct {
	mu     sync.Mutex
	models map[ModelKey]*Spending
	total  Spending
}

// Spending is how many calls were made, and the tokens and cost of them together.
type Spending struct {
	auditlog.Totals
	KnownUSD float64       // cost of the calls whose cost is known
	Took     time.Duration // of the live calls, summed; a provider's batch takes nobody's time
	Unpriced uint64        // calls that may have been billed at an unknown cost; if there are any, Usage has no cost
}

// Add counts a call. It keeps nothing of it.
func (s *Spending) Add(c *auditlog.Call) {
	s.Calls++
	if c.Lane == "" {
		s.Took += c.Latency
	}
	switch { // the sums are added to in place: a call allocates nothing
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

// Clone returns a copy that later calls do not change.
func (s *Spending) Clone() Spending {
	c := *s
	c.Usage = s.Usage.Clone()
	return c
}

// Cost returns the cost in USD as text, or how much of it is known.
func (s *Spending) Cost() string {
	switch {
	case s.Unpriced == 0: // also where no call reported usage: each was refused, which costs nothing
		return usd(s.KnownUSD)
	case s.KnownUSD == 0:
		return "unknown"
	default:
		return fmt.Sprintf("at least %s, unknown of %d calls", usd(s.KnownUSD), s.Unpriced)
	}
}

// modelsMax bounds the models that are counted separately, as a row may name any; the
// rest count as [otherModel].
const modelsMax = 256

// otherModel is the name of all models beyond the bound together.
const otherModel = "other"

// ModelKey identifies a model of a provider.
type ModelKey struct{ Provider, Model string }

// NewRecorder returns a recorder without calls.
func NewRecorder() *Recorder {
	return &Recorder{models: make(map[ModelKey]*Spending)}
}

// Call counts one call.
func (r *Recorder) Call(c *auditlog.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := ModelKey{c.Provider, c.Model}
	if _, known := r.models[key]; !known && len(r.models) >= modelsMax {
		key.Model = otherModel
	}
	t := r.models[key]
	if t == nil {
		t = new(Spending)
		r.models[key] = t
	}
	t.Add(c)
	r.total.Add(c)
}

// All returns the sums over all models, with the known part of their cost.
func (r *Recorder) All() Spending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total.Clone()
}

// ModelSpending is the spending on one model.
type ModelSpending struct {
	ModelKey
	Spending
}

// List returns the sums of each model, ordered by provider and model.
func (r *Recorder) List() []ModelSpending {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]ModelSpending, 0, len(r.models))
	for key, s := range r.models {
		list = append(list, ModelSpending{key, s.Clone()})
	}
	slices.SortFunc(list, func(a, b ModelSpending) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Model, b.Model))
	})
	return list
}

// ByModel returns the sums of each model as the audit records them, ordered by provider
// and model.
func (r *Recorder) ByModel() []auditlog.ModelTotals {
	list := []auditlog.ModelTotals{}
	for _, m := range r.List() {
		list = append(list, auditlog.ModelTotals{Provider: m.Provider, Model: m.Model, Totals: m.Totals})
	}
	return list
}

// Log writes one line for each model, ordered by provider and model.
func (r *Recorder) Log(ctx context.Context, log *slog.Logger) {
	for _, m := range r.List() {
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

// appendKnown adds a count of tokens, if it was reported.
func appendKnown(attrs []slog.Attr, name string, tokens *int64) []slog.Attr {
	if tokens == nil {
		return attrs
	}
	return append(attrs, slog.Int64(name, *tokens))
}

// usd returns the cost as text, to a millionth of a dollar.
func usd(cost float64) string { return strconv.FormatFloat(cost, 'f', 6, 64) }

// Format returns the cost in USD as text; unknown where u has none.
func Format(u *auditlog.Usage) string {
	if u == nil || u.CostUSD == nil {
		return "unknown"
	}
	return usd(*u.CostUSD)
}
