package stored

import "time"

// ResultRow is a result by its headers, without its body.
type ResultRow struct {
	At      uint64    // its sequence in the result stream
	Stored  time.Time // when the server stored it
	Seq     uint64    // of its row in the input stream; 0: it names none
	Owner   string    // the term that answered the row
	Status  string    // success or error
	StateID string
	Source  string // the input stream that it names
	// Replaces is the sequence of the row whose place it takes, as its header has it; empty: that of no other.
	Replaces string
}

// Claim is the beginning of a term: an owner took over a partition.
type Claim struct {
	At      uint64    // its sequence in the result stream
	Stored  time.Time // when the server stored it
	Owner   string    // the term
	Mark    uint64    // high-water mark: the sequence of the last row that had its result
	Version int       // of the format
	Input   string    // the input stream
	Created time.Time // when the input stream was created
}

// SameInput reports whether both claims are about the same input stream, not only one of the same name.
func (c Claim) SameInput(o Claim) bool {
	return c.Input == o.Input && c.Created.Equal(o.Created)
}
