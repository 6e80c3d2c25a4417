package lane

import "slices"

// index finds rows in the batches that are recorded: it has the sequences of each, which
// are sorted and never change. A nil index is empty.
type index [][]uint64

func (x *index) has(seq uint64) bool {
	if x == nil {
		return false
	}
	for _, seqs := range *x {
		if find(seqs, seq) >= 0 {
			return true
		}
	}
	return false
}

// find returns the place of a sequence, or -1.
func find(seqs []uint64, seq uint64) int {
	if len(seqs) == 0 || seq < seqs[0] || seq > seqs[len(seqs)-1] {
		return -1
	}
	if i, found := slices.BinarySearch(seqs, seq); found {
		return i
	}
	return -1
}
