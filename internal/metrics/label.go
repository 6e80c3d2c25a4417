package metrics

import "sync"

// labelOther replaces the values of a label beyond its bound.
const labelOther = "other"

// boundedLabel bounds the number of values of a label: the first max are kept, all others become labelOther. Set max
// before use. Safe for concurrent use.
type boundedLabel struct {
	max  int
	mu   sync.Mutex
	seen map[string]bool
}

// value returns v, or labelOther.
func (b *boundedLabel) value(v string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen[v] {
		return v
	}
	if len(b.seen) >= b.max {
		return labelOther
	}
	if b.seen == nil {
		b.seen = make(map[string]bool)
	}
	b.seen[v] = true
	return v
}
