package lane

import "time"

const (
	// fewRows, and fewPercent of a batch, are too few to wait for another batch: they go
	// live.
	fewRows    = 10
	fewPercent = 1
	// smallRows is what no limit of tokens is met by alone.
	smallRows = 100
	// triesMax is in how many batches a row may be without an answer that counts. Where a
	// fifth of the batches expire and a twentieth of the lines fail, with two of them 6%
	// of the rows went live, and a row cost .534 of a live call.
	triesMax = 3
)

// unsettled describes a row whose batch had no answer for it that counts.
type unsettled struct {
	tries int // batches before this one
	rows  int // of the batch
	again int // of them unsettled
	// deadline is when the row goes live, and from when the time to it is measured. Both
	// are zero for a row without one.
	from, deadline time.Time
}

// live reports whether the row goes live rather than into another batch: it was in enough
// batches, too few others would go with it, or half of the time to its deadline is over.
// For example, a row with a deadline after 24 hours goes into no batch after 12.
func (u unsettled) live(now time.Time) bool {
	switch {
	case u.tries+1 >= triesMax, u.again <= fewRows, u.again*100 <= u.rows*fewPercent:
		return true
	case u.deadline.IsZero():
		return false
	}
	return !now.Before(u.from.Add(u.deadline.Sub(u.from) / 2))
}

// judge decides what becomes of the rows without an answer that counts, once no answer is
// on its way any more.
func (c *collector) judge(b *batch, now time.Time) {
	again := b.count[rowAgain]
	if again == 0 || b.passes == 0 || b.count[rowAnswered] > 0 || c.pass != nil && c.pass.batch == b {
		return
	}
	for i, s := range b.state {
		if s != rowAgain {
			continue
		}
		u := unsettled{tries: b.tries(i), rows: len(b.state), again: again, from: b.intent}
		if at := b.deadline(i); at != 0 {
			u.deadline = time.UnixMilli(at)
		}
		if seq := b.rows.Seqs[i]; u.live(now) {
			c.places.goLive(seq)
		} else {
			c.places.tried.set(seq, uint8(b.tries(i)+1)) //nolint:gosec // at most triesMax
			c.places.await(b.model, seq)
		}
	}
}
