package streams

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSubjectFilters(t *testing.T) {
	for _, c := range []struct {
		a, b             string
		covers, overlaps bool
	}{
		{"rows.a", "rows.a", true, true},
		{"rows.a", "rows.b", false, false},
		{"rows.>", "rows.a", true, true},
		{"rows.>", "rows.a.b", true, true},
		{"rows.>", "rows.>", true, true},
		{"rows.>", "rows", false, false},
		{"rows.*", "rows.>", false, true},
		{"rows.*", "rows.a.b", false, false},
		{"rows.*", "rows.*", true, true},
		{"rows.*.x", "rows.a.*", false, true},
		{"rows.*.x", "rows.a.y", false, false},
		{"*.a", "rows.*", false, true},
		{">", "rows.*", true, true},
		{"rows", "rows.a", false, false},
	} {
		if got := covers(c.a, c.b); got != c.covers {
			t.Errorf("covers(%q, %q) = %v, want %v", c.a, c.b, got, c.covers)
		}
		if got := Overlap(c.a, c.b); got != c.overlaps {
			t.Errorf("Overlap(%q, %q) = %v, want %v", c.a, c.b, got, c.overlaps)
		}
		if got := Overlap(c.b, c.a); got != c.overlaps {
			t.Errorf("Overlap(%q, %q) = %v, want %v", c.b, c.a, got, c.overlaps)
		}
	}
}

func TestFiltersOverlapWhenOneSubjectMatchesBoth(t *testing.T) {
	token := rapid.SampledFrom([]string{"a", "b", "*"})
	matches := func(filter, subject []string) bool {
		for i, f := range filter {
			if f == ">" {
				return i < len(subject)
			}
			if i == len(subject) || f != "*" && f != subject[i] {
				return false
			}
		}
		return len(filter) == len(subject)
	}
	var subjects [][]string // every subject of up to four tokens over a, b and one that no filter names
	var grow func(prefix []string)
	grow = func(prefix []string) {
		if len(prefix) > 0 {
			subjects = append(subjects, slices.Clone(prefix))
		}
		if len(prefix) < 4 {
			for _, next := range []string{"a", "b", "c"} {
				grow(append(prefix, next))
			}
		}
	}
	grow(nil)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) []string {
			filter := rapid.SliceOfN(token, 1, 3).Draw(t, label)
			if rapid.Bool().Draw(t, label+" open") {
				filter = append(filter, ">")
			}
			return filter
		}
		a, b := draw("a"), draw("b")
		want := slices.ContainsFunc(subjects, func(s []string) bool { return matches(a, s) && matches(b, s) })
		if got := Overlap(strings.Join(a, "."), strings.Join(b, ".")); got != want {
			t.Fatalf("Overlap(%v, %v): got %t, want %t", a, b, got, want)
		}
	})
}
