package consumer

import "time"

const (
	// journalVoid and journalVoidBytes bound the entries on their way that nobody waits for: with so many the journal is
	// too slow for what it is sent.
	journalVoid      = 256
	journalVoidBytes = 8 << 20
)

// journalWay counts the entries that were sent and have no answer yet. Those of open rows are no more than the window,
// but a journal that stores fewer entries a second than rows are emitted would gather those of emitted rows in the memory
// of the server, without end.
//
// It counts on nothing but order: an answer settles the entries sent before it, too, whose answers were lost.
type journalWay struct {
	entries   []wayEntry // oldest first
	first     uint64     // number of the oldest, from 1 on
	void      int        // entries that nobody waits for
	voidBytes int
	sent      time.Time // the last one
}

type wayEntry struct {
	bytes int
	void  bool
}

// full reports whether an entry has to wait for answers. Where none comes, one entry may go at a time: the others may be
// lost.
func (w *journalWay) full(now time.Time) bool {
	return (w.void >= journalVoid || w.voidBytes >= journalVoidBytes) && now.Before(w.sent.Add(journalRetry))
}

// hasRoom reports whether there is room for a good many entries.
func (w *journalWay) hasRoom() bool {
	return w.void <= journalVoid/2 && w.voidBytes <= journalVoidBytes/2
}

// send adds an entry and returns its number.
func (w *journalWay) send(bytes int, now time.Time) uint64 {
	w.first = max(w.first, 1)
	w.entries = append(w.entries, wayEntry{bytes: bytes})
	w.sent = now
	return w.first + uint64(len(w.entries)) - 1
}

// forget notes that nobody waits for an entry any more. It may be settled, or 0 for none.
func (w *journalWay) forget(number uint64) {
	if number < max(w.first, 1) || number-w.first >= uint64(len(w.entries)) {
		return
	}
	if e := &w.entries[number-w.first]; !e.void {
		e.void = true
		w.void++
		w.voidBytes += e.bytes
	}
}

// answered settles an entry and those before it.
func (w *journalWay) answered(number uint64) {
	for len(w.entries) > 0 && w.first <= number {
		if e := w.entries[0]; e.void {
			w.void--
			w.voidBytes -= e.bytes
		}
		w.entries = w.entries[1:]
		w.first++
	}
}
