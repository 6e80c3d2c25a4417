package consumer

import (
	"testing"
	"time"
)

func TestTheWayOfTheJournalIsFullOfVoidEntriesOnly(t *testing.T) {
	now := time.Unix(0, 0)
	var w journalWay
	for range 10 * journalVoid { // of rows that still wait
		w.send(1000, now)
	}
	if w.full(now) {
		t.Fatal("full of entries that are waited for")
	}
	for number := range uint64(journalVoid - 1) {
		w.forget(number + 1)
		w.forget(number + 1)
	}
	w.forget(0)
	w.forget(1 << 40)
	if w.full(now) {
		t.Fatalf("full with %d void entries, want %d to be the bound", w.void, journalVoid)
	}
	w.forget(journalVoid)
	if !w.full(now) || w.hasRoom() {
		t.Fatalf("not full with %d void entries", w.void)
	}
	if later := now.Add(journalRetry); w.full(later) {
		t.Error("no entry may go although none was answered for long")
	} else if w.send(1000, later); !w.full(later) {
		t.Error("a second one may go at the same moment")
	}
	w.answered(journalVoid / 2)
	if w.full(now) || !w.hasRoom() || w.void != journalVoid/2 {
		t.Errorf("%d void entries after half of them were answered", w.void)
	}
	w.answered(1 << 40) // the others got lost
	if len(w.entries) != 0 || w.void != 0 || w.voidBytes != 0 {
		t.Errorf("%d entries are left, %d void with %d bytes", len(w.entries), w.void, w.voidBytes)
	}
	w.forget(w.send(journalVoidBytes, now))
	if !w.full(now) {
		t.Error("one entry that is too large does not fill it")
	}
}
