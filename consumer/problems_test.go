package consumer

import (
	"slices"
	"testing"
)

// Two problems of one kind keep their places.
func TestTheHoldsOfProblemsKeepTheirOrder(t *testing.T) {
	for range 100 {
		p := problems{why: map[string]problem{
			problemGet: {why: "a row"}, problemUndelivered: {why: "none comes"}, problemPut: {why: "z result"}, problemConnection: {why: "lost"},
		}}
		var got []string
		for _, h := range p.holds(0) {
			got = append(got, h.Why)
		}
		if want := []string{"lost", "none comes", "z result", "a row"}; !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}
