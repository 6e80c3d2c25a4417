package metrics

import "sync"

// labelOther replaces the values of a label beyond its bound.
const labelOther = "other"

// boundedLabel bounds the number of values of a label: the first max are kept, all others become labelOther. Set max
// before use. Safe for concurrent use.
type boundedLabel struct {
	max  int
	mu   sync.RWMutex
	seen map[string]struct{}
}

// value returns v, or labelOther.
func (b *boundedLabel) value(v string) string {
	b.mu.RLock()
	_, ok := b.seen[v]
	full := len(b.seen) >= b.max
	b.mu.RUnlock()
	if ok {
		return v
	}
	if full {
		return labelOther
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.seen[v]; !ok {
		if len(b.seen) >= b.max {
			return labelOther
		}
		if b.seen == nil {
			b.seen = make(map[string]struct{})
		}
		b.seen[v] = struct{}{}
	}
	return v
}
