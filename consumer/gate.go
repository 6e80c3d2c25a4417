package consumer

import (
	"sync"
	"sync/atomic"
)

// Resumer is an [Executor] that asks [Row.MayBegin]. Resume reports to it that rows may
// begin that might not before. Resume must not block.
type Resumer interface {
	Resume()
}

// gate is shut while the window holds more than its bytes. Rows count by their own size
// when they are taken, and how large a reply is shows only when it is there: short rows
// with long replies would come to many times the window's bytes.
//
// For example, a window of 256 MB has 1,000 rows of 10 KB, and each reply has 1 MB. From
// about the 250th reply on no row begins but the one that all others wait for.
type gate struct {
	shut  atomic.Bool // only rows that wait for no other may begin
	stuck atomic.Bool // no row may begin: replies that wait for no row use up the bytes
	heavy atomic.Bool // no row of the keys in waiting may begin: in order by key, replies that wait take half of the bytes

	mu      sync.Mutex
	waiting map[string]struct{} // in order by key, the keys of replies that wait
}

// admits reports whether a row may begin.
func (g *gate) admits(r *Row) bool {
	switch {
	case g.stuck.Load():
		return false
	case r.leads.Load():
		return true
	}
	return !g.shut.Load() && (!g.heavy.Load() || !g.waits(r.Key))
}

// bars reports whether there may be a row that waits for others and may not begin.
func (g *gate) bars() bool { return g.shut.Load() || g.heavy.Load() }

func (g *gate) waits(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, waits := g.waiting[key]
	return waits
}

// setWaiting notes whether replies of a key wait, and returns whether rows of it may
// begin now that might not before.
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

// set sets the bars, and returns whether rows may begin now that might not before.
func (g *gate) set(shut, stuck, heavy bool) (more bool) {
	for _, bar := range []struct {
		at *atomic.Bool
		on bool
	}{{&g.shut, shut}, {&g.stuck, stuck}, {&g.heavy, heavy}} {
		more = bar.at.Swap(bar.on) && !bar.on || more
	}
	return more
}

// open is called at the end of the term, so that the executor hands back the rows that
// waited. It returns whether there may be any.
func (g *gate) open() (more bool) {
	g.mu.Lock()
	clear(g.waiting)
	g.mu.Unlock()
	return g.set(false, false, false)
}
