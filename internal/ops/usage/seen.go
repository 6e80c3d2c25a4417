package usage

import (
	"crypto/sha256"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/seqset"
)

// seen remembers the calls that were counted last, in two generations. When now is full
// it becomes before, and the old before is forgotten. So a call is recognised at least
// until one further generation has filled up.
type seen struct {
	most        int // size of one generation
	now, before generation
	size        int // of now, in units of about 4 bytes
}

const (
	// generationSize bounds one generation to 16 MB: 4 million calls of consecutive rows,
	// half a million of batched requests, or 40,000 of as many terms.
	generationSize = 4 << 20
	// runSize and chunkSize are what the first call of a run, and of 65,536 sequences,
	// takes in addition. requestSize is what a call of a batched request takes.
	runSize     = 64
	chunkSize   = 32
	requestSize = 8
)

// generation is a set of calls: calls for rows as sequences within their run, batched
// requests by a hash.
type generation struct {
	rows     map[callRun]*sequences
	requests map[[16]byte]struct{}
}

// callRun names a run of calls with at most one for each row: the calls with one index in
// one term of ownership, or the calls that one batch has answered.
type callRun struct {
	stage, name string
	partition   auditlog.Partition
	index       int
}

// sequences is the set of the rows in a run.
type sequences struct {
	seqset.Set

	chunk uint64 // the last sequence, without its last 16 bits
}

// runOf returns the run to which the call for a row belongs. The calls for elements are
// numbered over all elements of their row.
func runOf(c *auditlog.Call) callRun {
	r := callRun{stage: c.Stage, name: c.Owner, partition: c.Partition, index: c.CallIndex}
	if name, ok := token(c); ok {
		r.name, r.index = name, -1
	}
	return r
}

// add adds a call and reports whether it is new.
func (s *seen) add(c *auditlog.Call) (fresh bool) {
	if s.size >= s.most || s.now.rows == nil {
		s.before, s.size = s.now, 0
		s.now = generation{rows: make(map[callRun]*sequences), requests: make(map[[16]byte]struct{})}
	}
	if c.Sequence == 0 {
		return s.addRequest(c)
	}
	run := runOf(c)
	if before := s.before.rows[run]; before != nil && before.Has(c.Sequence) {
		return false
	}
	now := s.now.rows[run]
	if now == nil {
		run.stage, run.name = strings.Clone(run.stage), strings.Clone(run.name)
		now = &sequences{chunk: c.Sequence >> 16}
		s.now.rows[run] = now
		s.size += runSize + chunkSize
	}
	if !now.Add(c.Sequence) {
		return false
	}
	s.size++
	if chunk := c.Sequence >> 16; chunk != now.chunk {
		now.chunk = chunk
		s.size += chunkSize
	}
	return true
}

// addRequest is add for a call of a batched request, which has no row.
func (s *seen) addRequest(c *auditlog.Call) (fresh bool) {
	sum := sha256.Sum256([]byte(c.Stage + "/" + c.MsgID()))
	key := [16]byte(sum[:16])
	_, before := s.before.requests[key]
	_, now := s.now.requests[key]
	if before || now {
		return false
	}
	s.now.requests[key] = struct{}{}
	s.size += requestSize
	return true
}
