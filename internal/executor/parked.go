package executor

import (
	"sync"

	"github.com/llm-stage/stage/consumer"
)

// parkedErrorsMax is how many parked rows of a partition are remembered with the errors
// of their attempts; of more, only the numbers are.
const parkedErrorsMax = 4096

// parkedSpent remembers what was spent on rows that are parked, in this term of
// ownership: their row events count all their calls in it. Rows without a call take
// nothing, and those of an earlier term are forgotten with it. Safe for concurrent use;
// the zero value is empty.
type parkedSpent struct {
	mu   sync.Mutex
	rows map[int]*termSpent // by partition
}

type termSpent struct {
	owner string
	rows  map[uint64]*spent
}

// put remembers what was spent on a row that is about to be parked.
func (p *parkedSpent) put(row *consumer.Row, s *spent) {
	if s.calls == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.rows[row.Partition]
	if owner := row.Owner(); t == nil || t.owner != owner {
		if p.rows == nil {
			p.rows = make(map[int]*termSpent)
		}
		t = &termSpent{owner: owner, rows: make(map[uint64]*spent)}
		p.rows[row.Partition] = t
	}
	all := *s
	if len(t.rows) >= parkedErrorsMax {
		all.errors = nil
	}
	t.rows[row.Seq] = &all
}

// take returns what was spent on a row in its term and forgets it, or nil.
func (p *parkedSpent) take(row *consumer.Row) *spent {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.rows[row.Partition]
	if t == nil || t.owner != row.Owner() {
		return nil
	}
	s := t.rows[row.Seq]
	delete(t.rows, row.Seq)
	return s
}
