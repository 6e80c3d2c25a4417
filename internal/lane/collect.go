package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

const (
	// readTime bounds a pass over the results, readStall the time that none of its lines may come.
	readTime  = 12 * time.Hour
	readStall = 2 * time.Minute
	// readAgain is the wait before results with missing lines are read once more, and before the first pass for rows that
	// have not come again since the term began.
	readAgain = 5 * time.Second
	// cutsMost is how often the provider may say that there are no results until they count as gone.
	cutsMost = 8
)

// pass is one reading of the results of a batch, from their beginning. Lines of rows that are settled are skipped, so it
// does not matter where the last one was cut.
type pass struct {
	batch   *batch
	cancel  context.CancelFunc
	taken   uint64 // rows that had come when it began
	seen    bits
	rows    int // with a line
	foreign int
	last    time.Time // when there was a line, or no room for one
	notOurs bool
	stalled bool
	skipped bool // lines of rows that have not come yet
	unused  chan bool
	trial   trial
}

// lineRead is a line on its way to the goroutine of the term.
type lineRead struct {
	pass    *pass
	line    batchapi.Line
	usage   *auditlog.Usage
	failure *llm.Error // why it is no reply; nil: it is one
}

// admit returns where lines come from while there is room for them.
func (t *term) admit() <-chan lineRead {
	if t.pass == nil || t.stopping && t.pass.batch.wanted() || len(t.out) >= linesMost || t.outBytes >= linesBytes {
		return nil
	}
	return t.lines
}

// startPass begins to read the results of the batch that has the earliest row, if none is read at the moment.
func (t *term) startPass(ctx context.Context, now time.Time) {
	if p := t.pass; p != nil {
		t.guard(p, now)
		return
	}
	var next *batch
	for _, b := range t.batches {
		if t.stopping && b.wanted() {
			continue // its rows no longer take an answer
		}
		if b.stage == stageOver && !b.busy && t.readable(b, now) && (next == nil || b.lowest() < next.lowest()) {
			next = b
		}
	}
	if next == nil || t.wait(next.next, now) || !t.mayCall(now) {
		return
	}
	t.startReading(ctx, next, now)
}

// guard cuts a pass of which nothing has come for too long.
func (t *term) guard(p *pass, now time.Time) {
	if t.admit() == nil {
		p.last = now
	}
	if !t.wait(p.last.Add(readStall), now) && !p.stalled {
		p.stalled = true
		p.cancel()
	}
}

// readable reports whether it is of use to read the results of a batch: there are rows for them, or nobody has counted
// them yet. Rows that have not come again in this term can't take an answer.
func (t *term) readable(b *batch, now time.Time) bool {
	if t.wait(b.next, now) {
		return false
	}
	first, taken := b.lowest(), t.l.taken.Load()
	switch {
	case first == 0:
		return true
	case first > taken, b.passes > 0 && b.readTo == taken && b.pending:
		return false
	case b.rows.Seqs[len(b.rows.Seqs)-1] > taken:
		return !t.wait(b.overSince.Add(readAgain), now)
	}
	return true
}

func (t *term) startReading(ctx context.Context, b *batch, now time.Time) {
	reading, cancel := context.WithTimeout(ctx, readTime)
	if b.counted == nil {
		b.counted, b.settled = newBits(len(b.state)), newBits(len(b.state))
	}
	p := &pass{batch: b, cancel: cancel, taken: t.l.taken.Load(), seen: newBits(len(b.state)), last: now, unused: make(chan bool, 1)}
	t.pass = p
	remote := b.remote
	t.call(ctx, b, readTime, func(context.Context) func(context.Context, time.Time) {
		defer cancel()
		t.l.step("fetching")
		err := t.cfg.API.Results(reading, remote, func(line batchapi.Line) error {
			t.l.step("line")
			return t.handOver(reading, p, line)
		})
		return func(_ context.Context, now time.Time) { t.passEnded(p, err, now) }
	})
}

// handOver passes a line to the goroutine of the term, and records it where no row takes it. That may wait for the
// audit, so the goroutine of the term does not do it.
func (t *term) handOver(reading context.Context, p *pass, line batchapi.Line) error {
	r := lineRead{pass: p, line: line}
	if t.cfg.Read != nil && line.Kind == batchapi.Answered {
		r.usage, r.failure = t.cfg.Read(p.batch.model, &line)
	}
	select {
	case t.lines <- r:
	case <-reading.Done():
		return reading.Err()
	}
	if <-p.unused { // it comes at once
		t.recordUnused(p.batch, line)
	}
	return nil
}

// recordUnused records an answer that no row takes. The goroutine of the term has counted it in untold.
func (t *term) recordUnused(b *batch, line batchapi.Line) {
	mail := &t.l.mail
	stored := func() { mail.put(letter{kind: letterStored, body: b}) }
	seq, _ := parseID(b.token, line.ID)
	t.cfg.Unused(&Unused{Seq: seq, Owner: t.of.Owner, BatchID: b.id, Model: b.model, Line: line}, stored)
}

// line takes one line of the results, and answers whether it is to be recorded as unused.
func (t *term) line(r lineRead) { r.pass.unused <- t.takeLine(r) }

func (t *term) takeLine(r lineRead) (unused bool) {
	p, b := r.pass, r.pass.batch
	p.last = t.now
	seq, ours := parseID(b.token, r.line.ID)
	i := -1
	if ours {
		i = b.find(seq)
	}
	if r.line.Kind == batchapi.Garbled || i < 0 {
		p.foreign++
		if p.notOurs = b.tentative && p.rows == 0 && !ours && r.line.Kind != batchapi.Garbled; p.notOurs {
			p.cancel()
		}
		return false
	}
	if !p.seen.add(i) {
		p.foreign++
		return false
	}
	p.rows++
	b.tentative = false
	came := seq <= t.l.taken.Load()
	wanted := b.state[i] == rowSubmitted
	p.skipped = p.skipped || wanted && !came
	b.note(i, &r)
	if r.reply() {
		t.proves(p)
	}
	switch {
	case r.line.Kind == batchapi.Lapsed:
		if wanted && came {
			b.set(i, rowAgain)
		}
	case wanted && came:
		t.judgeLine(p, i, &r)
	case r.reply() && b.wentLive(i) && b.settled.add(i):
		b.sum.dropped++
		if t.cfg.Unused != nil {
			b.untold++
			return true
		}
	}
	return false
}

// reply reports whether the line is one, which is billed.
func (r *lineRead) reply() bool {
	return r.line.Kind == batchapi.Answered && r.failure == nil && (r.line.Status/100 == 2 || r.line.Status == 0)
}

// note adds the line of a row to the sums, the first time that it is read.
func (b *batch) note(i int, r *lineRead) {
	if !b.counted.add(i) {
		return
	}
	switch {
	case r.line.Kind == batchapi.Lapsed:
		b.sum.lapsed++
		return
	case r.reply():
		b.sum.answered++
	default:
		b.sum.failed++
	}
	b.sum.usage.Add(r.usage, r.reply() && (r.usage == nil || r.usage.CostUSD == nil))
}

// answer has a row take its line.
func (t *term) answer(b *batch, i int, line batchapi.Line) {
	b.set(i, rowAnswered)
	b.settled.add(i)
	t.send(b.rows.Seqs[i], b, &Errand{Line: &line, Key: keyText(b.rows.Hashes[i]), BatchID: b.id, Token: b.token, Tries: b.tries(i)})
}

var errStalled = errors.New("no line of the results has come for two minutes")

// passEnded goes on after the results were read, or cut.
func (t *term) passEnded(p *pass, err error, now time.Time) {
	t.pass = nil
	b := p.batch
	if p.notOurs {
		t.notOurs(b, now)
		return
	}
	if p.stalled {
		err = errStalled
	}
	if err != nil && !t.gone(b, err, now) {
		return // what is held is read again
	}
	if err != nil && b.tentative { // it was another's, who has deleted it
		t.notOurs(b, now)
		return
	}
	t.pause.clear()
	b.fine()
	b.gone = err != nil
	b.sum.foreign, b.readTo, b.pending = p.foreign, p.taken, p.skipped
	b.passes++
	if !b.gone {
		b.cuts = 0
	}
	if t.conclude(p) {
		return
	}
	rereads := false
	for i, s := range b.state {
		if s == rowSubmitted && b.rows.Seqs[i] <= p.taken && !p.seen.has(i) {
			if !b.gone && (b.passes == 1 || b.seen.has(i)) {
				rereads = true
			} else {
				b.set(i, rowAgain)
			}
		}
	}
	b.seen = p.seen
	switch {
	case rereads, p.trial.left:
		b.pending, b.next = false, now.Add(readAgain)
	case !b.wanted():
		b.stage, b.seen = stageSettling, nil
		t.report(b)
	}
}

// gone reports whether the results are no longer there, or never were: nothing is left to read. Else they are read again
// later. The provider may say for some minutes that it does not know the results of a batch that has just ended, and a
// batch that is given up is paid for again. So the waits grow from the time between two looks to four times that. With 30 s
// it takes 12 minutes until results count as gone. The next process counts from 0.
func (t *term) gone(b *batch, err error, now time.Time) bool {
	if meaningOf(fetching, err) != unknown {
		t.succeeded(fetching, b, err, now)
		return false
	}
	t.pause.clear()
	if b.cuts++; b.cuts >= cutsMost || t.cfg.Forgets {
		return true
	}
	b.problem = fmt.Sprintf("read the results of batch %s, try %d of %d: %v", b.id, b.cuts, cutsMost, err)
	b.next = now.Add(t.cfg.Settings.Poll << min(b.cuts-1, 2))
	return false
}

// notOurs goes on looking, where the results of a batch that seemed to be ours have other ids.
func (t *term) notOurs(b *batch, now time.Time) {
	if b.excluded == nil {
		b.excluded = make(map[string]bool)
	}
	b.excluded[b.id] = true
	b.id, b.remote, b.tentative, b.adopted = "", batchapi.Batch{}, false, false
	b.stage, b.next, b.missing, b.cuts = stageLooking, time.Time{}, time.Time{}, 0
	b.lookUntil = now
}

// judge decides what becomes of the rows without an answer that counts, once no answer is on its way any more.
func (t *term) judge(b *batch, now time.Time) {
	again := b.count[rowAgain]
	if again == 0 || b.passes == 0 || b.count[rowAnswered] > 0 || t.pass != nil && t.pass.batch == b {
		return
	}
	for i, s := range b.state {
		if s != rowAgain {
			continue
		}
		u := unsettled{tries: b.tries(i), rows: len(b.state), again: again, from: b.intent}
		if at := b.deadline(i); at != 0 {
			u.deadline = time.UnixMilli(at)
		}
		if seq := b.rows.Seqs[i]; u.live(now) {
			t.goLive(seq, now)
		} else {
			t.tried.set(seq, uint8(b.tries(i)+1)) //nolint:gosec // at most triesMax
			t.await(b.model, seq)
		}
	}
}

// report records what the results of a batch held.
func (t *term) report(b *batch) {
	if b.reported {
		return
	}
	b.reported = true
	phase, reason := auditlog.BatchEnded, ""
	if b.gone {
		reason = auditlog.ResultsGone
	}
	switch b.remote.State {
	case batchapi.Expired:
		phase = auditlog.BatchExpired
	case batchapi.Cancelled:
		phase = auditlog.BatchCancelled
		if b.cancelled {
			reason = "no row of it was wanted any more"
		}
	case batchapi.Running, batchapi.Ended, batchapi.Refused:
	}
	e := t.event(b, phase, reason)
	s := &b.sum
	e.Answered, e.Failed, e.Lapsed, e.Foreign, e.Dropped = s.answered, s.failed, s.lapsed, s.foreign, s.dropped
	e.Missing = len(b.state) - s.answered - s.failed - s.lapsed
	e.Usage = s.usage.Total()
	t.audit(b, e)
	var usd float64
	if e.Usage != nil && e.Usage.CostUSD != nil {
		usd = *e.Usage.CostUSD
	}
	t.settle(b, usd)
}
