package seqset

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSetIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var set Set
		model := make(map[uint64]bool)
		draw := rapid.OneOf(rapid.Uint64Range(0, 20_000), rapid.Uint64Range(65_000, 66_000), rapid.Uint64())
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				seq := draw.Draw(t, "seq")
				if set.Add(seq) == model[seq] {
					t.Fatalf("add %d: it was there: %t", seq, model[seq])
				}
				model[seq] = true
			},
			"add many": func(t *rapid.T) {
				for seq := draw.Draw(t, "from"); len(model) < 30_000; seq += 3 {
					set.Add(seq)
					model[seq] = true
					if seq%5000 < 3 {
						return
					}
				}
			},
			"remove": func(t *rapid.T) {
				seq := draw.Draw(t, "seq")
				if set.Remove(seq) != model[seq] {
					t.Fatalf("remove %d: it was there: %t", seq, model[seq])
				}
				delete(model, seq)
			},
			"": func(t *rapid.T) {
				if seq := draw.Draw(t, "seq"); set.Has(seq) != model[seq] {
					t.Fatalf("has %d: got %t", seq, set.Has(seq))
				}
			},
		})
		var want []uint64
		for seq := range model {
			want = append(want, seq)
		}
		slices.Sort(want)
		if got := slices.Collect(set.All()); !slices.Equal(got, want) {
			t.Fatalf("got %d sequences, want %d", len(got), len(want))
		}
	})
}
