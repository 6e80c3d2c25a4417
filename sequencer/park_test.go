package sequencer_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/llm-stage/stage/sequencer"
)

// parking is what [sequencer.Buffer] and [sequencer.Keyed] have in common here.
type parking interface {
	Complete(seq uint64, v int, bytes int) (uint64, error)
	Ready(i int) (*sequencer.Entry[int], bool)
	Release(n int)
	Park(seq uint64, v int, done bool) error
	Unpark(seq uint64) (*sequencer.Entry[int], bool)
	Readmit(room bool) (*sequencer.Entry[int], bool)
	Len() int
	Parked(seq uint64) *int
	ParkedLen() int
	Bytes() int64
}

// TestParkedRowsKeepTheirPlace parks, answers and takes back rows at random. Rows come out in their order, each once, and
// rows and bytes add up.
func TestParkedRowsKeepTheirPlace(t *testing.T) {
	const rows, window, most = 400, 8, 100
	limits := sequencer.Limits{Rows: window, Bytes: 1 << 20, Parked: most}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		var b parking
		var open func(seq uint64) error
		keyOf := func(seq uint64) string { return string(rune('a' + seq%3)) }
		plain, err := sequencer.New[int](limits)
		if err != nil {
			t.Fatal(err)
		}
		b, open = plain, func(seq uint64) error { _, err := plain.Open(seq, 10); return err }
		byKey := seed%2 == 1
		if byKey {
			keyed, err := sequencer.NewKeyed[int](limits, 1000, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			b, open = keyed, func(seq uint64) error { _, err := keyed.Open(seq, keyOf(seq), 10); return err }
		}
		held, parked := map[uint64]bool{}, map[uint64]bool{} // parked: whether answered
		var out []uint64
		next := uint64(1)
		pick := func(m map[uint64]bool, want func(bool) bool) (uint64, bool) {
			var seqs []uint64
			for seq, v := range m {
				if want(v) {
					seqs = append(seqs, seq)
				}
			}
			if len(seqs) == 0 {
				return 0, false
			}
			slices.Sort(seqs)
			return seqs[random.IntN(len(seqs))], true
		}
		for step := 0; len(out) < rows; step++ {
			if step > 100_000 {
				t.Fatalf("seed %d: stuck after %d rows, %d held, %d parked", seed, len(out), len(held), len(parked))
			}
			switch random.IntN(6) {
			case 0: // a row comes; a part of the window is kept for those that come back
				if next <= rows && b.Len() < window*3/4 && open(next) == nil {
					held[next] = false
					next++
				}
			case 1: // a row is parked, or its value is
				if seq, ok := pick(held, func(done bool) bool { return !done }); ok {
					done := random.IntN(2) == 0
					switch err := b.Park(seq, int(-seq), done); {
					case err == nil:
						delete(held, seq)
						parked[seq] = done
					case !errors.Is(err, sequencer.ErrFull):
						t.Fatalf("seed %d: %v", seed, err)
					}
				}
			case 2: // an owner brings one back
				seq, ok := pick(parked, func(done bool) bool { return !done })
				_, working := pick(held, func(done bool) bool { return !done })
				if _, ready := b.Ready(0); ok && (b.Len() < window || !working && !ready) {
					if v := b.Parked(seq); v == nil || *v != int(-seq) {
						t.Fatalf("seed %d: row %d is not parked", seed, seq)
					}
					if e, ok := b.Unpark(seq); !ok || e.Value != int(-seq) {
						t.Fatalf("seed %d: row %d did not come back", seed, seq)
					}
					delete(parked, seq)
					held[seq] = false
				}
			case 3:
				if e, ok := b.Readmit(b.Len() < window); ok {
					seq := e.Seq
					if !parked[seq] {
						t.Fatalf("seed %d: row %d came back and was not answered", seed, seq)
					}
					delete(parked, seq)
					held[seq] = false
				}
			case 4:
				if seq, ok := pick(held, func(done bool) bool { return !done }); ok {
					if _, err := b.Complete(seq, int(seq), 20); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					held[seq] = true
				}
			case 5:
				if e, ok := b.Ready(0); ok {
					out = append(out, e.Seq)
					delete(held, e.Seq)
					b.Release(1)
				}
			}
			bytes := int64(0)
			for _, done := range held {
				bytes += 10
				if done {
					bytes += 10
				}
			}
			if b.Len() != len(held) || b.ParkedLen() != len(parked) || b.Bytes() != bytes {
				t.Fatalf("seed %d: %d held, %d parked, %d bytes; want %d, %d, %d", seed, b.Len(), b.ParkedLen(), b.Bytes(), len(held), len(parked), bytes)
			}
		}
		last := map[string]uint64{}
		for _, seq := range out {
			key := ""
			if byKey {
				key = keyOf(seq)
			}
			if seq <= last[key] {
				t.Fatalf("seed %d: row %d after %d", seed, seq, last[key])
			}
			last[key] = seq
		}
	}
}

// TestAFullWindowTakesBackTheRowAllWaitFor and no other.
func TestAFullWindowTakesBackTheRowAllWaitFor(t *testing.T) {
	b, err := sequencer.New[int](sequencer.Limits{Rows: 2, Bytes: 100, Parked: 2})
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= 2; seq++ {
		if _, err := b.Open(seq, 1); err != nil {
			t.Fatal(err)
		}
		if err := b.Park(seq, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	if e, ok := b.Readmit(false); !ok || e.Seq != 1 {
		t.Fatalf("took back %v, %t; want row 1", e, ok)
	}
	if e, ok := b.Readmit(false); ok {
		t.Fatalf("took back row %d, which waits for row 1", e.Seq)
	}
	if e, ok := b.Readmit(true); !ok || e.Seq != 2 {
		t.Fatalf("took back %v, %t; want row 2", e, ok)
	}
}
