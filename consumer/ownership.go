package consumer

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/llm-stage/stage/sequencer"
)

// uncertainLook is the time between two looks at the log while nothing may be called
// before one.
const uncertainLook = 50 * time.Millisecond

// ownership is what a term knows of its claim to the partition: the end of the log as it
// left it, and since when it can't be sure that nobody has appended since. The goroutine
// of the term owns it.
type ownership struct {
	c *Consumer
	// end is the end of the log, by this term's claim or its last append: the condition of
	// the next.
	end     logEnd
	ahead   aheadLog  // where in the log the rows above the low-water mark are
	checked time.Time // when the log was last known to end there
	// uncertainSince is when a gap between two passes of the term was noticed, see pulse.
	// While it is set no row is started. Zero means that the partition is ours as far as
	// is known.
	uncertainSince time.Time
}

// stillOurs reads the log and returns ErrFenced when another replica has claimed the
// partition. A log that can't be read proves nothing, and the term continues: its appends
// are conditional. An append that is under way has its own say about the results stream,
// so only without one does a successful look clear that problem.
func (o *ownership) stillOurs(ctx context.Context, appending bool) error {
	o.checked = time.Now()
	now, err := o.c.results.readEnd(ctx)
	if err != nil {
		o.c.problems.set(problemResults, err)
		return nil
	}
	if !appending {
		o.c.problems.clear(problemResults)
	}
	if now.owner != o.end.owner {
		return fmt.Errorf("%w: claimed by %s", ErrFenced, now.owner)
	}
	return nil
}

// certain reports whether rows may be started.
func (o *ownership) certain() bool { return o.uncertainSince.IsZero() }

// beat notes a pass of the term. After a gap rows are called only once the log was read
// again, see pulse.
func (o *ownership) beat(now time.Time) {
	if o.c.pulse.beat(now) {
		o.uncertainSince = now
	}
}

// settled takes the outcome of an append, or of a look at the log. It restores certainty
// if it began after the gap.
func (o *ownership) settled(e emitted) {
	if e.sure && e.began.After(o.uncertainSince) {
		o.uncertainSince = time.Time{}
		o.c.pulse.settle()
	}
}

// markOf returns the mark of the next message of the log, behind which so many rows are
// ahead.
func (o *ownership) markOf(low uint64, ahead int) logMark {
	m := logMark{low: low, ahead: ahead}
	if ahead > 0 {
		m.from = o.ahead.from(low, o.end.seq+1)
	}
	return m
}

// mark notes on each row of a group, which goes to the emitter now, how far the log will
// go with it.
func (o *ownership) mark(group []*Row, marks iter.Seq[sequencer.Mark]) {
	i := 0
	for m := range marks {
		group[i].inTerm.after = o.markOf(m.Low, m.Ahead)
		i++
	}
}

// appended notes that the term's own append of some rows is the end of the log now, and
// where in the log the rows are that are above the low-water mark.
func (o *ownership) appended(e emitted) {
	for _, row := range e.rows {
		if row.Seq > e.end.low {
			o.ahead.add(o.end.seq+1, row.Seq)
		}
	}
	o.end, o.checked = e.end, e.at
}

// lookDue reports whether the log should be looked at, as nothing was appended for a
// while: an owner with nothing to append would not learn that it was fenced, and go on
// making calls. quiet is how long that may be. Without a pin, requests just wait and show
// nothing, so the look comes sooner. A pin proves nothing:
//
//	A is slow. It sees nobody pinned, and nobody again.
//	B is granted the pin with a row, claims, and resets.
//	A reads the end of the log, which is B's claim, and claims. B has the pin and renews
//	it, so no row ever comes to A.
func (o *ownership) lookDue(now time.Time, quiet time.Duration, pinned bool) bool {
	switch {
	case !o.certain():
		quiet = uncertainLook
	case !pinned:
		quiet /= 2
	}
	return now.Sub(o.checked) >= quiet
}

// leave claims once more where the low-water mark has passed the end of the log, as it
// does over rows that were emitted by an earlier term. So a stage that has emitted all
// its rows says so, and may go on in another order.
func (o *ownership) leave(ctx context.Context, m sequencer.Mark) error {
	if m.Low == o.end.low {
		return nil
	}
	end := o.end
	end.logMark = o.markOf(m.Low, m.Ahead)
	end, err := o.c.results.claim(ctx, o.end.owner, end, o.c.carried.inputCreated)
	if err == nil {
		o.end = end
	}
	return err
}
