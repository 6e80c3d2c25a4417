package verify

import (
	"cmp"
	"hash/maphash"
	"slices"
)

// aheadRows holds the rows of the input above the low-water mark, where results are not
// stored in stream order: rows with a result, and rows that only the input holds. It only
// keeps the books. Its caller decides whether the log is wrong.
//
// Say the log has the results of rows 1, 2, 5 and 4, in this order, and its mark is at 2:
//
//	low    2
//	rows   3 (no result), 4 (done), 5 (done)
//	stored the places of 5 and 4
//
// The result of row 3 lets the mark pass to 5, and then nothing is held.
//
// A row at or below the mark is forgotten, so memory is bounded by the span of the stage.
// Rows are added near the end, as a stage takes them. It belongs to the goroutine that
// reads the log, as all of the check does.
type aheadRows struct {
	low  uint64     // every row at or below it has its result, according to the log
	rows []aheadRow // above low, by sequence
	done int        // how many of rows have a result
	// stored has the rows with a result in the order of the log. Its first row is above
	// low. Some of the later ones may be at or below low, since removing them from the
	// middle each time would cost more than holding them (see storedSlack).
	stored []storedRow
	latest map[uint64]uint64 // by key: the latest row of it that has a result
}

// aheadRow is a row above the low-water mark.
type aheadRow struct {
	seq     uint64
	key     uint64 // see hashOf, or 0 if it is unknown
	inInput bool
	done    bool // it has a result
	source  *source
}

// storedRow is where the result of a row is.
type storedRow struct{ at, seq uint64 }

var keySeed = maphash.MakeSeed()

// hashOf stands for a key, which may be long. It is never 0, which means an unknown key.
func hashOf(key string) uint64 { return max(1, maphash.String(keySeed, key)) }

// find returns the place of a row, or the one where it belongs.
func (a *aheadRows) find(seq uint64) (i int, found bool) {
	if n := len(a.rows); n == 0 || a.rows[n-1].seq < seq {
		return n, false
	}
	return slices.BinarySearchFunc(a.rows, seq, func(r aheadRow, seq uint64) int {
		return cmp.Compare(r.seq, seq)
	})
}

// input adds a row of the input that has no result, together with its source. The row
// must be above the mark and above all rows held.
func (a *aheadRows) input(seq, key uint64, from *source) {
	a.rows = append(a.rows, aheadRow{seq: seq, key: key, inInput: true, source: from})
}

// result notes the result of a row above the mark, stored at a place of the log after all
// others. It returns what was known about the row, and the latest row of its key that has
// a result, or 0 if none above the mark has one.
func (a *aheadRows) result(seq, key, at uint64) (row aheadRow, latest uint64) {
	i, found := a.find(seq)
	if found {
		row = a.rows[i]
	} else {
		a.rows = slices.Insert(a.rows, i, aheadRow{seq: seq})
	}
	a.rows[i].key, a.rows[i].done, a.rows[i].source = key, true, nil
	a.done++
	a.stored = append(a.stored, storedRow{at: at, seq: seq})

	if a.latest == nil {
		a.latest = make(map[uint64]uint64)
	}
	latest = a.latest[key]
	a.latest[key] = max(latest, seq)
	return row, latest
}

// pass moves the mark to a higher row and calls missing for each row of the input up to
// there that has no result.
func (a *aheadRows) pass(low uint64, missing func(seq uint64)) {
	a.low = low
	for len(a.rows) > 0 && a.rows[0].seq <= low {
		switch r := a.rows[0]; {
		case !r.done:
			missing(r.seq)
		case a.latest[r.key] == r.seq:
			delete(a.latest, r.key)
			a.done--
		default:
			a.done--
		}
		a.rows = a.rows[1:]
	}

	for len(a.stored) > 0 && a.stored[0].seq <= low {
		a.stored = a.stored[1:]
	}
	// The loop stops at the first row above the mark. If that one is far ahead of the
	// others, the mark passes many rows stored behind it, whose places are dropped here.
	if len(a.stored) > 2*a.done+storedSlack {
		passed := func(s storedRow) bool { return s.seq <= low }
		a.stored = slices.DeleteFunc(slices.Clone(a.stored), passed)
	}
}

// forgetKeys forgets the keys of all rows. It is called when a claim names another order,
// under which the same rows have other keys.
func (a *aheadRows) forgetKeys() {
	a.latest = nil
	for i := range a.rows {
		a.rows[i].key = 0
	}
}

// storedSlack is how many places beyond twice the needed ones are held before those that
// the mark has passed are dropped. With it, each drop removes at least as many places as
// it keeps, so a result costs constant time on average.
const storedSlack = 1024

// first returns the first place of the log that has a result of a row above the mark, or 0.
func (a *aheadRows) first() uint64 {
	if len(a.stored) == 0 {
		return 0
	}
	return a.stored[0].at
}

// open yields the rows of the input that have no result, up to the last row in rows.
func (a *aheadRows) open(yield func(aheadRow) bool) {
	for _, r := range a.rows {
		if !r.done && !yield(r) {
			return
		}
	}
}

// overtaken reports whether a later row of the same key has a result, and which one.
func (a *aheadRows) overtaken(r aheadRow) (later uint64, is bool) {
	later = a.latest[r.key]
	return later, r.key != 0 && later > r.seq
}
