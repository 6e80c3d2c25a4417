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
	// readTime bounds a pass over the results, readStall the time that none of its lines
	// may come.
	readTime  = 12 * time.Hour
	readStall = 2 * time.Minute
	// readAgain is the wait before results with missing lines are read once more, and
	// before the first pass for rows that have not come again since the term began.
	readAgain = 5 * time.Second
	// cutsMost is how often the provider may say that there are no results until they
	// count as gone.
	cutsMost = 8
)

// collector reads the results of batches that are over, one batch at a time, and has the
// rows take their lines.
type collector struct {
	*desk
	pass  *pass // the reading that is under way, or nil
	lines chan lineRead
}

// pass is one reading of the results of a batch, from their beginning. Lines of rows that
// are settled are skipped, so it does not matter where the last one was cut.
type pass struct {
	batch   *batch
	cancel  context.CancelFunc
	taken   uint64    // the highest row that had come when it began
	seen    bits      // rows with a line
	rows    int       // how many those are
	foreign int       // lines that are of no row of the batch, or a second time of one
	last    time.Time // when there was a line, or no room for one
	notOurs bool      // the first line is of another batch, so the results are
	stalled bool      // it was cut, as no line came for readStall
	skipped bool      // it had lines of rows that have not come yet
	unused  chan bool // for each line: whether the pass must record it as unused
	trial   trial
}

// lineRead is a line on its way to the keeper.
type lineRead struct {
	pass    *pass
	line    batchapi.Line
	usage   *auditlog.Usage
	failure *llm.Error // why it is no reply, or nil
}

// admit returns where lines come from while there is room for them.
func (c *collector) admit() <-chan lineRead {
	if c.pass == nil || c.stopping && c.pass.batch.wanted() || c.places.answers.full() {
		return nil
	}
	return c.lines
}

// startPass begins to read the results of the batch that has the earliest row, if none is
// read at the moment.
func (c *collector) startPass(ctx context.Context, now time.Time) {
	if p := c.pass; p != nil {
		c.guard(p, now)
		return
	}
	var next *batch
	for _, b := range c.batches.all {
		if c.stopping && b.wanted() {
			continue // its rows no longer take an answer
		}
		if b.phase == phaseOver && !b.busy && c.readable(b, now) && (next == nil || b.lowest() < next.lowest()) {
			next = b
		}
	}
	if next == nil || c.loop.wait(next.next, now) || !c.mayCall(now) {
		return
	}
	c.startReading(ctx, next, now)
}

// guard cuts a pass when no line of it has come for too long.
func (c *collector) guard(p *pass, now time.Time) {
	if c.admit() == nil {
		p.last = now
	}
	if !c.loop.wait(p.last.Add(readStall), now) && !p.stalled {
		p.stalled = true
		p.cancel()
	}
}

// readable reports whether it is of use to read the results of a batch: there are rows
// for them, or nobody has counted them yet. Rows that have not come again in this term
// can't take an answer.
func (c *collector) readable(b *batch, now time.Time) bool {
	if c.loop.wait(b.next, now) {
		return false
	}
	first, taken := b.lowest(), c.lane.taken.Load()
	switch {
	case first == 0:
		return true
	case first > taken, b.passes > 0 && b.readTo == taken && b.pending:
		return false
	case b.rows.Seqs[len(b.rows.Seqs)-1] > taken:
		return !c.loop.wait(b.overSince.Add(readAgain), now)
	}
	return true
}

// startReading begins a pass over the results of a batch. The pass runs in a goroutine of
// its own and hands over one line at a time:
//
//	the pass   sends the line to the keeper, and waits for unused
//	keeper     has the row take it, and answers at once
//	the pass   records the line if no row took it, and reads the next one
//
// While the answers on their way are enough, the keeper takes no line, and so the reading
// stops.
func (c *collector) startReading(ctx context.Context, b *batch, now time.Time) {
	reading, cancel := context.WithTimeout(ctx, readTime)
	if b.counted == nil {
		b.counted, b.settled = newBits(len(b.state)), newBits(len(b.state))
	}
	p := &pass{batch: b, cancel: cancel, taken: c.lane.taken.Load(), seen: newBits(len(b.state)), last: now, unused: make(chan bool, 1)}
	c.pass = p
	remote := b.remote
	c.call(ctx, b, readTime, func(context.Context) followUp {
		defer cancel()
		c.lane.step("fetching")
		err := c.cfg.API.Results(reading, remote, func(line batchapi.Line) error {
			c.lane.step("line")
			return c.handOver(reading, p, line)
		})
		return func(_ context.Context, now time.Time) { c.passEnded(p, err, now) }
	})
}

// handOver passes a line to the keeper, and records it where no row takes it. Recording
// may wait for the audit, so the keeper does not do it: a full audit stream then stops
// the reading, not the lane.
func (c *collector) handOver(reading context.Context, p *pass, line batchapi.Line) error {
	r := lineRead{pass: p, line: line}
	if c.cfg.Read != nil && line.Kind == batchapi.Answered {
		r.usage, r.failure = c.cfg.Read(p.batch.model, &line)
	}
	select {
	case c.lines <- r:
	case <-reading.Done():
		return reading.Err()
	}
	if <-p.unused { // it comes at once
		c.recordUnused(p.batch, line)
	}
	return nil
}

// recordUnused records an answer that no row takes. The keeper has counted it in unstored.
func (c *collector) recordUnused(b *batch, line batchapi.Line) {
	mail := &c.lane.mail
	stored := func() { mail.put(letter{kind: letterStored, body: b}) }
	seq, _ := parseID(b.token, line.ID)
	c.cfg.Unused(&Unused{Seq: seq, Owner: c.of.Owner, BatchID: b.id, Model: b.model, Line: line}, stored)
}

// line takes one line of the results, and tells the pass whether to record it as unused.
func (c *collector) line(r lineRead) { r.pass.unused <- c.takeLine(r) }

// takeLine finds the row of a line. A row takes one line of a pass, and one in all.
func (c *collector) takeLine(r lineRead) (unused bool) {
	p, b := r.pass, r.pass.batch
	p.last = c.loop.now
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
	came := seq <= c.lane.taken.Load()
	wanted := b.state[i] == rowSubmitted
	p.skipped = p.skipped || wanted && !came
	b.note(i, &r)
	if r.reply() {
		c.proves(p)
	}
	switch {
	case r.line.Kind == batchapi.Lapsed:
		if wanted && came {
			b.set(i, rowAgain)
		}
	case wanted && came:
		c.judgeLine(p, i, &r)
	case r.reply() && b.wentLive(i) && b.settled.add(i):
		b.sum.dropped++
		if c.cfg.Unused != nil {
			b.unstored++
			return true
		}
	}
	return false
}

// reply reports whether the line is one, which is billed.
func (r *lineRead) reply() bool {
	return r.line.Kind == batchapi.Answered && r.failure == nil && (r.line.Status/100 == 2 || r.line.Status == 0)
}

// answer has a row take its line.
func (c *collector) answer(b *batch, i int, line batchapi.Line) {
	b.set(i, rowAnswered)
	b.settled.add(i)
	c.places.send(b.rows.Seqs[i], b, &Errand{Line: &line, Key: keyText(b.rows.Hashes[i]), BatchID: b.id, Token: b.token, Tries: b.tries(i)})
}

var errStalled = errors.New("no line of the results has come for two minutes")

// passEnded goes on after the results were read, or cut.
func (c *collector) passEnded(p *pass, err error, now time.Time) {
	c.pass = nil
	b := p.batch
	if p.notOurs {
		b.notOurs(now)
		return
	}
	if p.stalled {
		err = errStalled
	}
	if err != nil && !c.gone(b, err, now) {
		return // the lines that were kept back are read again
	}
	if err != nil && b.tentative { // it was another's, who has deleted it
		b.notOurs(now)
		return
	}
	c.standing.pause.clear()
	b.fine()
	b.gone = err != nil
	b.sum.foreign, b.readTo, b.pending = p.foreign, p.taken, p.skipped
	b.passes++
	if !b.gone {
		b.cuts = 0
	}
	if c.conclude(p) {
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
		b.phase, b.seen = phaseSettling, nil
		c.report(b)
	}
}

// gone reports whether the results are no longer there, or never were: nothing is left to
// read. Else they are read again later. The provider may say for some minutes that it
// does not know the results of a batch that has just ended, and a batch that is given up
// is paid for again. So the waits grow from the time between two looks to four times
// that. With 30 s it takes 12 minutes until results count as gone. The next process
// counts from 0.
func (c *collector) gone(b *batch, err error, now time.Time) bool {
	if meaningOf(fetching, err) != unknown {
		c.succeeded(fetching, b, err, now)
		return false
	}
	c.standing.pause.clear()
	if b.cuts++; b.cuts >= cutsMost || c.cfg.Forgets {
		return true
	}
	b.problem = fmt.Sprintf("read the results of batch %s, try %d of %d: %v", b.id, b.cuts, cutsMost, err)
	b.next = now.Add(c.cfg.Settings.Poll << min(b.cuts-1, 2))
	return false
}

// takenByOther reports whether the id of a tentative batch surely belongs to another one.
func (c *collector) takenByOther(b *batch) bool {
	return b.tentative && (b.phase == phaseRunning || b.phase == phaseOver) && (c.pass == nil || c.pass.batch != b) && c.batches.known(b)[b.id] == idTaken
}

// report records what the results of a batch held.
func (c *collector) report(b *batch) {
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
	e := c.events.about(b, phase, reason)
	s := &b.sum
	e.Answered, e.Failed, e.Lapsed, e.Foreign, e.Dropped = s.answered, s.failed, s.lapsed, s.foreign, s.dropped
	e.Missing = len(b.state) - s.answered - s.failed - s.lapsed
	e.Usage = s.usage.Total()
	c.events.report(b, e)
	var usd float64
	if e.Usage != nil && e.Usage.CostUSD != nil {
		usd = *e.Usage.CostUSD
	}
	c.settle(b, usd)
}
