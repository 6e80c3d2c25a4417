package consumer

import (
	"sync"
	"sync/atomic"
	"time"
)

// Resumer is what an [Executor] that asks [Row.MayBegin] is: Resume reports that rows may begin that might not before.
// Resume must not block.
type Resumer interface {
	Resume()
}

// MayBegin reports whether there is room for the row's reply. An executor that goes by it begins no row while replies
// that wait for an earlier row use up the window's bytes, and implements [Resumer]. The oldest row without a reply may
// always begin, and one that is no longer wanted, to be handed back.
//
// In order by key a row that waits for no other of its key may begin, too: its reply leaves at once, with those that wait
// for it. And of a key whose replies wait no further ones are asked for when such replies take half of the window: the
// rest is for the other keys.
func (r *Row) MayBegin() bool { return r.gate.admits(r) || !r.Wanted() }

// gate is shut while the window holds more than its bytes. Rows count by their own size when they are taken, and how
// large a reply is shows only when it is there: short rows with long replies would come to many times the window's
// bytes.
type gate struct {
	shut  atomic.Bool
	first atomic.Uint64 // row without a reply

	// In order by key:
	stuck   atomic.Bool // replies that wait for no row use up the bytes
	heavy   atomic.Bool // half of the bytes are those of replies that wait
	mu      sync.Mutex
	waiting map[string]struct{} // keys of such replies
}

func (g *gate) admits(r *Row) bool {
	switch {
	case r.Seq <= g.first.Load():
		return true
	case g.stuck.Load():
		return false
	case r.leads.Load():
		return true
	}
	return !g.shut.Load() && (!g.heavy.Load() || !g.waits(r.Key))
}

// holds reports whether there is a row that leads nothing and may not begin.
func (g *gate) holds() bool { return g.shut.Load() || g.heavy.Load() }

func (g *gate) waits(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, waits := g.waiting[key]
	return waits
}

// setWaiting notes whether replies of a key wait, and returns whether rows of it may begin now that might not before.
func (g *gate) setWaiting(key string, waits bool) (more bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, waited := g.waiting[key]
	switch {
	case waits == waited:
	case waited:
		delete(g.waiting, key)
	case g.waiting == nil:
		g.waiting = map[string]struct{}{key: {}}
	default:
		g.waiting[key] = struct{}{}
	}
	return waited && !waits && g.heavy.Load()
}

// set returns whether rows may begin now that might not before.
func (g *gate) set(shut bool, first uint64) bool {
	advanced := g.first.Swap(first) < first
	return g.shut.Swap(shut) && (!shut || advanced)
}

// setKeyed is set for the rest of the gate.
func (g *gate) setKeyed(stuck, heavy bool) bool {
	was, were := g.stuck.Swap(stuck), g.heavy.Swap(heavy)
	return was && !stuck || were && !heavy
}

// setGate opens or shuts the gate by what the window holds.
func (t *term) setGate() {
	most, bytes := t.c.cfg.WindowBytes, t.buf.Bytes()
	shut := bytes > most
	if t.keyed != nil {
		waiting := t.keyed.WaitingBytes()
		_, ready := t.buf.Ready(0)
		t.c.resumeIf(t.c.gate.setKeyed(ready && bytes-waiting > max(most-waiting, most/2), 2*waiting >= most))
		// Without a reply none will leave unless some begin, and the oldest row may be set aside.
		shut = shut && t.buf.Completed() > 0
	}
	t.c.resumeIf(t.c.gate.set(shut, t.blocker()))
}

// openGate is called at the end of the term, so that the executor hands back the rows that waited.
func (c *Consumer) openGate() {
	c.gate.mu.Lock()
	clear(c.gate.waiting)
	c.gate.mu.Unlock()
	more := c.gate.setKeyed(false, false)
	c.resumeIf(c.gate.set(false, 0) || more)
}

func (c *Consumer) resumeIf(more bool) {
	if r, ok := c.cfg.Executor.(Resumer); ok && more {
		r.Resume()
	}
}

// pulse reports to those who are about to make a call whether this process may still believe that it owns the
// partition. The term's goroutine comes round many times within the life of a pin; when it has not for half of that,
// the process was suspended, or starved, and a rival may have taken over:
//
//	A is suspended with calls in flight. Its pin runs out; B claims the partition and makes these calls again.
//	A wakes up. Before its term learns that it is fenced, its workers make calls for the next rows, which B makes, too.
//
// So no call is made until the term has read the log after such a gap.
//
// It is safe for concurrent use; the goroutine of the terms alone calls begin, beat and settle.
type pulse struct {
	born  time.Time
	limit time.Duration // between two beats
	last  atomic.Int64  // beat, since born
	doubt atomic.Bool
}

func newPulse(now time.Time, pinnedTTL time.Duration) *pulse {
	return &pulse{born: now, limit: pinnedTTL / 2}
}

// begin starts over, for a term that has claimed the partition: at is when it had not sent the claim yet, for the
// process may be suspended right behind it, too.
func (p *pulse) begin(at time.Time) {
	p.last.Store(int64(at.Sub(p.born)))
	p.doubt.Store(false)
}

// sure reports whether there was no gap, or the log was read since. It looks at the doubt last, as beat sets it first:
//
//	A worker sees no doubt.
//	The term comes round after a gap: there is doubt now, and a new beat.
//	The worker sees the new beat, and makes a call.
func (p *pulse) sure(now time.Time) bool {
	return p.regular(now) && !p.doubt.Load()
}

// regular reports whether the last beat is recent.
func (p *pulse) regular(now time.Time) bool {
	return now.Sub(p.born)-time.Duration(p.last.Load()) < p.limit
}

// beat notes that the term has come round, and reports a gap. One in the time of an earlier doubt counts again: what
// was read of the log before it proves nothing.
func (p *pulse) beat(now time.Time) (gap bool) {
	gap = !p.regular(now)
	if gap {
		p.doubt.Store(true) // before the new beat, which would hide the gap
	}
	p.last.Store(int64(now.Sub(p.born)))
	return gap
}

func (p *pulse) settle() { p.doubt.Store(false) }
