package auditlog

import (
	"testing"

	"pgregory.net/rapid"
)

func TestEachRowOfACallHasItsPart(t *testing.T) {
	call := Call{
		StateID: StateID("s", "ROWS", 2, 41), Owner: "run.a", Sequence: 41, CallIndex: 3, CallID: "id",
		Rows: []uint64{41, 42, 50}, CallIndexes: []int{3, 0, 1}, Owners: []string{"run.a", "run.a", "run.b"}, RowTokens: []int64{4, 3, 3},
		Usage: &Usage{PromptTokens: 10, TotalTokens: 10, CostUSD: new(1.)},
	}
	want := []Call{
		{StateID: "s/ROWS/2/41", Owner: "run.a", Sequence: 41, CallIndex: 3},
		{StateID: "s/ROWS/2/42", Owner: "run.a", Sequence: 42, CallIndex: 0},
		{StateID: "s/ROWS/2/50", Owner: "run.b", Sequence: 50, CallIndex: 1},
	}
	check := func(call *Call, items []int) {
		t.Helper()
		i := 0
		for c := range call.EachRow() {
			w := want[i]
			if items != nil {
				w.StateID = ItemStateID(w.StateID, items[i])
				if c.Item == nil || *c.Item != items[i] {
					t.Errorf("row %d: item %v", i, c.Item)
				}
			}
			if c.StateID != w.StateID || c.Owner != w.Owner || c.Sequence != w.Sequence || c.CallIndex != w.CallIndex || c.CallID != "id" || c.Rows != nil {
				t.Errorf("row %d: %+v, want %+v", i, c, w)
			}
			if u := c.Usage; u.PromptTokens != call.RowTokens[i] || u.TotalTokens != call.RowTokens[i] || *u.CostUSD != float64(call.RowTokens[i])/10 {
				t.Errorf("row %d: usage %+v", i, u)
			}
			i++
		}
		if i != len(want) {
			t.Errorf("%d rows", i)
		}
	}
	check(&call, nil)
	call.Items, call.Item, call.StateID = []int{5, 0, 7}, new(5), ItemStateID(call.StateID, 5)
	check(&call, call.Items)

	alone := Call{StateID: "s/ROWS/2/41", Sequence: 41}
	for c := range alone.EachRow() {
		if c != &alone {
			t.Error("the call of one row is itself")
		}
	}
}

// The parts of a call's tokens add up to them, and no part is a token or more away from
// its share.
func TestPartsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int64Range(0, 1<<50).Draw(t, "tokens")
		weights := rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 1, 100).Draw(t, "weights")
		var all float64
		for _, w := range weights {
			all += float64(w)
		}
		var got int64
		for i, part := range Split(tokens, weights) {
			got += part
			share := 1 / float64(len(weights))
			if all > 0 {
				share = float64(weights[i]) / all
			}
			if off := float64(part) - float64(tokens)*share; off <= -1.01 || off >= 1.01 {
				t.Errorf("part %d of %d by %v is %d", i, tokens, weights, part)
			}
		}
		if got != tokens {
			t.Errorf("the parts of %d by %v add up to %d", tokens, weights, got)
		}
	})
}
