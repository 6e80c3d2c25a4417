package batch

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// Listed is a deferred batch as its stream has it.
type Listed struct {
	ID    string `json:"id"`
	State State  `json:"state"`
	Done  int    `json:"done"`
	Total int    `json:"total"`
	// Submitted is when it was stored, and Ended when it ended, by the server.
	Submitted time.Time  `json:"submitted"`
	Ended     *time.Time `json:"ended,omitempty"`
	// Expires is when it is removed, once it is over.
	Expires *time.Time `json:"expires,omitempty"`
	// Owner is the run id of the process that works on it, or has.
	Owner string `json:"owner,omitempty"`
	// Problem is why prompts wait, if they do.
	Problem string `json:"problem,omitempty"`
}

// List returns the deferred batches of a stage that are stored in a stream, the oldest
// first. It needs no running stage. The list is empty, not nil, if there is none.
func List(ctx context.Context, nc *nats.Conn, stream, name string) ([]Listed, error) {
	list := []Listed{}
	s := newShelf(func() *nats.Conn { return nc }, stream, name)
	reading, err := s.read(ctx)
	if err != nil {
		return list, err
	}
	defer reading.Close()
	t := newTable()
	for m, err := range reading.All(ctx) {
		if err != nil {
			return list, err
		}
		if id, p, ok := s.parse(m.Subject); ok {
			t.note(id, p, m, m.Time)
		}
	}
	now := time.Now()
	for _, e := range t.entries {
		if e.request == 0 {
			continue // it was just removed
		}
		l := Listed{
			ID: e.id, State: e.stateAt(now), Done: e.done, Total: e.prompts, Submitted: e.submitted,
			Owner: e.owner, Problem: e.problem,
		}
		if l.State.Over() {
			l.Ended, l.Expires, l.Problem = new(e.ended), new(e.ended.Add(e.keep)), ""
		}
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b Listed) int {
		return cmp.Or(a.Submitted.Compare(b.Submitted), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}
