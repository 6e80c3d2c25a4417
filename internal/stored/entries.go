package stored

import (
	"time"
)

// ResultRow is what counts of a result.
type ResultRow struct {
	At      uint64 // its own sequence in the results stream
	Stored  time.Time
	Seq     uint64 // of its row; 0: it names none
	Owner   string
	Status  string
	StateID string
	Source  string // the input stream that it names
}

// Claim is a claim and where it lies in the log.
type Claim struct {
	At      uint64
	Stored  time.Time
	Owner   string
	Mark    uint64
	Version int
	Input   string
	Created time.Time
}

func (c Claim) SameInput(o Claim) bool {
	return c.Input == o.Input && c.Created.Equal(o.Created)
}
