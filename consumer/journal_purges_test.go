package consumer

import (
	"testing"
)

// emittedRows are the rows of a term that are emitted: those up to a sequence.
type emittedRows uint64

func (e emittedRows) finished(seq uint64) bool { return seq <= uint64(e) }
func (emittedRows) itsTurn(*Row) bool          { return false }
func (emittedRows) grow(uint64, int)           {}

// Nothing is purged by sequence that a rival may have kept since this term last proved that it owns the partition, nor
// while an earlier term's reply is needed, whose place is not known.
func TestAPurgeGoesNoFurtherThanWhatThisTermHasProved(t *testing.T) {
	j := &journal{rows: emittedRows(4)}
	needed := func(want uint64, when string) {
		t.Helper()
		if got := j.needed(); got != want {
			t.Errorf("%s: everything below %d may go, want %d", when, got, want)
		}
	}
	j.purges.add(8, 4)
	needed(0, "before it is known what earlier terms have kept")
	j.earlier = earlierTerms{known: true, refs: []keptRef{{3, wholeRow}, {6, 1}}}
	j.purges.begin(7)
	j.dropFinished()
	needed(0, "while row 6 waits")
	j.rows = emittedRows(6)
	j.dropFinished()
	needed(8, "when it is emitted")
	j.purges.lastAtAppend = j.purges.last
	j.purges.add(11, 9) // 9 and 10 may be a rival's
	needed(8, "before an append has proved more")
	j.purges.proven()
	needed(9, "after one that began when entry 8 was stored")
	j.purges.lastAtAppend = j.purges.last
	j.purges.proven()
	needed(11, "while row 9 waits")
}
