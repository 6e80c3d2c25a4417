package recorder

import (
	"encoding/json"
	"time"
)

// inFlight holds the events that were sent and are not known to be stored: some one by
// one, and at most one group.
//
// Invariant: while a group is in flight no further event is sent for the first time, so
// events that come fast gather behind it and go together.
type inFlight struct {
	single map[uint64]*record // by number
	group  *group             // nil if none is in flight
}

func (f *inFlight) len() int { return len(f.single) + f.group.size() }

// group is a group of events that go together. It is stored as a whole as far as the
// Recorder cares: any other answer sends all of its events again, one by one.
type group struct {
	id      string
	records []*record
	sent    time.Time
	atomic  bool
}

// size is 0 for no group.
func (g *group) size() int {
	if g == nil {
		return 0
	}
	return len(g.records)
}

// isStored reports whether an answer says that all events of the group are stored.
func (g *group) isStored(answer []byte) bool {
	var ack struct {
		Batch string `json:"batch"`
		Count int    `json:"count"`
	}
	return json.Unmarshal(answer, &ack) == nil && ack.Batch == g.id && ack.Count == len(g.records)
}
