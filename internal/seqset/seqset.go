// Package seqset holds sets of stream sequences in little memory.
package seqset

import (
	"iter"
	"maps"
	"math/bits"
	"slices"
)

// Set is a set of stream sequences. A million in a row take 130 KB, a million with gaps
// of up to a hundred between them 3 MB; a map would take 40 MB. The zero value is empty.
// A Set is not safe for concurrent use.
//
// It is a roaring bitmap without runs, compression and set algebra. The library of that
// name needs 1.5 to 6 times as long for Add, Has and All, of which verify calls several
// for each row.
type Set struct {
	chunks map[uint64]*chunk // by the sequence without its last 16 bits
}

// chunk holds the last 16 bits of sequences, in one of two forms.
type chunk struct {
	few  []uint16              // sorted, at most fewMax; nil where many is not
	many *[1 << 16 / 64]uint64 // a bit for each; nil while they are few
}

// fewMax is where the list becomes as large as the bits.
const fewMax = 4096

// Add adds a sequence and reports whether it is new to the set.
func (s *Set) Add(seq uint64) bool {
	if s.chunks == nil {
		s.chunks = make(map[uint64]*chunk)
	}
	c := s.chunks[seq>>16]
	if c == nil {
		c = new(chunk)
		s.chunks[seq>>16] = c
	}
	return c.add(uint16(seq)) //nolint:gosec // the last 16 bits are meant
}

// Remove removes a sequence and reports whether it was in the set.
func (s *Set) Remove(seq uint64) bool {
	c := s.chunks[seq>>16]
	return c != nil && c.remove(uint16(seq)) //nolint:gosec // as above
}

// Has reports whether a sequence is in the set.
func (s *Set) Has(seq uint64) bool {
	c := s.chunks[seq>>16]
	if c == nil {
		return false
	}
	low := uint16(seq) //nolint:gosec // as above
	if c.many != nil {
		return c.many[low/64]&(1<<(low%64)) != 0
	}
	_, found := slices.BinarySearch(c.few, low)
	return found
}

// All yields the sequences in ascending order. The set must not change meanwhile.
func (s *Set) All() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for _, high := range slices.Sorted(maps.Keys(s.chunks)) {
			for low := range s.chunks[high].all() {
				if !yield(high<<16 | uint64(low)) {
					return
				}
			}
		}
	}
}

func (c *chunk) add(low uint16) bool {
	if c.many != nil {
		word, bit := &c.many[low/64], uint64(1)<<(low%64)
		if *word&bit != 0 {
			return false
		}
		*word |= bit
		return true
	}
	i, found := slices.BinarySearch(c.few, low)
	if found {
		return false
	}
	c.few = slices.Insert(c.few, i, low)
	if len(c.few) > fewMax {
		c.many = new([1 << 16 / 64]uint64)
		for _, low := range c.few {
			c.many[low/64] |= 1 << (low % 64)
		}
		c.few = nil
	}
	return true
}

func (c *chunk) remove(low uint16) bool {
	if c.many != nil {
		word, bit := &c.many[low/64], uint64(1)<<(low%64)
		if *word&bit == 0 {
			return false
		}
		*word &^= bit
		return true
	}
	i, found := slices.BinarySearch(c.few, low)
	if found {
		c.few = slices.Delete(c.few, i, i+1)
	}
	return found
}

func (c *chunk) all() iter.Seq[uint16] {
	if c.many == nil {
		return slices.Values(c.few)
	}
	return func(yield func(uint16) bool) {
		for i, word := range c.many {
			for ; word != 0; word &= word - 1 {
				if !yield(uint16(i*64 + bits.TrailingZeros64(word))) {
					return
				}
			}
		}
	}
}
