package consumer

import "testing"

// Few large replies are asked for at once, and many small ones.
func TestTheBytesOfRepliesOnTheirWayAreBounded(t *testing.T) {
	for _, tt := range []struct{ size, most int }{
		{0, journalFirst}, // nothing is known yet
		{1 << 10, journalGets},
		{journalGetBytes / journalGets, journalGets},
		{1 << 20, 4},
		{8 << 20, 1},
	} {
		g := gets{size: tt.size}
		if got := g.most(); got != tt.most {
			t.Errorf("replies of %d bytes: %d at once, want %d", tt.size, got, tt.most)
		}
		if g.missing = tt.most; g.room() {
			t.Errorf("replies of %d bytes: there is room beside %d", tt.size, tt.most)
		}
	}
}
