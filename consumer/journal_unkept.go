package consumer

import (
	"iter"
	"slices"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
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
	journalStuck       = 75 * time.Millisecond
	journalStuckGroups = 4
	journalStuckMost   = 250 * time.Millisecond
)

// unkept are the replies that must be kept and are not yet: each waits for its time, for
// its events, or for the answer to its entry.
type unkept struct {
	rows      []*Row // in no order; some may be settled since
	count     int    // of rows that are not settled
	next      time.Time
	blocked   bool         // a row whose time has come waits for the answers to other entries
	flushBy   time.Time    // when a hand-over stops waiting for them; zero without one
	groupTime streams.Cost // of an append of results, however many
}

// add registers a row whose reply must be kept at some time. It may be registered
// already.
func (u *unkept) add(row *Row, now, at time.Time) {
	row.journal.answeredAt, row.journal.keepAt = now, at
	if !u.has(row) {
		row.journal.keep = u
		u.count++
		u.rows = append(u.rows, row)
	}
	u.next = soonest(u.next, at)
}

// settle notes that a row need not be kept any more: it is, or is emitted, or never can
// be.
func (u *unkept) settle(row *Row) {
	if u.has(row) {
		row.journal.keep = nil
		u.count--
	}
}

// has reports whether a row must be kept and is not yet.
func (u *unkept) has(row *Row) bool { return row.journal.keep == u }

// sweep drops settled rows once they are more than the others. Without it, rows that are
// emitted would stay in memory until the time of a later row has come, which may be
// an hour.
func (u *unkept) sweep() {
	if len(u.rows) > 2*u.count+64 {
		u.rows = slices.DeleteFunc(u.rows, func(row *Row) bool { return !u.has(row) })
	}
}

// waiting yields the rows that must be kept and are not yet.
func (u *unkept) waiting() iter.Seq[*Row] {
	return func(yield func(*Row) bool) {
		for _, row := range u.rows {
			if u.has(row) && !yield(row) {
				return
			}
		}
	}
}

// stuck is how long a reply whose turn has come may wait for the streams.
func (u *unkept) stuck() time.Duration {
	return min(max(journalStuck, journalStuckGroups*time.Duration(u.groupTime)), journalStuckMost)
}

// wait registers an answered row. Once it has waited long enough for its turn, its reply
// is kept.
func (j *journal) wait(row *Row, now time.Time) {
	if j.link.c.cfg.Journal && mustKeep(row.reply) {
		j.unkept.add(row, now, now.Add(j.link.c.cfg.JournalAfter))
	}
}

// lacks reports whether a reply to a row, or to an element of it, is paid for and not
// known to be in the journal: it waits, the journal is full, or it has no entry that would
// be large enough.
func (j *journal) lacks(row *Row) bool {
	missing := func(r *Row) bool { return r.answered && mustKeep(r.reply) && !r.journal.stored }
	return missing(row) || slices.ContainsFunc(row.answeredItems(), missing)
}

// waitOf registers the replies that are in memory from an earlier term, or come from a
// call that began in one, before their rows are taken. This term may end before it takes
// them:
//
//	A loses the connection, and claims the partition again.
//	A call from before ends. Its row is far behind in the order, and A has not taken it
//	again yet.
//	A is stopped, and hands over. B takes the row, and pays for it again.
func (j *journal) waitOf(row *Row, now time.Time) {
	for _, item := range row.answeredItems() {
		item.forgetJournal()
		j.wait(item, now)
	}
	if row.answered {
		row.forgetJournal()
		j.wait(row, now)
	}
}

// waitNow registers an answered row whose reply must be kept at once.
func (j *journal) waitNow(row *Row, now time.Time) {
	if j.link.c.cfg.Journal && mustKeep(row.reply) {
		j.unkept.add(row, now, now)
	}
}

// keepDue looks through the replies that wait, and returns when to look again. One look
// covers them all, so that no row needs a timer; and most rows are emitted by then, so a
// look costs next to nothing.
func (j *journal) keepDue(now time.Time) (next time.Time) {
	u := &j.unkept
	if u.next.IsZero() || now.Before(u.next) {
		return u.next
	}
	u.next, u.blocked = time.Time{}, false
	rows := u.rows
	u.rows = nil // a row that can't be kept leaves the lane at once, and is added again
	rows = slices.DeleteFunc(rows, func(row *Row) bool {
		if u.has(row) && !now.Before(row.journal.keepAt) {
			j.offer(row, now)
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
func (j *journal) offer(row *Row, now time.Time) {
	stuckAt, flushing := row.journal.answeredAt.Add(j.unkept.stuck()), !j.unkept.flushBy.IsZero()
	switch {
	case row.journal.storedBefore && j.earlier.has(row):
		j.unkept.settle(row)
		row.journal.stored = true
		j.lane.keptNow(row)
	case !flushing && j.link.c.cfg.JournalAfter > 0 && now.Before(stuckAt) && j.window.itsTurn(row):
		row.journal.keepAt = stuckAt // nothing but the streams is in its way
	case j.earlier.waiting || row.unstored.Load() > 0:
		row.journal.keepAt = now.Add(journalScan) // its events go first, and an earlier term may have kept it
	case j.sent.full(now):
		j.unkept.blocked = true
	default:
		j.keep(row, now)
	}
}

// lossy is how many replies a crash would lose that the journal should keep; 0 while it
// is not used.
func (j *journal) lossy() int {
	if j.link.problem != "" {
		return 0
	}
	return j.unkept.count
}

// flushed reports whether every reply that waits is kept, so that the partition may be
// handed over. The first call sends them off; it does not wait longer than a request may
// take.
func (j *journal) flushed(now time.Time) bool {
	u := &j.unkept
	if u.flushBy.IsZero() {
		u.flushBy = now.Add(streams.RequestTimeout)
		for row := range u.waiting() {
			if row.journal.entry == 0 {
				row.journal.keepAt = now
			}
		}
		u.next = now
		j.keepDue(now)
	}
	return u.count == 0 || now.After(u.flushBy)
}
