package fleet

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestDivide(t *testing.T) {
	all := math.Inf(1)
	for name, c := range map[string]struct {
		rate   float64
		claims []claim
		want   []float64
	}{
		"one has it all":              {10, []claim{{1, 0}}, []float64{1}},
		"all hungry":                  {10, []claim{{1, all}, {1, all}}, []float64{0.5, 0.5}},
		"by weight":                   {10, []claim{{1, all}, {3, all}}, []float64{0.25, 0.75}},
		"what one does not want":      {10, []claim{{1, 2}, {1, all}, {1, all}}, []float64{0.2, 0.4, 0.4}},
		"less than all want":          {10, []claim{{1, 2}, {1, 2}}, []float64{0.5, 0.5}},
		"a heavy one that wants less": {10, []claim{{9, 1}, {1, all}}, []float64{0.1, 0.9}},
		"the least":                   {100, []claim{{1, 0}, {1, all}}, []float64{0.015, 0.985}},
	} {
		got := divide(c.rate, c.claims)
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 1e-9 {
				t.Errorf("%s: shares are %v, want %v", name, got, c.want)
				break
			}
		}
	}
}

func drawClaims(t *rapid.T) []claim {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) claim {
		c := claim{weight: rapid.Float64Range(weightLeast, weightMost).Draw(t, "weight"), want: rapid.Float64Range(0, 1000).Draw(t, "want")}
		if rapid.Bool().Draw(t, "hungry") {
			c.want = math.Inf(1)
		}
		return c
	}), 1, 30).Draw(t, "claims")
}

// Max-min fairness: whoever gets less than it wants gets no less for its weight than any other that takes from it.
func TestDivideIsMaxMinFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate, claims := rapid.Float64Range(0.01, 10_000).Draw(t, "rate"), drawClaims(t)
		shares := divide(rate, claims)
		sum, weights, wanted := 0.0, 0.0, 0.0
		for i, c := range claims {
			sum += shares[i]
			weights += c.weight
			wanted += c.want
		}
		if math.Abs(sum-1) > 1e-6 {
			t.Fatalf("the shares add up to %v", sum)
		}
		for i, c := range claims {
			got := shares[i] * rate
			if least := idleShare * rate * c.weight / weights; got < least*(1-1e-6) {
				t.Fatalf("claim %d gets %v, less than the least of %v", i, got, least)
			}
			if got >= c.want*(1-1e-6) {
				continue
			}
			for j, other := range claims {
				if its := shares[j] * rate; its/other.weight > got/c.weight*(1+1e-6) && its > idleShare*rate*other.weight/weights*(1+1e-6) {
					t.Fatalf("claim %d gets %v of %v for a weight of %v, and claim %d %v for %v", i, got, c.want, c.weight, j, its, other.weight)
				}
			}
		}
	})
}

func TestSpaceSpreadsTheBusy(t *testing.T) {
	if next := space([]float64{0.25, 0.25, 0.25, 0.25}, []float64{3, 0.1, 0.2, 0.3}); !slices.Equal(next, []float64{4, 1, 2, 3}) {
		t.Errorf("four equal members have their turns at %v, want one after the other, in their order", next)
	}
	if next := space([]float64{0.5, 0.25, 0.125, 0.125}, []float64{2, 1, 8, 0.5}); next[0] != 2 || next[1] != 1 || next[2] > 8 || next[3] > 4 {
		t.Errorf("turns at %v: those that are alone with their share keep theirs, and two that have the same are a half apart", next)
	}
	weighted := []claim{{1, math.Inf(1)}, {4, math.Inf(1)}, {1, math.Inf(1)}, {4, math.Inf(1)}, {2, math.Inf(1)}, {2, math.Inf(1)}}
	shares := divide(10, weighted)
	next := space(shares, []float64{14, 3.5, 14, 3.5, 7, 7}) // all at once
	for from := 0.0; from < 28; from += 0.5 {
		n := 0
		for i, s := range shares {
			for at := next[i]; at < from+2; at += 1 / s {
				if at >= from {
					n++
				}
			}
		}
		if n > 4 {
			t.Errorf("%d turns within 2 from turn %g on, of members that have them at %v", n, from, next)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		shares := divide(10, drawClaims(t))
		due := make([]float64, len(shares))
		for i, s := range shares {
			due[i] = rapid.Float64Range(0, 1).Draw(t, "due") / s
		}
		for i, next := range space(shares, due) {
			if next < 0 || next > 1/shares[i]+1e-9 {
				t.Fatalf("a member with a share of %v has its next turn at %v", shares[i], next)
			}
		}
	})
}

// Whatever was granted before, the calls in flight never exceed the limit.
func TestAllotKeepsTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, claims := rapid.IntRange(1, 40).Draw(t, "limit"), drawClaims(t)
		held, rank := make([]int, len(claims)), make([]float64, len(claims))
		left := limit
		for i := range held {
			held[i] = rapid.IntRange(0, left).Draw(t, "held")
			left -= held[i]
			rank[i] = rapid.Float64Range(-9, 9).Draw(t, "rank")
		}
		slots := allot(limit, claims, held, rank)
		may := 0
		for i, n := range slots {
			if n < 0 {
				t.Fatalf("%d slots", n)
			}
			may += max(n, held[i])
		}
		if may > limit {
			t.Fatalf("%d calls may be in flight, limit %d: slots %v, held %v", may, limit, slots, held)
		}
		if sum(held) == 0 && sum(slots) < min(limit, len(claims)) {
			t.Fatalf("%d slots of %d go to %d claims", sum(slots), limit, len(claims))
		}
	})
}

func sum(list []int) (n int) {
	for _, x := range list {
		n += x
	}
	return n
}
