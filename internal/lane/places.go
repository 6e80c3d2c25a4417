package lane

import "time"

// loose reports whether a row is on its way into a batch, or live.
func (d *desk) loose(seq uint64) bool {
	_, out := d.answers.out[seq]
	return out || d.live.rows.has(seq) || d.intake.has(seq)
}

// await has a row wait for a batch to gather in. Where there will be none it goes live.
func (d *desk) await(model string, seq uint64) {
	if d.cfg.Collect {
		d.goLive(seq)
		return
	}
	d.intake.await(model, seq)
	d.elsewhere(seq)
}

// elsewhere notes that a row has left the batch that has it.
func (d *desk) elsewhere(seq uint64) {
	if b, i := d.batches.holder(seq); b != nil && b.state[i] != rowKept {
		b.set(i, rowElsewhere)
	}
}

// goLive has a row called live.
func (d *desk) goLive(seq uint64) {
	if b, i := d.batches.holder(seq); b != nil && b.state[i] != rowKept {
		b.set(i, rowLive)
	}
	d.intake.unwait(seq)
	d.live.add(seq)
}

// overdue has rows go live whose deadline has come.
func (d *desk) overdue(now time.Time) {
	for {
		due, ok := d.dues.next()
		if !ok || d.loop.wait(time.UnixMilli(due.at), now) {
			return
		}
		d.dues.pop()
		b, i := d.batches.holder(due.seq)
		switch {
		case b != nil && (b.state[i] == rowSubmitted || b.state[i] == rowAgain):
			d.goLive(due.seq)
		case b != nil && b.state[i] != rowElsewhere && b.state[i] != rowKept:
		case d.intake.coming[due.seq]: // it goes live when it joins
		case d.intake.ungather(due.seq), d.intake.unwait(due.seq):
			d.goLive(due.seq)
		}
	}
}

// again takes back a row whose answer did not settle it.
func (d *desk) again(seq uint64, e *Errand) {
	o, out := d.answers.out[seq]
	if !out || o.errand != e {
		return // of an earlier term
	}
	d.answers.back(seq)
	b := o.batch
	if b == nil {
		d.tried.set(seq, d.tried.count(seq)+1)
		d.await("", seq)
	} else if i := b.find(seq); i >= 0 && b.state[i] == rowAnswered {
		b.set(i, rowAgain)
	}
}

// kept forgets a row.
func (d *desk) kept(seq uint64) {
	d.answers.back(seq)
	d.live.forget(seq)
	d.tried.remove(seq)
	d.intake.forget(seq)
	for _, b := range d.batches.all {
		if b.phase == phaseClosed {
			continue
		}
		if i := b.find(seq); i >= 0 && b.state[i] != rowMoved {
			b.set(i, rowKept)
		}
	}
}

// holds takes a row that was parked since it is in a batch. If that was given up
// meanwhile, the row goes again.
func (d *desk) holds(seq uint64) {
	b, i := d.batches.holder(seq)
	switch {
	case b != nil && b.state[i] == rowSubmitted:
		d.dues.add(seq, b.deadline(i))
	case b != nil && b.state[i] == rowKept:
		d.await(b.model, seq)
	case b == nil && !d.loose(seq):
		d.await("", seq)
	}
}

// sendLive recalls rows that go live.
func (d *desk) sendLive() {
	if d.stopping {
		return
	}
	for {
		seq, ok := d.live.next()
		if !ok {
			return
		}
		tries := int(d.tried.count(seq))
		if b, i := d.batches.holder(seq); b != nil {
			tries = b.tries(i) + 1
		}
		d.of.Recall(seq, liveErrands[min(tries, len(liveErrands)-1)])
	}
}

// sendFailing recalls rows that fail by a refusal.
func (d *desk) sendFailing() {
	for !d.stopping && len(d.answers.failing) > 0 && len(d.answers.out) < linesMost {
		f := d.answers.failing[0]
		d.answers.failing = d.answers.failing[1:]
		d.send(f.seq, nil, f.errand)
	}
}

// send recalls a row with its answer.
func (d *desk) send(seq uint64, b *batch, e *Errand) {
	d.answers.add(seq, outLine{batch: b, errand: e, bytes: int64(len(e.Line.Body))})
	d.of.Recall(seq, e)
}

// release has the rows of a batch that is given up go into others. Rows that have not
// come yet in this term need nothing: they start like new ones.
func (d *desk) release(b *batch) {
	for i, seq := range b.rows.Seqs {
		if d.unanswered(b, i) {
			d.await(b.model, seq)
		}
	}
}

// unanswered reports whether a row of a batch that is given up must go elsewhere.
func (d *desk) unanswered(b *batch, i int) bool {
	return (b.state[i] == rowSubmitted || b.state[i] == rowAgain) && b.rows.Seqs[i] <= d.lane.taken.Load()
}

// releaseLive has the rows of a batch go live.
func (d *desk) releaseLive(b *batch) {
	for i, seq := range b.rows.Seqs {
		if d.unanswered(b, i) {
			d.goLive(seq)
		}
	}
}
