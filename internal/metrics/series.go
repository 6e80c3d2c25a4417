package metrics

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/llm-stage/stage/auditlog"
	"github.com/prometheus/client_golang/prometheus"
)

// callKey is what the series of a call are named by.
type callKey struct {
	provider, model string
	status          auditlog.CallStatus
}

// callSeries are the series that calls of one kind count in. Those of tokens begin with the first that is told.
type callSeries struct {
	calls                                 prometheus.Counter
	duration                              prometheus.Observer
	prompt, completion, cached, reasoning func() prometheus.Counter
	cacheWrite, cacheWrite1h, cost        func() prometheus.Counter
}

// series returns the series of a call.
func (m *Metrics) series(c *auditlog.Call) *callSeries {
	key := callKey{c.Provider, c.Model, c.Status}
	return m.callSeries.get(key, func() (s *callSeries, keep bool) {
		provider, model, status := m.providers.value(key.provider), m.models.value(key.model), string(key.status)
		tokens := func(kind string) func() prometheus.Counter {
			return sync.OnceValue(func() prometheus.Counter { return m.tokens.WithLabelValues(provider, model, kind) })
		}
		return &callSeries{
			calls:    m.calls.WithLabelValues(provider, model, status),
			duration: m.callDuration.WithLabelValues(provider, model, status),
			prompt:   tokens("prompt"), completion: tokens("completion"), cached: tokens("cached"), reasoning: tokens("reasoning"),
			cacheWrite: tokens("cache_write"), cacheWrite1h: tokens("cache_write_1h"),
			cost: sync.OnceValue(func() prometheus.Counter { return m.cost.WithLabelValues(provider, model) }),
		}, provider == key.provider && model == key.model // else there may be any number of keys
	})
}

// resultKey is what the counter of a result is named by.
type resultKey struct {
	partition int
	failed    bool
}

// seriesCache finds series without the locks and the hashing of the vectors that they belong to: each call and row
// needs some, and there are few. The zero value is ready for use. Safe for concurrent use.
type seriesCache[K comparable, V any] struct {
	known atomic.Pointer[map[K]V] // replaced, never changed
	mu    sync.Mutex              // held to replace it
}

// get returns the series of a key, which it has made and, if it may, keeps.
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
		maps.Copy(more, *known) // another goroutine's comes before ours
	}
	c.known.Store(&more)
	return more[key]
}
