package golden

import "testing"

func TestDifferenceIsTheFirstLineThatDiffers(t *testing.T) {
	for _, tt := range []struct {
		want, got string
		line      int
		was, is   string
	}{
		{"a\nb\n", "a\nc\n", 2, "b", "c"},
		{"a\nb\n", "a\n", 2, "b", ""},
		{"a", "a\n", 1, "a", "a"},
		{"", "a", 1, "", "a"},
	} {
		if line, was, is := difference(tt.want, tt.got); line != tt.line || was != tt.was || is != tt.is {
			t.Errorf("%q and %q: line %d, %q, %q; want %d, %q, %q", tt.want, tt.got, line, was, is, tt.line, tt.was, tt.is)
		}
	}
}
