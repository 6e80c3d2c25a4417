package consumer

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
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

// A row whose entry got no answer in time is sent again. If the first entry is refused after that, the row waits for the
// answer to the second one, and is not offered a third time.
func TestALateRefusalDoesNotCountForALaterEntry(t *testing.T) {
	sent, late := time.Unix(0, 0), time.Unix(1, 0)
	s := sentEntries{most: 4, link: quietLink(nil)}
	row := new(Row)
	refuse := func(number string) {
		t.Helper()
		refused := &nats.Msg{Data: []byte(`{"error":{"code":400,"err_code":10077,"description":"maximum bytes exceeded"}}`)}
		if stored := s.received(refused, number, late); stored != nil || s.link.problem == "" {
			t.Errorf("entry %s is refused: stored %v, problem %q", number, stored, s.link.problem)
		}
	}
	for range 2 {
		row.journal.entry, row.journal.keepAt = s.add(row, 1000, sent), sent.Add(journalRetry)
	}
	if refuse("1"); row.journal.entry != 2 || row.journal.keepAt != sent.Add(journalRetry) {
		t.Errorf("after the first: it waits for entry %d until %v", row.journal.entry, row.journal.keepAt)
	}
	if refuse("2"); row.journal.entry != 0 || row.journal.keepAt != late.Add(journalRetry) {
		t.Errorf("after the second: it waits for entry %d until %v", row.journal.entry, row.journal.keepAt)
	}
}

// quietLink is the link of a term over a connection, which logs nothing.
func quietLink(nc *nats.Conn) *journalLink {
	stream := keptOfStage()
	stream.connection, stream.cfg.JournalStream = &connection{nc: nc}, "JOURNAL"
	return &journalLink{keptStream: stream, c: &Consumer{log: slog.New(slog.DiscardHandler)}, inbox: "_INBOX.x"}
}
