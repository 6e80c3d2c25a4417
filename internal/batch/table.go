package batch

import (
	"strconv"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go/jetstream"
)

// State is how far a deferred batch has come.
type State string

// The states of a deferred batch.
const (
	// StateQueued means that no replica works on it at the moment.
	StateQueued State = "queued"
	// StateRunning means that a replica works on it.
	StateRunning State = "running"
	// StateDone means that each prompt has its result.
	StateDone State = "done"
	// StateCancelled means that someone has cancelled it before that.
	StateCancelled State = "cancelled"
)

// Over reports whether nothing more is done about the batch.
func (s State) Over() bool { return s == StateDone || s == StateCancelled }

// entry is what is known of a deferred batch from the stream.
type entry struct {
	id        string
	request   uint64 // sequences; 0 if there is none
	claim     uint64
	submitted time.Time // by the server
	keep      time.Duration
	prompts   int
	owner     string    // the run id of the process that works on it, or empty
	heard     time.Time // when the last claim or beat was read here
	done      int
	problem   string
	state     State     // once it is over, else empty
	ended     time.Time // by the server
}

// note takes a message of the stream.
func (e *entry) note(p part, m *jetstream.RawStreamMsg, now time.Time) {
	switch p {
	case partRequest: // what is known comes from a batch before it, or will be read again
		*e = entry{id: e.id, request: m.Sequence, submitted: m.Time}
		e.keep, _ = time.ParseDuration(m.Header.Get(headerKeep))
		e.prompts, _ = strconv.Atoi(m.Header.Get(headerPrompts))
	case partClaim:
		e.claim, e.owner, e.heard = m.Sequence, m.Header.Get(streams.HeaderOwner), now
	case partBeat:
		e.heard, e.problem = now, m.Header.Get(headerProblem)
		e.done, _ = strconv.Atoi(m.Header.Get(headerDone))
	case partEnd:
		e.state, e.ended = State(m.Header.Get(headerState)), m.Time
	case partReply: // they are not read here
	}
}

// stateAt is the state of the batch. One whose owner is silent waits for another.
func (e *entry) stateAt(now time.Time) State {
	switch {
	case e.state != "":
		return e.state
	case e.owner == "" || now.Sub(e.heard) >= silentMax:
		return StateQueued
	}
	return StateRunning
}

// table is what is known of all deferred batches of the stage. The desk writes it, and
// requests read it.
type table struct {
	mu      sync.Mutex // guards the rest, for a few instructions
	entries map[string]*entry
	ended   chan struct{} // closed and replaced when a batch has ended
	problem error         // why no batch can be taken, or nil
}

func newTable() *table {
	return &table{
		entries: make(map[string]*entry), ended: make(chan struct{}), problem: errNotReady,
	}
}

// note takes a message of the stream, and returns the entry that it is about.
func (t *table) note(id string, p part, m *jetstream.RawStreamMsg, now time.Time) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[id]
	if e == nil {
		e = &entry{id: id}
		t.entries[id] = e
	}
	e.note(p, m, now)
	if p == partEnd {
		close(t.ended)
		t.ended = make(chan struct{})
	}
	return e
}

// remove forgets a batch.
func (t *table) remove(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.entries, id)
}

// look returns a copy of what is known of a batch, and a channel that is closed when some
// batch ends.
func (t *table) look(id string) (e entry, known bool, ended <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if have := t.entries[id]; have != nil && have.request > 0 {
		return *have, true, t.ended
	}
	return entry{}, false, t.ended
}

// setProblem notes why no batch can be taken.
func (t *table) setProblem(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.problem = err
}

// unfit returns why no batch can be taken, or nil.
func (t *table) unfit() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.problem
}
