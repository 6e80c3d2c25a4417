package lane

import (
	"slices"
	"time"

	"github.com/llm-stage/stage/llm/batchapi"
)

const (
	// fewRows, and fewPercent of a batch, are too few to wait for another batch: they go live.
	fewRows    = 10
	fewPercent = 1
	// smallRows is what no limit of tokens is met by alone.
	smallRows = 100
	// triesMax is in how many batches a row may be without an answer that counts. Where a fifth of the batches expire and a
	// twentieth of the lines fail, with two of them 6% of the rows went live, and a row cost .534 of a live call.
	triesMax = 3
)

// unsettled is what is known of a row whose batch had no answer for it that counts.
type unsettled struct {
	tries int // batches before this one
	rows  int // of the batch
	again int // of them unsettled
	// deadline is when the row goes live, from when it was counted; zero: it has none.
	from, deadline time.Time
}

// live reports whether the row goes live rather than into another batch.
func (u unsettled) live(now time.Time) bool {
	switch {
	case u.tries+1 >= triesMax, u.again <= fewRows, u.again*100 <= u.rows*fewPercent:
		return true
	case u.deadline.IsZero():
		return false
	}
	return !now.Before(u.from.Add(u.deadline.Sub(u.from) / 2))
}

// remedy is what to do with a batch that was refused as a whole.
type remedy uint8

const (
	// remedyWait: there is no room for it now. It goes again later.
	remedyWait remedy = iota + 1
	// remedyFail: the named rows fail, and the others go again.
	remedyFail
	// remedySplit: one of the rows must be bad. It goes again in halves.
	remedySplit
	// remedyLive: so few rows are left that each finds out for itself.
	remedyLive
)

// remedyFor decides on a refusal of a batch with so many rows. bad are the places of the rows that fail.
func remedyFor(r *batchapi.Refusal, rows int) (do remedy, bad []int) {
	if r.Capacity {
		return remedyWait, nil
	}
	for _, line := range r.Lines {
		if line >= 1 && line <= rows {
			bad = append(bad, line-1)
		}
	}
	slices.Sort(bad)
	switch bad = slices.Compact(bad); {
	case len(bad) > 0:
		return remedyFail, bad
	case rows <= fewRows:
		return remedyLive, nil
	}
	return remedySplit, nil
}

// ceiling is what one batch may hold: the settings, and what the provider takes.
type ceiling struct {
	rows  int
	bytes int64
}

func ceilingOf(rows int, bytes int64, limits batchapi.Limits) ceiling {
	c := ceiling{rows: rows, bytes: bytes}
	if limits.Rows > 0 {
		c.rows = min(c.rows, limits.Rows)
	}
	if limits.Bytes > 0 {
		c.bytes = min(c.bytes, limits.Bytes)
	}
	return c
}

// transferRate is the least at which a provider takes the body of a batch, in bytes a second.
const transferRate = 1 << 20

// transfer is how long the body of a batch may be on its way.
func transfer(bytes int64) time.Duration {
	return time.Duration(bytes) * time.Second / transferRate
}

// createTime bounds the creation of a batch, from the moment that the ownership of the partition was proven. It ends
// well before the time after which the next owner concludes that the batch is absent, [adoptTime]:
//
//	A proves that it owns the partition, and creates batch b. B claims, and reads the intent of b.
//	B looks for b until adoptTime has passed since its claim, which came after A's proof. By then A's creation has
//	ended for at least a third of adoptWait: b is in the provider's list, or it was never created.
//
// A process that is suspended between its proof and its creation, for longer than that, creates b when B has concluded
// that it is absent. Where a batch needs a file, B has deleted that before ([batchapi.API.Withdraw]), and the creation
// fails. Where it does not, nothing prevents it: that moment is undecidable.
func createTime(limits batchapi.Limits, bytes int64, adoptWait time.Duration) time.Duration {
	bound := adoptWait * 2 / 3
	if limits.Inline {
		bound += transfer(bytes)
	}
	return bound
}

// adoptTime is how long a batch is looked for until it counts as absent.
func adoptTime(limits batchapi.Limits, bytes int64, adoptWait time.Duration) time.Duration {
	if limits.Inline {
		return adoptWait + transfer(bytes)
	}
	return adoptWait
}
