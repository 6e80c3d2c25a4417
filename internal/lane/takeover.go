package lane

import (
	"log/slog"
	"time"

	"github.com/llm-stage/stage/llm/batchapi"
)

// recover takes over the batches that earlier terms have recorded. The records come in the
// order of the stream, and the last one of a batch says where to go on:
//
//	intent      it may have been created or not: look at the provider
//	submitted   it was created: poll it
//	done        all its answers are stored: only its files and records are left
//	abandoned   its rows are free, and if its creation was uncertain, it may still turn up
func (d *desk) recover(records []Record, now time.Time) {
	byToken := make(map[string]*batch)
	for i := range records {
		r := &records[i]
		b := byToken[r.Token]
		switch {
		case r.Kind == RecordIntent:
			b = newBatch(r)
			b.phase = phaseLooking
			if !r.InputCreated.Equal(d.of.InputCreated) {
				b.problem = otherInput
			}
			byToken[r.Token] = b
			d.batches.all = append(d.batches.all, b)
		case r.Kind == RecordClaim:
		case b == nil && r.Kind == RecordAbandoned && r.Uncertain && now.Sub(r.Time) < lostAge:
			d.lose(r, now)
		case b == nil:
			d.leftovers.add(r.Token)
		case r.Kind == RecordSubmitted:
			b.id, b.adopted, b.tentative, b.submitted, b.phase = r.BatchID, r.Adopted, r.Tentative, r.Time, phaseRunning
			b.remote = batchapi.Batch{ID: r.BatchID, State: batchapi.Running, Rows: -1, Answered: -1, Failed: -1}
		case r.Kind == RecordDone:
			b.phase = phaseClosed
		case r.Kind == RecordAbandoned:
			b.phase = phaseClosed
			b.id = ""
			d.events.repeat(b, r)
			if r.Uncertain && now.Sub(r.Time) < lostAge {
				d.lose(r, now)
				b.keep = true
			}
		}
	}
	for _, b := range d.batches.all {
		d.takeOver(b, now)
	}
	d.leftovers.add(claimToken)
	d.reindex()
}

// otherInput is the problem of a batch whose rows were in an input stream that no longer
// exists.
const otherInput = "the input stream was re-created since: its rows mean others"

// takeOver prepares a batch of an earlier term.
func (d *desk) takeOver(b *batch, now time.Time) {
	if b.phase == phaseClosed {
		b.forgetRows()
		return
	}
	d.events.repeat(b, nil)
	b.lookUntil = now.Add(adoptTime(d.limits, b.bytes, d.cfg.Settings.AdoptWait))
	for i, seq := range b.rows.Seqs {
		if b.problem == otherInput || seq <= d.of.Low {
			b.set(i, rowKept)
		}
		d.places.tried.set(seq, uint8(b.tries(i))) //nolint:gosec // read from a byte
	}
	d.batches.supersede(b)
	if d.cfg.ReserveAgain != nil {
		d.cfg.ReserveAgain(b.token, b.cost)
	}
}

// rewrite records everything again that is still of use, after the stream was emptied, or
// deleted and created again. Without it the next owner would not know of the open batches,
// and would submit, and pay for, their rows again.
func (d *desk) rewrite(failed *entry, now time.Time) {
	d.lane.log.Warn("the records of the batch lane are gone: they are written again", slog.String("stream", d.cfg.Settings.Stream))
	records := []*Record{{Kind: RecordClaim, InputCreated: d.of.InputCreated}}
	for _, open := range d.batches.all {
		if open.phase == phaseSealed || open.phase == phaseClosed {
			continue // its intent is in the queue, or nothing is wanted of it
		}
		records = append(records, d.intentOf(open))
		if open.id != "" && open.phase != phaseFound {
			records = append(records, &Record{Kind: RecordSubmitted, Token: open.token, BatchID: open.id, Adopted: open.adopted, Tentative: open.tentative, Time: open.submitted})
		}
	}
	d.book.restart(records, failed, now)
}

// intentOf is the record of a batch's intent, once more.
func (d *desk) intentOf(b *batch) *Record {
	return &Record{
		Kind: RecordIntent, Token: b.token, Time: b.intent, InputCreated: d.of.InputCreated, Provider: d.cfg.Provider, Model: b.model,
		Account: b.account, Rows: &b.rows, Bytes: b.bytes, InputSHA256: b.sha, Tokens: b.tokens, Cost: b.cost,
	}
}
