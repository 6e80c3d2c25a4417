package app

import (
	"time"
)

// resultRow is what counts of a result.
type resultRow struct {
	at      uint64 // its own sequence in the results stream
	stored  time.Time
	seq     uint64 // of its row; 0: it names none
	owner   string
	status  string
	stateID string
	source  string // the input stream that it names
}

// claimEntry is a claim and where it lies in the log.
type claimEntry struct {
	at      uint64
	stored  time.Time
	owner   string
	mark    uint64
	version int
	input   string
	created time.Time
}

func (c claimEntry) sameInput(o claimEntry) bool {
	return c.input == o.input && c.created.Equal(o.created)
}
