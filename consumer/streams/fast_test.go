package streams

import (
	"testing"
	"time"
)

// A server that is slow for each message, since it syncs it, is better served by atomic
// groups. It is asked carefully whether it still is.
func TestAFastGroupIsForAServerThatIsFastForEachMessage(t *testing.T) {
	for _, c := range []struct {
		name   string
		each   time.Duration
		n      int
		dearer bool
		most   int
	}{
		{"fast", 20 * time.Microsecond, 900, false, AppendMax},
		{"busy", 200 * time.Microsecond, 900, false, AppendMax},
		{"it was slow", 400 * time.Microsecond, 900, false, fastMeasureMin},
		{"slow", time.Millisecond, 900, true, fastMeasureMin},
		{"slow, few messages", time.Millisecond, 10, false, fastMeasureMin},
	} {
		cost := FastCost{cost: Cost(c.each)}
		if got := cost.Dearer(c.n, Cost(GroupCostGuess)); got != c.dearer || cost.Most() != c.most {
			t.Errorf("%s: dearer %v and at most %d, want %v and %d", c.name, got, cost.Most(), c.dearer, c.most)
		}
	}
}

// A small group is mostly on its way: it shows that messages are cheap, not that they are
// dear. Atomic groups let the measure fade.
func TestAFastGroupIsMeasured(t *testing.T) {
	c := NewFastCost()
	c.Add(time.Second, fastMeasureMin-1)
	if c != NewFastCost() {
		t.Errorf("a small slow group counts: %v", time.Duration(c.cost))
	}
	for range 100 {
		c.Add(fastMeasureMin*time.Millisecond, fastMeasureMin)
	}
	slow := c
	for range 10 * fastForget {
		c.Fade()
	}
	if slow.cost < fastSlow || c.cost > fastSlow/2 {
		t.Errorf("after slow groups %v, after 640 atomic ones %v", time.Duration(slow.cost), time.Duration(c.cost))
	}
	slow.Add(10*time.Microsecond, 2)
	if slow.cost > Cost(time.Millisecond) {
		t.Errorf("a small fast group does not count: %v", time.Duration(slow.cost))
	}
}
