package verify

import "slices"

// deletions are the messages that are gone from the middle of a stream. The server is asked
// for them when they are first needed, and not again once it has answered, as the answer
// may be long. An error of the server is returned: a check that took it for "none is gone"
// would call an erased result lost.
//
// A nil pointer stands for a stream without deletions.
type deletions struct {
	ask   func() ([]uint64, error)
	asked bool
	seqs  []uint64 // sorted
}

// from returns the deletions from a place of the stream on, in order.
func (d *deletions) from(place uint64) ([]uint64, error) {
	if d == nil {
		return nil, nil
	}
	if !d.asked {
		seqs, err := d.ask()
		if err != nil {
			return nil, err
		}
		slices.Sort(seqs)
		d.seqs, d.asked = seqs, true
	}
	i, _ := slices.BinarySearch(d.seqs, place)
	return d.seqs[i:], nil
}

// has reports whether the message at a place was deleted.
func (d *deletions) has(place uint64) (bool, error) {
	seqs, err := d.from(place)
	return len(seqs) > 0 && seqs[0] == place, err
}
