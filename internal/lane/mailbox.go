package lane

import "sync"

// letterKind is what a letter reports.
type letterKind uint8

const (
	letterAdd letterKind = iota + 1
	letterAgain
	letterKept
	letterHeld
	letterStop
	letterStored
)

// letter is a report to the keeper.
type letter struct {
	seq  uint64
	body any // *Request with letterAdd, *Errand with letterAgain, *batch with letterStored
	kind letterKind
}

// mailbox passes letters without ever blocking who sends them. What the consumer parks
// bounds it.
type mailbox struct {
	signal chan struct{} // holds one token while there may be something

	mu      sync.Mutex
	letters []letter
}

func (m *mailbox) put(l letter) {
	m.mu.Lock()
	m.letters = append(m.letters, l)
	m.mu.Unlock()
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// take returns the letters and keeps spare for the next ones.
func (m *mailbox) take(spare []letter) []letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	letters := m.letters
	m.letters = spare[:0]
	return letters
}
