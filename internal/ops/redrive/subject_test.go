package redrive

import "testing"

// A load has put its name in place of each wildcard of the input subject, with a number
// where the name alone led to another partition.
func TestALoadsSubjectShowsItsFilter(t *testing.T) {
	const partition = 2
	for _, c := range []struct{ subject, load, want string }{
		{"rows.abc", "abc", "rows.*"},
		{"rows.2.2", "2", "rows.2.*"},
		{"rows.2.abc", "abc", "rows.2.*"},
		{"rows.2.abc-17", "abc", "rows.2.*"},
		{"rows.abc.x.abc", "abc", "rows.*.x.*"},
		{"rows.abc-d", "abc", "rows.abc-d"},
		{"rows.abcd", "abc", "rows.abcd"},
		{"rows.abc-17x", "abc", "rows.abc-17x"},
	} {
		if got := loadFilter(c.subject, c.load, partition); got != c.want {
			t.Errorf("%s of load %s: got %s, want %s", c.subject, c.load, got, c.want)
		}
	}
}

func TestARowOfALoadHasItsNameInTheSubject(t *testing.T) {
	for _, c := range []struct {
		subject, load string
		want          bool
	}{
		{"rows.abc", "abc", true},
		{"rows.2.abc-17", "abc", true},
		{"rows.2.2", "2", true},
		{"rows.abc", "", false},
		{"rows.abc", "ab", false},
		{"rows.abc", "x y", false},
		{"rows.a.b", "a.b", false},
		{"rows.abc", ">", false},
	} {
		if got := isLoaded(c.subject, c.load); got != c.want {
			t.Errorf("%s of load %q: got %v", c.subject, c.load, got)
		}
	}
}
