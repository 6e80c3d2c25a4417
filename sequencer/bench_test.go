package sequencer

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// BenchmarkBuffer measures a row's whole way: open, complete, ready, release. A late row takes as long as half a window
// of others, so behind it the buffer fills, and it leaves with a group.
func BenchmarkBuffer(b *testing.B) {
	for _, window := range []int{64, 1024, 16384} {
		for _, late := range []int{0, 10, 50} {
			for _, gaps := range []int{0, 50} {
				b.Run(fmt.Sprintf("window=%d/late=%d%%/gaps=%d%%", window, late, gaps), func(b *testing.B) {
					benchmark(b, window, late, gaps)
				})
			}
		}
	}
}

func benchmark(b *testing.B, window, late, gaps int) {
	b.Helper()
	seqs, order := schedule(window, late, gaps)
	buf := newBuffer[[]byte](b, window, 1<<40)
	reply := make([]byte, 512)
	var base uint64
	b.ReportAllocs()
	for b.Loop() { // one lap of the schedule
		next := 0
		for _, row := range order {
			for next < len(seqs) && !buf.Full(1024) {
				if _, err := buf.Open(base+seqs[next], 1024); err != nil {
					b.Fatal(err)
				}
				next++
			}
			if _, err := buf.Complete(base+seqs[row], reply, len(reply)); err != nil {
				b.Fatal(err)
			}
			n := 0
			for _, ok := buf.Ready(n); ok; _, ok = buf.Ready(n) {
				n++
			}
			buf.Release(n)
		}
		base += seqs[len(seqs)-1]
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(seqs)), "ns/row")
}

// schedule draws the sequences of a lap and the order in which its rows complete.
func schedule(window, late, gaps int) (seqs []uint64, order []int) {
	const laps = 16
	rng := rand.New(rand.NewPCG(1, 2))
	n := laps * window
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
