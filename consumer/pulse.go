package consumer

import (
	"sync/atomic"
	"time"
)

// pulse reports to those who are about to make a call whether this process may still
// believe that it owns the partition. The term's goroutine comes round many times within
// the life of a pin; when it has not for half of that, the process was suspended, or
// starved, and a rival may have taken over:
//
//	A is suspended with calls in flight. Its pin runs out.
//	B claims the partition and makes these calls again.
//	A wakes up. Before its term learns that it is fenced, its workers make calls for the
//	next rows, which B makes, too.
//
// So no call is made until the term has read the log after such a gap.
//
// It is safe for concurrent use; the goroutine of the terms alone calls begin, beat and
// settle.
type pulse struct {
	born      time.Time
	limit     time.Duration // between two beats
	last      atomic.Int64  // beat, since born
	uncertain atomic.Bool   // a gap has come since the log was read
}

func newPulse(now time.Time, pinnedTTL time.Duration) *pulse {
	return &pulse{born: now, limit: pinnedTTL / 2}
}

// begin starts over, for a term that has claimed the partition: at is when it had not
// sent the claim yet, for the process may be suspended right behind it, too.
func (p *pulse) begin(at time.Time) {
	p.last.Store(int64(at.Sub(p.born)))
	p.uncertain.Store(false)
}

// sure reports whether there was no gap, or the log was read since. It looks at uncertain
// last, as beat sets it first:
//
//	A worker sees that uncertain is not set.
//	The term comes round after a gap: uncertain is set now, and there is a new beat.
//	The worker sees the new beat, and makes a call.
func (p *pulse) sure(now time.Time) bool {
	return p.regular(now) && !p.uncertain.Load()
}

// regular reports whether the last beat is recent.
func (p *pulse) regular(now time.Time) bool {
	return now.Sub(p.born)-time.Duration(p.last.Load()) < p.limit
}

// beat notes that the term has come round, and reports a gap. One in the time of an
// earlier gap counts again: what was read of the log before it proves nothing.
func (p *pulse) beat(now time.Time) (gap bool) {
	gap = !p.regular(now)
	if gap {
		p.uncertain.Store(true) // before the new beat, which would hide the gap
	}
	p.last.Store(int64(now.Sub(p.born)))
	return gap
}

// settle notes that the log was read after a gap, so calls may be made again.
func (p *pulse) settle() { p.uncertain.Store(false) }
