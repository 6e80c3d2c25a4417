package metrics

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/llm-stage/stage/auditlog"
	"github.com/prometheus/client_golang/prometheus"
)

// callKey identifies the series of a call.
type callKey struct {
	provider, model string
	status          auditlog.CallStatus
	target, failure string
	embeds          bool
}

// tokenTypes are the values of the label type of llm_stage_tokens_total.
var tokenTypes = [...]string{"prompt", "completion", "cached", "cache_write", "cache_write_1h", "reasoning"}

// callSeries are the series of the calls of one kind. A series that is a function here is
// created with its first value.
type callSeries struct {
	calls     prometheus.Counter
	duration  prometheus.Observer
	operation func() prometheus.Observer
	tokens    [len(tokenTypes)]func() prometheus.Counter
	cost      func() prometheus.Counter
}

// series returns the series of a call.
func (m *Metrics) series(c *auditlog.Call, target, failure string) *callSeries {
	key := callKey{c.Provider, c.Model, c.Status, target, failure, len(c.Rows) > 0}
	return m.callSeries.get(key, func() (s *callSeries, keep bool) {
		provider, model, status := m.providers.value(key.provider), m.models.value(key.model), string(key.status)
		s = &callSeries{
			calls:    m.calls.WithLabelValues(provider, model, status),
			duration: m.callDuration.WithLabelValues(provider, model, status),
			operation: sync.OnceValue(func() prometheus.Observer {
				return m.operations.WithLabelValues(operationValues(provider, model, target, failure, key.embeds)...)
			}),
			cost: sync.OnceValue(func() prometheus.Counter { return m.cost.WithLabelValues(provider, model) }),
		}
		for i, kind := range tokenTypes {
			s.tokens[i] = sync.OnceValue(func() prometheus.Counter { return m.tokens.WithLabelValues(provider, model, kind) })
		}
		// Keys whose label became "other" are not kept: the cache would grow without bound if
		// each row named a model of its own.
		return s, provider == key.provider && model == key.model
	})
}

// resultKey identifies the counter of a result.
type resultKey struct {
	partition int
	failed    bool
}

// seriesCache finds series without the locks and the hashing of their vectors: each call
// and row needs some, and there are few. The zero value is ready for use. It is safe for
// concurrent use.
type seriesCache[K comparable, V any] struct {
	known atomic.Pointer[map[K]V] // replaced, never changed
	mu    sync.Mutex              // held to replace it
}

// get returns the series of a key. It creates a missing one by series, which also decides
// whether it is kept.
func (c *seriesCache[K, V]) get(key K, series func() (v V, keep bool)) V {
	if known := c.known.Load(); known != nil {
		if v, ok := (*known)[key]; ok {
			return v
		}
	}
	v, keep := series()
	if !keep {
		return v
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	more := map[K]V{key: v}
	if known := c.known.Load(); known != nil {
		maps.Copy(more, *known) // if two goroutines missed the key, the first one's series stays
	}
	c.known.Store(&more)
	return more[key]
}
