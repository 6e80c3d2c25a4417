package consumer

import (
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// journalScan is the shortest time between two looks at the replies that wait to be
	// kept.
	journalScan = 5 * time.Millisecond
	// journalFullScan takes its place while too many entries wait for their answers.
	journalFullScan = 100 * time.Millisecond
	// journalStuck is how long a reply whose turn has come may wait for the streams of
	// events and results until it is kept after all: normally it is stored there by then.
	// With the time that storing takes, a crash loses no reply that is older than a tenth
	// of a second.
	//
	// Where results come so fast that hundreds of them are stored at a time, that takes
	// longer, say 50 ms. Then the limit is journalStuckGroups times as long, 200 ms: a
	// reply waits for its events, for the group before it and for its own. Without this
	// rule each reply goes to the journal, too, which makes the server slower still: a
	// quarter of all that it stored were entries that nobody needed a moment later.
	// journalStuckMost is the longest that the limit gets.
	journalStuck       = 75 * time.Millisecond
	journalStuckGroups = 4
	journalStuckMost   = 250 * time.Millisecond
)

// unkept are the replies of this term that must be kept and are not yet: each waits for
// its time, for its events, or for the answer to its entry.
type unkept struct {
	link    *journalLink
	earlier *earlierTerms
	window  *window
	lane    *laneRows // parks rows whose replies are kept
	bodies  *bodies   // store the bodies that are larger than an entry
	sent    sentEntries

	rows      []*Row       // in no order; some may be settled since
	count     int          // of rows that are not settled
	next      time.Time    // when to look at them; zero means not before something happens
	blocked   bool         // a row whose time has come waits for the answers to other entries
	flushBy   time.Time    // when a hand-over stops waiting for them; zero without one
	groupTime streams.Cost // of an append of results, however many
}

// mustKeep reports whether a reply must be kept at all: only if it was paid for in this
// process.
func mustKeep(r *Reply) bool {
	return r.RequestHash != "" && r.Event.Source != auditlog.SourceJournal
}

// onlyInMemory reports whether a reply to a row, or to an element of it, is paid for and
// not known to be in the journal: it waits, the journal is full, or it has no entry that
// would be large enough.
func onlyInMemory(row *Row) bool {
	missing := func(r *Row) bool { return r.answered && mustKeep(r.reply) && !r.journal.stored }
	return missing(row) || slices.ContainsFunc(row.answeredItems(), missing)
}

// add registers an answered row whose reply is kept at some time, if it must be kept at
// all. It may be registered already.
func (u *unkept) add(row *Row, now, at time.Time) {
	if !u.link.cfg.Journal || !mustKeep(row.reply) {
		return
	}
	row.journal.answeredAt, row.journal.keepAt = now, at
	if !u.has(row) {
		row.journal.keep = u
		u.count++
		u.rows = append(u.rows, row)
	}
	u.next = soonest(u.next, at)
}

// wait registers an answered row. Once it has waited long enough for its turn, its reply
// is kept.
func (u *unkept) wait(row *Row, now time.Time) {
	u.add(row, now, now.Add(u.link.cfg.JournalAfter))
}

// waitOf registers the replies that are in memory from an earlier term, or come from a
// call that began in one, before their rows are taken. This term may end before it takes
// them:
//
//	A loses the connection, and claims the partition again.
//	A call from before ends. Its row is far behind in the order, and A has not taken it
//	again yet.
//	A is stopped, and hands over. B takes the row, and pays for it again.
func (u *unkept) waitOf(row *Row, now time.Time) {
	for _, item := range row.answeredItems() {
		item.forgetJournal()
		u.wait(item, now)
	}
	if row.answered {
		row.forgetJournal()
		u.wait(row, now)
	}
}

// settle notes that a row need not be kept any more: it is kept, or emitted, or it never
// can be kept.
func (u *unkept) settle(row *Row) {
	if u.has(row) {
		row.journal.keep = nil
		u.count--
	}
}

// has reports whether a row must be kept and is not yet.
func (u *unkept) has(row *Row) bool { return row.journal.keep == u }

// hurry has the reply to a row offered at once, if it must still be kept.
func (u *unkept) hurry(row *Row, now time.Time) {
	if u.has(row) {
		row.journal.keepAt, u.next = now, now
	}
}

// emitted settles the rows of a group whose results are stored. It drops the settled ones
// once they are more than the others. Without that, they would stay in memory until the
// time of a later row has come, which may be an hour.
func (u *unkept) emitted(e emitted) {
	u.groupTime.Add(e.at.Sub(e.began))
	for _, row := range e.rows {
		u.settle(row)
		for item := range row.eachItem() {
			u.settle(item)
		}
	}
	if len(u.rows) > 2*u.count+64 {
		u.rows = slices.DeleteFunc(u.rows, func(row *Row) bool { return !u.has(row) })
	}
}

// step looks through the replies that wait, and returns when to look again. One look
// covers them all, so that no row needs a timer; and most rows are emitted by then, so a
// look costs next to nothing.
//
// A row may be registered during the look: one that can't be kept is not parked after all,
// and is added again as it is completed.
func (u *unkept) step(now time.Time) (next time.Time) {
	if u.next.IsZero() || now.Before(u.next) {
		return u.next
	}
	u.next, u.blocked = time.Time{}, false
	rows := u.rows
	u.rows = nil
	rows = slices.DeleteFunc(rows, func(row *Row) bool {
		if u.has(row) && !now.Before(row.journal.keepAt) {
			u.offer(row, now)
		}
		if u.has(row) {
			u.next = soonest(u.next, row.journal.keepAt)
		}
		return !u.has(row)
	})
	u.rows = append(rows, u.rows...)
	scan := journalScan
	if u.blocked {
		scan = journalFullScan
	}
	if earliest := now.Add(scan); !u.next.IsZero() && u.next.Before(earliest) {
		u.next = earliest
	}
	return u.next
}

// offer keeps a row whose time has come, unless it has to wait or there is no need.
func (u *unkept) offer(row *Row, now time.Time) {
	stuck := min(max(journalStuck, journalStuckGroups*time.Duration(u.groupTime)), journalStuckMost)
	stuckAt, flushing := row.journal.answeredAt.Add(stuck), !u.flushBy.IsZero()
	switch {
	case row.journal.storedBefore && u.earlier.has(row):
		u.settle(row)
		row.journal.stored = true
		u.lane.keptNow(row)
	case !flushing && u.link.cfg.JournalAfter > 0 && now.Before(stuckAt) && u.window.itsTurn(row):
		row.journal.keepAt = stuckAt // nothing but the streams is in its way
	case u.earlier.waiting || row.unstored.Load() > 0:
		row.journal.keepAt = now.Add(journalScan) // its events go first, and an earlier term may have kept it
	case u.sent.full(now):
		u.blocked = true
	default:
		u.keep(row, now)
	}
}

// keep sends the entry of a row or, where that is too large, first the reply's body to the
// object store. A reply that fits into neither can't be kept.
func (u *unkept) keep(row *Row, now time.Time) {
	if u.sent.send(row, now) || u.bodies.stowForJournal(row, now) {
		return
	}
	u.settle(row)
	u.lane.keptNow(row)
}

// received takes the answer to an entry. While a row waits for other entries, the next look
// is due at once when there is room for a good many, and not for each: a look goes through
// all replies that wait. A row may be emitted since its entry was sent: then the lane is
// told of it once more, which does no harm.
func (u *unkept) received(answer *nats.Msg, number string, now time.Time) {
	row := u.sent.received(answer, number, now)
	if u.blocked && u.sent.hasRoom() {
		u.next = now
	}
	if row != nil {
		u.settle(row)
		u.lane.keptNow(row)
	}
}

// lossy is how many replies a crash would lose that the journal should keep. It is 0 while
// the journal is not used.
func (u *unkept) lossy() int {
	if u.link.problem != "" {
		return 0
	}
	return u.count
}

// flushed reports whether every reply that waits is kept, so that the partition may be
// handed over. The first call sends them off; it does not wait longer than a request may
// take.
func (u *unkept) flushed(now time.Time) bool {
	if u.flushBy.IsZero() {
		u.flushBy = now.Add(streams.RequestTimeout)
		for _, row := range u.rows {
			if row.journal.entry == 0 {
				u.hurry(row, now)
			}
		}
		u.step(now)
	}
	return u.count == 0 || now.After(u.flushBy)
}
