package consumer

import (
	"testing"
	"time"
)

// However many rows are emitted meanwhile, no more entries are on their way than may be. Where no answer comes for long,
// one counts as lost for each that is sent.
func TestEntriesOnTheirWayAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	s := sentEntries{most: 4}
	rows := make([]Row, 8)
	for i := range 4 {
		if s.full(now) {
			t.Fatalf("full of %d entries", i)
		}
		if got := s.add(&rows[i], 1000, now); got != uint64(i+1) {
			t.Errorf("entry %d has the number %d", i+1, got)
		}
	}
	if !s.full(now) || s.hasRoom() {
		t.Fatal("not full with 4 entries")
	}
	later := now.Add(journalRetry)
	if s.full(later) {
		t.Fatal("no entry may go although none was answered for long")
	}
	s.add(&rows[4], 1000, later)
	if !s.full(later) {
		t.Error("a second one may go at the same moment")
	}
	if got := s.answered(1); got != nil {
		t.Error("an entry that counted as lost has a row")
	}
	if got := s.answered(4); got != &rows[3] || len(s.entries) != 1 || s.bytes != 1000 || !s.hasRoom() {
		t.Errorf("%d entries of %d bytes are left, want the last one", len(s.entries), s.bytes)
	}
	if got := s.answered(5); got != &rows[4] || s.bytes != 0 {
		t.Errorf("%d bytes are left", s.bytes)
	}
	s.add(&rows[5], journalSentBytes, later)
	if !s.full(later) {
		t.Error("one entry that is too large does not fill it")
	}
}
