package streams

import "testing"

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
		if got := overlaps(c.a, c.b); got != c.overlaps {
			t.Errorf("overlaps(%q, %q) = %v, want %v", c.a, c.b, got, c.overlaps)
		}
		if got := overlaps(c.b, c.a); got != c.overlaps {
			t.Errorf("overlaps(%q, %q) = %v, want %v", c.b, c.a, got, c.overlaps)
		}
	}
}
