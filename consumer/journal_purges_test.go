package consumer

import (
	"testing"
)

// Nothing is purged by sequence that a rival may have kept since this term last proved that it owns the partition, nor
// while an earlier term's reply is needed, whose place is not known.
func TestAPurgeGoesNoFurtherThanWhatThisTermHasProved(t *testing.T) {
	emitted := uint64(4) // all rows up to it
	p := purges{earlier: &earlierTerms{}, finished: func(seq uint64) bool { return seq <= emitted }}
	needed := func(want uint64, when string) {
		t.Helper()
		if got := p.needed(); got != want {
			t.Errorf("%s: everything below %d may go, want %d", when, got, want)
		}
	}
	p.add(8, &Row{Seq: 4})
	needed(0, "before it is known what earlier terms have kept")
	p.earlier.known, p.earlier.refs = true, []keptRef{{3, wholeRow}, {6, 1}}
	p.begin(7)
	needed(0, "while row 6 waits")
	emitted = 6
	p.dropEmitted()
	needed(8, "when it is emitted")
	p.appending()
	p.add(11, &Row{Seq: 9}) // 9 and 10 may be a rival's
	needed(8, "before an append has proved more")
	p.emitted()
	needed(9, "after one that began when entry 8 was stored")
	p.appending()
	p.emitted()
	needed(11, "while row 9 waits")
}
