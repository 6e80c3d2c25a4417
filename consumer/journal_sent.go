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

// sentEntries are the entries that were sent and have no answer yet. They are bounded: a
// journal that stores fewer entries a second than rows are emitted would pile up the
// entries of emitted rows in the memory of the server, without end.
//
// The stream answers in the order in which entries were sent. So an answer settles the
// entries sent before it, too, whose answers were lost.
type sentEntries struct {
	most    int
	entries []sentEntry // oldest first
	first   uint64      // number of the oldest one
	bytes   int
	last    time.Time // when the newest one was sent
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

// keep sends the entry of one row. Without an answer in time it is sent again: a second
// copy does no harm.
func (j *journal) keep(row *Row, now time.Time) {
	if row.journal.entry > 0 {
		j.link.setProblem("no answer")
	}
	e := j.link.c.rowEvent(row, j.owner, now)
	msg := j.link.entry(row, &e)
	if msg.Size() > int(j.link.c.nc.MaxPayload()) {
		if j.bodies.stowForJournal(row, now) {
			return
		}
		j.unkept.settle(row)
		j.lane.keptNow(row)
		return
	}
	row.journal.entry, row.journal.keepAt = j.sent.add(row, msg.Size(), now), now.Add(journalRetry)
	if err := j.link.send(topicEntry+"."+strconv.FormatUint(row.journal.entry, 36), msg); err != nil {
		row.journal.entry = 0
		j.link.setProblem(err.Error())
	}
	j.link.c.at("kept")
}

// stored handles the answer to an entry.
func (j *journal) stored(answer *nats.Msg, name string, now time.Time) {
	number, err := strconv.ParseUint(name, 36, 64)
	if err != nil {
		return
	}
	row := j.sent.answered(number)
	if j.unkept.blocked && j.sent.hasRoom() { // a good many: each look goes through all that wait
		j.unkept.next = now
	}
	at, err := streams.StoredAt(answer)
	switch {
	case err != nil:
		if row != nil && row.journal.entry == number {
			row.journal.entry, row.journal.keepAt = 0, now.Add(journalRetry)
		}
		j.link.setProblem(err.Error())
		return
	case row == nil: // it counted as lost, and its row's reply is kept again
		j.purges.add(at, nil)
		return
	}
	j.link.setProblem("")
	j.purges.add(at, row)
	row.journal.entry, row.journal.stored = 0, true
	if j.unkept.has(row) {
		j.unkept.settle(row)
		j.lane.keptNow(row)
	}
}
