package consumer

import (
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// journalSent is how many entries may wait for their answers at least, where the
	// window has fewer rows.
	journalSent = 256
	// journalSentBytes bounds the bytes of the entries that wait for their answers.
	journalSentBytes = 8 << 20
	// journalRetry is the wait before a reply that the journal did not take is offered
	// again.
	journalRetry = 5 * time.Second
)

// sentEntries sends entries, and has those that have no answer yet. They are bounded: a
// journal that stores fewer entries a second than rows are emitted would pile up the
// entries of emitted rows in the memory of the server, without end.
//
// The stream answers in the order in which entries were sent. So an answer settles the
// entries sent before it, too, whose answers were lost.
type sentEntries struct {
	link   *journalLink
	purges *purges // get the entries that are stored
	owner  string  // the term, which the events in the entries name

	most    int         // how many may wait for their answers
	entries []sentEntry // that wait, oldest first
	first   uint64      // number of the oldest one
	bytes   int         // of all that wait
	last    time.Time   // when the newest one was sent
}

// sentEntry is the entry of a row or of an element, which may be emitted since.
type sentEntry struct {
	row   *Row
	bytes int
}

// full reports whether an entry has to wait for answers. Where none comes for long, the
// oldest entry counts as lost, and another one may go.
func (s *sentEntries) full(now time.Time) bool {
	if len(s.entries) < s.most && s.bytes < journalSentBytes {
		return false
	}
	if now.Before(s.last.Add(journalRetry)) {
		return true
	}
	s.pop()
	return false
}

// hasRoom reports whether there is room for a good many entries.
func (s *sentEntries) hasRoom() bool {
	return len(s.entries) <= s.most/2 && s.bytes <= journalSentBytes/2
}

// add adds an entry and returns its number, which is never 0.
func (s *sentEntries) add(row *Row, bytes int, now time.Time) (number uint64) {
	s.first = max(s.first, 1)
	s.entries = append(s.entries, sentEntry{row, bytes})
	s.bytes, s.last = s.bytes+bytes, now
	return s.first + uint64(len(s.entries)) - 1
}

// answered settles an entry and those before it, and returns its row, or nil where it
// counts as lost.
func (s *sentEntries) answered(number uint64) (row *Row) {
	for len(s.entries) > 0 && s.first <= number {
		row = nil
		if s.first == number {
			row = s.entries[0].row
		}
		s.pop()
	}
	return row
}

func (s *sentEntries) pop() {
	s.bytes -= s.entries[0].bytes
	s.entries[0] = sentEntry{} // else the slice would hold on to the row
	s.entries = s.entries[1:]
	s.first++
}

// send sends the entry of one row, and reports false where it is larger than a message.
// Without an answer in time it is sent again: a second copy does no harm.
func (s *sentEntries) send(row *Row, now time.Time) (fits bool) {
	if row.journal.entry > 0 {
		s.link.setProblem("no answer")
	}
	e := s.link.c.rowEvent(row, s.owner, now)
	msg := s.link.entry(row, &e)
	if msg.Size() > int(s.link.nc.MaxPayload()) {
		return false
	}
	row.journal.entry, row.journal.keepAt = s.add(row, msg.Size(), now), now.Add(journalRetry)
	if err := s.link.send(topicEntry+"."+strconv.FormatUint(row.journal.entry, 36), msg); err != nil {
		row.journal.entry = 0
		s.link.setProblem(err.Error())
	}
	s.link.c.at("kept")
	return true
}

// received takes the answer to an entry, whose number is name. It returns the row if the
// stream has stored the entry. An answer may come late:
//
//	Row 7 is sent as entry 3, and no answer comes in time. It is sent again as entry 9.
//	The journal refuses entry 3 after all. Row 7 still waits for the answer to entry 9,
//	and is not offered a third time.
func (s *sentEntries) received(answer *nats.Msg, name string, now time.Time) (stored *Row) {
	number, err := strconv.ParseUint(name, 36, 64)
	if err != nil {
		return nil
	}
	row := s.answered(number)
	at, err := streams.StoredAt(answer)
	if err != nil {
		if row != nil && row.journal.entry == number {
			row.journal.entry, row.journal.keepAt = 0, now.Add(journalRetry)
		}
		s.link.setProblem(err.Error())
		return nil
	}
	if s.purges.add(at, row); row != nil {
		s.link.setProblem("")
		row.journal.entry, row.journal.stored = 0, true
	}
	return row
}
