package lane

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/llm"
)

const (
	// trialLines bounds the failed lines that are kept back until the first reply of
	// their batch comes.
	trialLines = 64
	// alikeFirst and alikeLater are how many rows that fail alike, and none that does
	// not, mean that the settings are wrong: before the lane has seen a reply, and after.
	// Live calls are judged by the same numbers.
	alikeFirst = 5
	alikeLater = 50
)

// trial keeps back the failed lines of a batch that has no reply yet. If the provider
// refuses each of them, for the key, the model or the settings, it is no row's fault:
// were the rows sent again, they would go through three batches for nothing, and then be
// called live.
type trial struct {
	lines []keptLine
	alike int // lines that failed like the first one, lines that are not kept back included
	other int // that failed in another way
	fatal int // of all
	first *llm.Error
	left  bool // lines were not kept back: the results are read once more
}

// keptLine is the line of the row at a place of the batch.
type keptLine struct {
	i int
	r *lineRead
}

func (tr *trial) add(i int, r *lineRead) {
	switch e := r.failure; {
	case e == nil:
		tr.other++
	case e.Class == llm.Fatal:
		if tr.fatal++; tr.first == nil || tr.first.Class != llm.Fatal {
			tr.first = e
		}
	case e.Class != llm.Permanent || e.Alike == "" || tr.first != nil && tr.first.Alike != e.Alike:
		tr.other++
	default:
		if tr.alike++; tr.first == nil {
			tr.first = e
		}
	}
	if len(tr.lines) < trialLines {
		line := *r
		tr.lines = append(tr.lines, keptLine{i, &line})
	} else {
		tr.left = true
	}
}

// denies reports whether the failures are the stage's. A fatal one always is: no line of
// the batch is a reply.
func (tr *trial) denies(least int) bool {
	return tr.fatal > 0 || tr.alike >= least && tr.other == 0
}

// judgeLine has a row take its line, or keeps it back while it may be a denial.
func (c *collector) judgeLine(p *pass, i int, r *lineRead) {
	if !p.batch.judged && !r.reply() {
		p.trial.add(i, r)
		return
	}
	c.answer(p.batch, i, r.line)
}

// proves notes that the provider has answered a row, in this term or an earlier one. So
// each failed line of this batch is the fault of its row.
func (c *collector) proves(p *pass) {
	c.standing.replied, p.batch.judged = true, true
	c.standing.denial.clear()
	c.releaseLines(p)
}

// releaseLines has the rows take the lines that were kept back.
func (c *collector) releaseLines(p *pass) {
	for _, h := range p.trial.lines {
		if p.batch.state[h.i] == rowSubmitted { // otherwise it went live meanwhile
			c.answer(p.batch, h.i, h.r.line)
		}
	}
	p.trial.lines = nil
}

// conclude ends the trial of a batch that has been read to its end. It reports whether
// the batch is given up, as each of its lines was denied.
func (c *collector) conclude(p *pass) bool {
	tr, b := &p.trial, p.batch
	if len(tr.lines) == 0 {
		return false
	}
	least := alikeFirst
	switch {
	case c.standing.denial.err != nil:
		least = 1 // a probe
	case c.standing.replied:
		least = alikeLater
	}
	if !tr.denies(least) {
		b.judged = true
		c.releaseLines(p)
		return false
	}
	c.deny(b, tr.first)
	return true
}

// deny gives up a batch in which each line was denied. Its rows wait, and the batch does
// not count as one of their tries.
func (c *collector) deny(b *batch, e *llm.Error) {
	err := fmt.Errorf("the provider has refused each line of batch %s: %w", b.id, e)
	c.abandon(b, err.Error(), false, func(b *batch) {
		if c.cfg.FailFatal || c.cfg.Collect { // a live call finds the same, and the stage reacts as configured
			c.places.releaseLive(b)
			return
		}
		c.standing.denial = denial{err: err, until: time.Now().Add(c.cfg.ProbeInterval)}
		c.places.release(b)
	})
}
