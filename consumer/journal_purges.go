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
	link     *journalLink
	earlier  *earlierTerms
	finished func(seq uint64) bool // whether a row is emitted, see [window.finished]

	live         []liveEntry // of this term, in the order of the stream; some rows may be emitted
	last         uint64      // highest journal sequence seen
	lastAtAppend uint64      // last, when the group in flight went to the emitter
	below        uint64      // a purge was asked for of everything below
	next         time.Time   // no purge before
	siftAt       int         // how many entries are too many
	// knownTo is a sequence up to which every entry is known, in live or in earlier: the
	// subjects were read when it was stored, or the partition was ours then.
	knownTo uint64
}

// liveEntry is an entry of the journal, by its sequence there.
type liveEntry struct{ at, row uint64 }

// begin notes the end of the stream when its subjects were read.
func (p *purges) begin(end uint64) {
	p.last, p.knownTo = max(p.last, end), max(p.knownTo, end)
	p.dropEmitted()
}

// add notes an entry that this term has stored. row is nil where the entry counted as
// lost: then the row's reply is kept again.
func (p *purges) add(at uint64, row *Row) {
	if p.last = max(p.last, at); row != nil {
		p.live = append(p.live, liveEntry{at, row.Seq})
	}
}

// appending notes that a group goes to the emitter now.
func (p *purges) appending() { p.lastAtAppend = p.last }

// emitted notes that the group is stored, so the partition was ours when it went to the
// emitter.
func (p *purges) emitted() {
	p.knownTo = max(p.knownTo, p.lastAtAppend)
	p.dropEmitted()
}

// dropEmitted forgets the entries at the front whose rows are emitted: the next purge by
// sequence removes them. Those of earlier terms are before all of this term.
func (p *purges) dropEmitted() {
	if !p.earlier.dropEmitted(p.finished) {
		return
	}
	for len(p.live) > 0 && p.finished(p.live[0].row) {
		p.live = p.live[1:]
	}
}

// needed is the journal sequence below which nothing is needed any more. The sequences of
// earlier terms' entries are not known, only that they are lower than the ones of this
// term. So needed is 0 while one of them is needed.
func (p *purges) needed() uint64 {
	switch {
	case !p.earlier.known || len(p.earlier.refs) > 0:
		return 0
	case len(p.live) > 0:
		return min(p.live[0].at, p.knownTo+1)
	default:
		return p.knownTo + 1
	}
}

// step removes entries that are not needed, and returns when to be called again.
func (p *purges) step(now time.Time) (next time.Time) {
	if len(p.live)+len(p.earlier.refs) > max(p.siftAt, journalSpare) {
		p.sift()
	}
	if !now.Before(p.next) && p.purge() {
		p.next = now.Add(journalPurge)
	}
	if p.needed() > max(1, p.below) {
		return p.next
	}
	return time.Time{}
}

// purge asks for the removal of the entries that are not needed any more, and reports
// whether there are any.
func (p *purges) purge() bool {
	below := p.needed()
	if below <= max(1, p.below) {
		return false
	}
	msg, err := streams.PurgeRequest(p.link.nc, p.link.cfg.JournalStream, p.link.filter(), below)
	if err == nil {
		err = p.link.send(topicPurge, msg)
	}
	if err != nil {
		p.link.setProblem("purge: " + err.Error())
		return true
	}
	p.below = below
	p.link.c.at("purged")
	return true
}

// sift removes the entries of emitted rows that lie behind one that is needed.
func (p *purges) sift() {
	purged := make(map[uint64]bool)
	unneeded := func(row uint64) bool {
		if !p.finished(row) {
			return false
		}
		if !purged[row] {
			purged[row] = true
			err := streams.AskForPurge(p.link.nc, p.link.cfg.JournalStream, p.link.rowFilter(row))
			if err != nil {
				p.link.setProblem("purge: " + err.Error())
			}
		}
		return true
	}
	p.live = slices.DeleteFunc(p.live, func(l liveEntry) bool { return unneeded(l.row) })
	p.earlier.sift(unneeded)
	left := len(p.live) + len(p.earlier.refs)
	p.siftAt = left + left/4 + journalSpare
}

// clear removes the entries that are not needed when the term ends in good order: there
// may be no next owner to remove them.
func (p *purges) clear() {
	p.dropEmitted()
	p.purge()
	p.sift()
}
