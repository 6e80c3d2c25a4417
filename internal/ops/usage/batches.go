package usage

import (
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/cost"
)

const (
	// batchesKept is how many batches that are over are held until their last calls are
	// there.
	batchesKept = 4096
	// batchSettles is how long the last call events of a batch may come after its end.
	batchSettles = time.Minute
)

// batches finds out what providers have billed for answers of batches that no row has
// used, so that they have no call: their rows had gone live. A batch whose beginning was
// not read is left out, as calls of it may be missing.
type batches struct {
	open      map[string]*billed // by token
	closed    []string           // tokens of those that are over, oldest first
	forgotten unused
}

// billed is one batch: what it was billed, and what its calls come to.
type billed struct {
	end    *auditlog.Batch // or nil while it is not over
	calls  int
	counts cost.Spending
}

// unused are answers that were billed and not used.
type unused struct {
	answers  int
	tokens   int64
	usd      float64 // the known cost
	unpriced int     // batches with such answers whose cost is not known
}

func (u *unused) add(o unused) {
	u.answers += o.answers
	u.tokens += o.tokens
	u.usd += o.usd
	u.unpriced += o.unpriced
}

func newBatches() batches { return batches{open: make(map[string]*billed)} }

// event takes a batch event. A batch ends once, but its end may be recorded again: an owner
// that was killed before it was done with the batch leaves that to the next owner.
func (b *batches) event(e *auditlog.Batch) {
	key := e.Stage + "/" + e.Token
	have := b.open[key]
	switch {
	case e.Phase == auditlog.BatchIntent && have == nil:
		b.open[key] = &billed{}
	case have == nil:
	case e.Phase.Over(), e.Phase == auditlog.BatchAbandoned && have.end == nil:
		if have.end == nil {
			b.closed = append(b.closed, key)
		}
		have.end = e
		b.forget()
	}
}

// call takes the call of a row that a batch has answered.
func (b *batches) call(c *auditlog.Call) {
	name, ok := token(c)
	if !ok {
		return
	}
	if have := b.open[c.Stage+"/"+name]; have != nil {
		have.calls++
		have.counts.Add(c)
	}
}

// forget drops the oldest batches that are over, beyond the bound.
func (b *batches) forget() {
	for ; len(b.closed) > batchesKept; b.closed = b.closed[1:] {
		have := b.open[b.closed[0]]
		b.forgotten.add(have.unused(have.end.Time.Add(batchSettles)))
		delete(b.open, b.closed[0])
	}
}

// sum returns the bill for answers that no row used, over all batches.
func (b *batches) sum(now time.Time) unused {
	all := b.forgotten
	for _, have := range b.open {
		all.add(have.unused(now))
	}
	return all
}

// unused returns what the batch was billed beyond its calls. Errors are not billed.
func (b *billed) unused(now time.Time) (u unused) {
	if b.end == nil || now.Sub(b.end.Time) < batchSettles {
		return unused{}
	}
	u.answers = b.end.Answered + b.end.Failed - b.calls
	if u.answers <= 0 || b.end.Answered == 0 {
		return unused{}
	}
	all, used := b.end.Usage, b.counts.Usage
	if all == nil {
		all = new(auditlog.Usage)
	}
	if used == nil {
		used = new(auditlog.Usage)
	}
	if u.tokens = max(0, all.TotalTokens-used.TotalTokens); all.CostUSD == nil {
		u.unpriced = 1
		return u
	}
	u.usd = max(0, *all.CostUSD-b.counts.KnownUSD)
	if u.tokens == 0 && u.usd < usdDust { // they were errors
		return unused{}
	}
	return u
}

// usdDust is the most by which sums of the same costs may differ, because they were added
// in another order.
const usdDust = 1e-9
