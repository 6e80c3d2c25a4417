package consumer

import (
	"slices"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
)

const (
	// journalPurge is the shortest time between two purges: one request for all rows
	// emitted since.
	journalPurge = time.Second
	// journalSpare is how many entries of emitted rows may lie behind one that is needed,
	// beside a quarter of the needed ones, before they are removed row by row.
	journalSpare = 256
)

// purges removes entries from the journal that are not needed any more. One request
// removes all entries below a sequence of the stream, which costs next to nothing. Where
// results are not in stream order, one row may wait for hours, and no entry behind its
// own can go that way. Then the entries of emitted rows are removed by their subjects,
// row by row, which takes the server 26 µs each.
//
// A purge by sequence goes no further than this term is known to have owned the
// partition, which one of its own appends has proved:
//
//	A has been fenced by B, and has not noticed.
//	B answers a row, and keeps the reply as entry 8.
//	A keeps a reply as entry 9, and purges everything below 9. Both are killed.
//	C finds nothing of B's in the journal, and pays again.
//
// A purge by subject needs no proof: a row is emitted only where an append has stored its
// result.
type purges struct {
	live         []liveEntry // of this term, as stored; some rows may be emitted
	last         uint64      // highest journal sequence seen
	lastAtAppend uint64      // last, when the group in flight went to the emitter
	knownTo      uint64      // the partition was ours when this one was stored
	below        uint64      // everything below is removed
	next         time.Time   // no purge before
	siftAt       int         // how many entries are too many
}

// liveEntry is an entry of the journal, by its sequence there.
type liveEntry struct{ at, row uint64 }

// begin notes the end of the stream when it was found out what it holds.
func (p *purges) begin(end uint64) { p.last, p.knownTo = max(p.last, end), max(p.knownTo, end) }

// add notes an entry of this term.
func (p *purges) add(at, row uint64) {
	p.live = append(p.live, liveEntry{at, row})
	p.last = max(p.last, at)
}

// proven notes that an append of this term was stored.
func (p *purges) proven() { p.knownTo = max(p.knownTo, p.lastAtAppend) }

// dropFinished forgets the entries at the front whose rows are emitted: the next purge by
// sequence removes them. The entries of earlier terms are in the order of their rows and
// not of their sequences, so either all of them go or none.
func (j *journal) dropFinished() {
	p, e := &j.purges, &j.earlier
	for e.emitted < len(e.refs) && j.rows.finished(e.refs[e.emitted].row) {
		e.emitted++
	}
	if !e.known || e.emitted < len(e.refs) {
		return
	}
	e.refs, e.emitted = nil, 0
	for len(p.live) > 0 && j.rows.finished(p.live[0].row) {
		p.live = p.live[1:]
	}
}

// needed is the journal sequence below which nothing is needed any more. The sequences of
// earlier terms' entries are not known, only that they are lower than the ones of this
// term. So needed is 0 while one of them is needed.
func (j *journal) needed() uint64 {
	p := &j.purges
	switch {
	case !j.earlier.known || len(j.earlier.refs) > 0:
		return 0
	case len(p.live) > 0:
		return min(p.live[0].at, p.knownTo+1)
	default:
		return p.knownTo + 1
	}
}

// stepPurges removes entries that are not needed, and returns when to be called again.
func (j *journal) stepPurges(now time.Time) (next time.Time) {
	p := &j.purges
	if len(p.live)+len(j.earlier.refs) > max(p.siftAt, journalSpare) {
		j.sift()
	}
	if !now.Before(p.next) && j.purge() {
		p.next = now.Add(journalPurge)
	}
	if j.needed() > max(1, p.below) {
		return p.next
	}
	return time.Time{}
}

// purge asks for the removal of the entries that are not needed any more, and reports
// whether there are any.
func (j *journal) purge() bool {
	below := j.needed()
	if below <= max(1, j.purges.below) {
		return false
	}
	msg, err := streams.PurgeRequest(j.link.nc, j.link.cfg.JournalStream, j.link.filter(), below)
	if err == nil {
		err = j.link.send(topicPurge, msg)
	}
	if err != nil {
		j.link.setProblem("purge: " + err.Error())
		return true
	}
	j.purges.below = below
	j.link.c.at("purged")
	return true
}

// sift removes the entries of emitted rows that lie behind one that is needed.
func (j *journal) sift() {
	p, e := &j.purges, &j.earlier
	purged := make(map[uint64]bool)
	unneeded := func(row uint64) bool {
		if !j.rows.finished(row) {
			return false
		}
		if !purged[row] {
			purged[row] = true
			err := streams.AskForPurge(j.link.nc, j.link.cfg.JournalStream, j.link.rowFilter(row))
			if err != nil {
				j.link.setProblem("purge: " + err.Error())
			}
		}
		return true
	}
	e.emitted = 0
	p.live = slices.DeleteFunc(p.live, func(l liveEntry) bool { return unneeded(l.row) })
	e.refs = slices.DeleteFunc(e.refs, func(r keptRef) bool { return unneeded(r.row) })
	left := len(p.live) + len(e.refs)
	p.siftAt = left + left/4 + journalSpare
}

// clear removes the entries that are not needed when the term ends in good order: there
// may be no next owner to remove them.
func (j *journal) clear() {
	if j.link.sub == nil {
		return
	}
	j.dropFinished()
	j.purge()
	j.sift()
}
