package consumer

import "sync/atomic"

// Resumer is what an [Executor] that asks [Row.MayBegin] is: Resume reports that rows may begin that might not before.
// Resume must not block.
type Resumer interface {
	Resume()
}

// MayBegin reports whether there is room for the row's reply. An executor that goes by it begins no row while replies
// that wait for an earlier row use up the window's bytes, and implements [Resumer]. A row that answered ones wait for
// may always begin, as may the oldest without a reply, and one that is no longer wanted, to be handed back.
func (r *Row) MayBegin() bool { return r.gate.admits(r.Seq) || r.awaited.Load() || !r.Wanted() }

// gate is shut while the window holds more than its bytes. Rows count by their own size when they are taken, and how
// large a reply is shows only when it is there: short rows with long replies would come to many times the window's
// bytes.
type gate struct {
	shut  atomic.Bool
	first atomic.Uint64 // row without a reply
}

func (g *gate) admits(seq uint64) bool { return !g.shut.Load() || seq <= g.first.Load() }

// set returns whether rows may begin now that might not before.
func (g *gate) set(shut bool, first uint64) bool {
	advanced := g.first.Swap(first) < first
	return g.shut.Swap(shut) && (!shut || advanced)
}

// setGate opens or shuts the gate by what the window holds.
func (t *term) setGate() {
	t.c.resumeIf(t.c.gate.set(t.buf.Bytes() > t.c.cfg.WindowBytes, t.blocker()))
}

// openGate is called at the end of the term, so that the executor hands back the rows that waited.
func (t *term) openGate() { t.c.resumeIf(t.c.gate.set(false, 0)) }

func (c *Consumer) resumeIf(more bool) {
	if r, ok := c.cfg.Executor.(Resumer); ok && more {
		r.Resume()
	}
}
