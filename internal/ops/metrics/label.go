package metrics

import (
	"sync"
	"unicode/utf8"
)

// labelOther replaces the values of a label beyond its bound.
const labelOther = "other"

// labelBytesMax is the longest value of a label: a row may name a model of any length.
const labelBytesMax = 200

// boundedLabel bounds the values of a label: the first max are kept, all others become
// labelOther, and so do those that are longer than labelBytesMax or not UTF-8, for which
// the Prometheus library panics. max must be set before use. It is safe for concurrent use.
type boundedLabel struct {
	max  int
	mu   sync.Mutex
	seen map[string]bool
}

// value returns v, or labelOther.
func (b *boundedLabel) value(v string) string {
	if len(v) > labelBytesMax || !utf8.ValidString(v) {
		return labelOther
	}
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
