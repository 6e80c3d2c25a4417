package lane

import (
	"testing"
	"time"
)

// What is counted decides how many rows are recalled, and the bytes decide whether another batch may gather.
func TestIntakeCountsRowsAndBytes(t *testing.T) {
	now := time.Now()
	in := intake{waiting: make(map[string]*rowSet), coming: make(map[uint64]bool), gathers: make(map[string]*gather)}
	in.most.bytes = 1000
	check := func(what string, gathering, waiting int, bodies int64) {
		t.Helper()
		if g, w := in.count(); g != gathering || w != waiting || in.bodies != bodies {
			t.Errorf("%s: %d gather, %d wait, %d bytes; want %d, %d, %d", what, g, w, in.bodies, gathering, waiting, bodies)
		}
	}
	in.await("m", 1)
	in.await("", 2)
	in.coming[3] = true
	check("two wait, one comes", 0, 3, 0)

	g := newGather("m")
	in.gathers["m"] = g
	one, two := &gathered{seq: 4, size: 10}, &gathered{seq: 5, size: 20}
	in.join(g, one, now)
	in.join(g, two, now)
	check("two gather", 2, 3, 30)

	in.half = &half{gather: newGather("m")}
	in.half.left.add(6)
	in.join(in.half.gather, &gathered{seq: 7, size: 40}, now)
	waiting := &half{gather: newGather("m")}
	waiting.left.add(8)
	in.halves = append(in.halves, waiting)
	check("a half gathers, another waits", 3, 5, 70)

	in.seal(g, []*gathered{one, two}, now)
	check("the bodies of a sealed batch stay in memory", 1, 5, 70)
	in.free([]*gathered{one, two})
	check("until it is created", 1, 5, 40)

	for seq := range uint64(9) {
		in.forget(seq)
	}
	check("all are forgotten", 0, 0, 0)
}
