package lane

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sync"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/llm"
)

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

// Add takes a row into the lane. The caller parks the row right after. Safe for
// concurrent use; it does not block.
func (l *Lane) Add(r Request) { l.mail.put(letter{kind: letterAdd, seq: r.Seq, body: &r}) }

// Again reports that the answer of an errand did not settle the row: its failure may
// pass, or it answers another request. The caller parks the row; the lane recalls it
// later. Safe for concurrent use; it does not block.
func (l *Lane) Again(seq uint64, e *Errand, _ *llm.Error) {
	l.mail.put(letter{kind: letterAgain, seq: seq, body: e})
}

// Kept implements [consumer.Lane].
func (l *Lane) Kept(seq uint64) {
	l.taken.Store(max(l.taken.Load(), seq))
	l.mail.put(letter{kind: letterKept, seq: seq})
}

// Holds implements [consumer.Lane]. What it finds does not change, so it needs no lock;
// should the row's batch be given up meanwhile, the goroutine of the term finds that out
// by the letter and recalls the row.
func (l *Lane) Holds(row *consumer.Row) bool {
	l.taken.Store(max(l.taken.Load(), row.Seq))
	if !l.inBatch.Load().has(row.Seq) {
		return false
	}
	l.mail.put(letter{kind: letterHeld, seq: row.Seq})
	return true
}

// Stop implements [consumer.Lane].
func (l *Lane) Stop() { l.mail.put(letter{kind: letterStop}) }

// shortKey is the beginning of a request's key: 8 bytes of its hash.
func shortKey(key string) uint64 {
	var b [8]byte
	if len(key) >= 16 {
		if _, err := hex.Decode(b[:], []byte(key[:16])); err == nil {
			return binary.BigEndian.Uint64(b[:])
		}
	}
	sum := sha256.Sum256([]byte(key))
	return binary.BigEndian.Uint64(sum[:8])
}

func keyText(short uint64) string {
	return hex.EncodeToString(binary.BigEndian.AppendUint64(nil, short))
}
