package lane

import (
	"sync/atomic"
	"time"
)

// places are where the rows of a term are, and move a row from one place to another. A row
// that the lane has is in at least one of these:
//
//	a batch   the newest that has the row ([batchList.holder]) says in which state
//	intake    it is in no recorded batch yet
//	live      it is called live
//	answers   its answer is on its way through the executor
//
// The batch and the other places move together: a row that goes live, or into another
// batch, is rowLive or rowElsewhere in the batch that had it. So a row is wanted of at most
// one open batch. A row that is in none of the places is unknown to the lane.
type places struct {
	batches *batchList
	intake  intake
	live    liveRows
	answers answers
	tried   triedRows
	dues    deadlines

	// recall is [consumer.LaneTerm.Recall], taken is [Lane.taken], and collect is
	// [Config.Collect].
	recall  func(seq uint64, errand any)
	taken   *atomic.Uint64
	collect bool
}

// loose reports whether a row is on its way into a batch, or live.
func (p *places) loose(seq uint64) bool {
	_, out := p.answers.out[seq]
	return out || p.live.rows.has(seq) || p.intake.has(seq)
}

// await has a row wait for a batch to gather in. Where there will be none it goes live.
func (p *places) await(model string, seq uint64) {
	if p.collect {
		p.goLive(seq)
		return
	}
	p.intake.await(model, seq)
	p.elsewhere(seq)
}

// elsewhere notes that a row has left the batch that has it.
func (p *places) elsewhere(seq uint64) {
	if b, i := p.batches.holder(seq); b != nil && b.state[i] != rowKept {
		b.set(i, rowElsewhere)
	}
}

// goLive has a row called live.
func (p *places) goLive(seq uint64) {
	if b, i := p.batches.holder(seq); b != nil && b.state[i] != rowKept {
		b.set(i, rowLive)
	}
	p.intake.unwait(seq)
	p.live.add(seq)
}

// overdue has rows go live whose deadline has come. It returns the next deadline, or zero.
func (p *places) overdue(now time.Time) time.Time {
	for {
		due, ok := p.dues.next()
		if !ok {
			return time.Time{}
		}
		if at := time.UnixMilli(due.at); now.Before(at) {
			return at
		}
		p.dues.pop()
		b, i := p.batches.holder(due.seq)
		switch {
		case b != nil && (b.state[i] == rowSubmitted || b.state[i] == rowAgain):
			p.goLive(due.seq)
		case b != nil && b.state[i] != rowElsewhere && b.state[i] != rowKept:
		case p.intake.coming[due.seq]: // it goes live when it joins
		case p.intake.ungather(due.seq), p.intake.unwait(due.seq):
			p.goLive(due.seq)
		}
	}
}

// again takes back a row whose answer did not settle it.
func (p *places) again(seq uint64, e *Errand) {
	o, out := p.answers.out[seq]
	if !out || o.errand != e {
		return // of an earlier term
	}
	p.answers.back(seq)
	b := o.batch
	if b == nil {
		p.tried.set(seq, p.tried.count(seq)+1)
		p.await("", seq)
	} else if i := b.find(seq); i >= 0 && b.state[i] == rowAnswered {
		b.set(i, rowAgain)
	}
}

// kept forgets a row.
func (p *places) kept(seq uint64) {
	p.answers.back(seq)
	p.live.forget(seq)
	p.tried.remove(seq)
	p.intake.forget(seq)
	for _, b := range p.batches.all {
		if b.phase == phaseClosed {
			continue
		}
		if i := b.find(seq); i >= 0 && b.state[i] != rowMoved {
			b.set(i, rowKept)
		}
	}
}

// holds takes a row that was parked because a batch has it. The batch may have been given
// up in between:
//
//	consumer   [Lane.Holds] is about to find row 7 in batch b
//	keeper     gives b up. Row 7 has not come yet, so it is not released with the others
//	consumer   finds row 7 in b, and parks it
//	keeper     reads that, finds no batch that has row 7, and has the row wait for another
func (p *places) holds(seq uint64) {
	b, i := p.batches.holder(seq)
	switch {
	case b != nil && b.state[i] == rowSubmitted:
		p.dues.add(seq, b.deadline(i))
	case b != nil && b.state[i] == rowKept:
		p.await(b.model, seq)
	case b == nil && !p.loose(seq):
		p.await("", seq)
	}
}

// callIn recalls a row, so that its body is read again and it can join a batch. A row that
// waits is only a number here: a hundred thousand of them may wait, whose bodies would not
// fit into memory.
func (p *places) callIn(seq uint64) {
	p.intake.coming[seq] = true
	p.recall(seq, nil)
}

// sendLive recalls rows that go live.
func (p *places) sendLive() {
	for {
		seq, ok := p.live.next()
		if !ok {
			return
		}
		tries := int(p.tried.count(seq))
		if b, i := p.batches.holder(seq); b != nil {
			tries = b.tries(i) + 1
		}
		p.recall(seq, liveErrands[min(tries, len(liveErrands)-1)])
	}
}

// sendFailing recalls rows that fail by a refusal.
func (p *places) sendFailing() {
	for len(p.answers.failing) > 0 && len(p.answers.out) < linesMost {
		f := p.answers.failing[0]
		p.answers.failing = p.answers.failing[1:]
		p.send(f.seq, nil, f.errand)
	}
}

// send recalls a row with its answer.
func (p *places) send(seq uint64, b *batch, e *Errand) {
	p.answers.add(seq, outLine{batch: b, errand: e, bytes: int64(len(e.Line.Body))})
	p.recall(seq, e)
}

// release has the rows of a batch that is given up go into others. Rows that have not
// come yet in this term need nothing: they start like new ones.
func (p *places) release(b *batch) {
	for i, seq := range b.rows.Seqs {
		if p.unanswered(b, i) {
			p.await(b.model, seq)
		}
	}
}

// unanswered reports whether a row of a batch that is given up must go elsewhere.
func (p *places) unanswered(b *batch, i int) bool {
	return (b.state[i] == rowSubmitted || b.state[i] == rowAgain) && b.rows.Seqs[i] <= p.taken.Load()
}

// releaseLive has the rows of a batch go live.
func (p *places) releaseLive(b *batch) {
	for i, seq := range b.rows.Seqs {
		if p.unanswered(b, i) {
			p.goLive(seq)
		}
	}
}
