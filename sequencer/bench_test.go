package sequencer

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// BenchmarkBuffer measures a row's whole way: open, complete, mark, ready, release. A late row takes as long as half a
// window of others, so behind it the rows of its key gather, and leave with a group. One key is stream order, no keys are
// no order. With a slow row the first of each lap finishes last, and the lap fills the span: the mark passes all of it at
// once.
func BenchmarkBuffer(b *testing.B) {
	for _, window := range []int{64, 1024, 16384} {
		for _, keys := range []int{0, 1, 100, 10_000} {
			for _, late := range []int{0, 10, 50} {
				for _, gaps := range []int{0, 50} {
					if keys > 1 && gaps+late > 10 {
						continue
					}
					b.Run(fmt.Sprintf("window=%d/keys=%d/late=%d%%/gaps=%d%%", window, keys, late, gaps), func(b *testing.B) {
						seqs, order := schedule(window, late, gaps)
						benchmark(b, window, keys, seqs, order)
					})
				}
			}
		}
		b.Run(fmt.Sprintf("window=%d/keys=10000/slow", window), func(b *testing.B) {
			seqs, order := schedule(benchSpan/scheduleLaps, 0, 0)
			slow := slices.Index(order, 0)
			order = append(slices.Delete(order, slow, slow+1), 0)
			benchmark(b, window, 10_000, seqs, order)
		})
	}
}

const benchSpan = 65536

func benchmark(b *testing.B, window, keys int, seqs []uint64, order []int) {
	b.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	names, rowKeys := make([]string, max(1, keys)), make([]Key, len(seqs))
	for i := range names {
		names[i] = fmt.Sprintf("tenant-%d", i)
	}
	for i := range rowKeys {
		rowKeys[i] = Key{Own: keys == 0}
		if keys > 0 {
			rowKeys[i].Name = names[rng.IntN(len(names))]
		}
	}
	if keys > 1 {
		rowKeys[0] = Key{Name: "slow"}
	}
	buf := newBuffer[[]byte](b, Limits{Rows: window, Span: benchSpan}, 0)
	reply := make([]byte, 512)
	var base uint64
	lap := func() {
		next := 0
		for _, row := range order {
			for next < len(seqs) && !buf.full(1024) {
				if _, err := buf.Open(base+seqs[next], rowKeys[next], 1024); err != nil {
					b.Fatal(err)
				}
				next++
			}
			if _, err := buf.Complete(base+seqs[row], reply, len(reply)); err != nil {
				b.Fatal(err)
			}
			n := 0
			for range buf.Marks(buf.Len()) {
				_, _ = buf.Ready(n)
				n++
			}
			buf.Release(n)
		}
		base += seqs[len(seqs)-1]
	}
	lap() // grows
	b.ReportAllocs()
	for b.Loop() {
		lap()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(seqs)), "ns/row")
}

// scheduleLaps is how many windows a schedule is long.
const scheduleLaps = 16

// schedule draws the sequences of a lap and the order in which its rows complete.
func schedule(window, late, gaps int) (seqs []uint64, order []int) {
	rng := rand.New(rand.NewPCG(1, 2))
	n := scheduleLaps * window
	seqs, order = make([]uint64, n), make([]int, n)
	done := make([]float64, n)
	var seq uint64
	for i := range n {
		seq++
		if rng.IntN(100) < gaps {
			seq += 1 + rng.Uint64N(8)
		}
		seqs[i], order[i] = seq, i
		done[i] = float64(i) + rng.Float64()*4
		if rng.IntN(100) < late {
			done[i] += float64(window) / 2
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(done[a], done[b]) })
	return seqs, order
}
