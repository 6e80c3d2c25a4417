package lane

import (
	"context"
	"errors"
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
	seen    []uint64
	rows    int // with a line
	lines   int
	sum     tally
	last    time.Time // when there was a line, or no room for one
	notOurs bool
	stalled bool
	skipped bool // lines of rows that have not come yet
}

// lineRead is a line on its way to the goroutine of the term.
type lineRead struct {
	pass  *pass
	line  batchapi.Line
	usage *auditlog.Usage
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
	p := &pass{batch: b, cancel: cancel, taken: t.l.taken.Load(), seen: make([]uint64, (len(b.state)+63)/64), last: now}
	t.pass = p
	remote, usage := b.remote, t.cfg.Usage
	t.call(ctx, b, readTime, func(context.Context) func(context.Context, time.Time) {
		defer cancel()
		t.l.step("fetching")
		err := t.cfg.API.Results(reading, remote, func(line batchapi.Line) error {
			t.l.step("line")
			r := lineRead{pass: p, line: line}
			if usage != nil && line.Kind == batchapi.Answered {
				r.usage = usage(b.model, &line)
			}
			select {
			case t.lines <- r:
				return nil
			case <-reading.Done():
				return reading.Err()
			}
		})
		return func(_ context.Context, now time.Time) { t.passEnded(p, err, now) }
	})
}

// line takes one line of the results.
func (t *term) line(r lineRead) {
	p, b := r.pass, r.pass.batch
	p.last = t.now
	p.lines++
	seq, ours := parseID(b.token, r.line.ID)
	i := -1
	if ours {
		i = b.find(seq)
	}
	if r.line.Kind == batchapi.Garbled || i < 0 {
		p.sum.foreign++
		if p.notOurs = b.tentative && p.rows == 0 && !ours && r.line.Kind != batchapi.Garbled; p.notOurs {
			p.cancel()
		}
		return
	}
	if p.seen[i/64]&(1<<(i%64)) != 0 {
		p.sum.foreign++
		return
	}
	p.seen[i/64] |= 1 << (i % 64)
	p.rows++
	b.tentative = false
	came := seq <= t.l.taken.Load()
	wanted := b.state[i] == rowSubmitted
	p.skipped = p.skipped || wanted && !came
	if r.line.Kind == batchapi.Lapsed {
		if p.sum.lapsed++; wanted && came {
			b.set(i, rowAgain)
		}
		return
	}
	good := r.line.Status/100 == 2 || r.line.Status == 0
	if good {
		p.sum.answered++
	} else {
		p.sum.failed++
	}
	p.sum.usage.Add(r.usage, good && (r.usage == nil || r.usage.CostUSD == nil))
	switch {
	case wanted && came:
		b.set(i, rowAnswered)
		line := r.line
		t.send(seq, b, &Errand{Line: &line, Key: keyText(b.rows.Hashes[i]), BatchID: b.id, Token: b.token, Tries: b.tries(i)})
	case good && b.goneLive(i):
		p.sum.dropped++
	}
}

var errStalled = errors.New("no line of the results has come for two minutes")

// passEnded goes on after the results were read, or cut.
func (t *term) passEnded(p *pass, err error, now time.Time) {
	t.pass = nil
	b := p.batch
	if p.notOurs || b.tentative && errors.Is(err, batchapi.ErrNotFound) {
		t.notOurs(b, now)
		return
	}
	if p.stalled {
		err = errStalled
	}
	if err != nil && !t.gone(b, err) {
		t.succeeded(b, err, now)
		return
	}
	t.pause.clear()
	b.fine()
	p.sum.missing = len(b.state) - p.rows
	b.sum, b.readTo, b.pending = p.sum, p.taken, p.skipped
	b.passes++
	rereads := false
	for i, s := range b.state {
		if bit := uint64(1) << (i % 64); s == rowSubmitted && b.rows.Seqs[i] <= p.taken && p.seen[i/64]&bit == 0 {
			if b.passes == 1 || b.seen[i/64]&bit != 0 {
				rereads = true
			} else {
				b.set(i, rowAgain)
			}
		}
	}
	b.seen = p.seen
	switch {
	case rereads:
		b.pending, b.next = false, now.Add(readAgain)
	case !b.wanted():
		b.stage, b.seen = stageSettling, nil
		t.report(b)
	}
}

// gone reports whether the results are no longer there, or never were: nothing is left to read.
func (t *term) gone(b *batch, err error) bool {
	class, _ := classOf(err)
	if class == llm.Permanent || errors.Is(err, batchapi.ErrNotFound) {
		b.cuts++
	}
	return b.cuts >= cutsMost
}

// notOurs goes on looking, where the results of a batch that seemed to be ours have other ids.
func (t *term) notOurs(b *batch, now time.Time) {
	if b.excluded == nil {
		b.excluded = make(map[string]bool)
	}
	b.excluded[b.id] = true
	b.id, b.remote, b.tentative, b.adopted = "", batchapi.Batch{}, false, false
	b.stage, b.next = stageLooking, time.Time{}
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
	e.Answered, e.Failed, e.Lapsed, e.Missing, e.Foreign, e.Dropped = s.answered, s.failed, s.lapsed, s.missing, s.foreign, s.dropped
	e.Usage = s.usage.Total()
	t.audit(b, e)
	var usd float64
	if e.Usage != nil && e.Usage.CostUSD != nil {
		usd = *e.Usage.CostUSD
	}
	t.settle(b, usd)
}
