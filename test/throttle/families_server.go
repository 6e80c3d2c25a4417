package throttle

import (
	"math"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// sporadic refuses a share of all calls before they reach the server, whatever the rate.
// An oracle does not know which.
type sporadic struct {
	server

	share float64
	seed  uint64
}

func (s *sporadic) admit(now float64, id callID) bool {
	if id != (callID{}) && id.rand(s.seed, 1).Float64() < s.share {
		return false
	}
	return s.server.admit(now, id)
}

// liar asks for the same wait at each refusal.
type liar struct {
	server

	wait time.Duration
}

func (l *liar) hint(float64) aimd.Hint { return aimd.Hint{RetryAfter: l.wait} }

// gateway sends each call to one of several servers that have a bucket each. It does not
// know which of them has room, so it refuses calls while others of its servers are idle. An
// oracle chooses the fullest.
type gateway struct {
	backends []*bucket
	seed     uint64
}

func (g *gateway) admit(now float64, id callID) bool {
	if id == (callID{}) {
		return g.fullest(now).admit(now, id)
	}
	return g.backends[id.rand(g.seed, 9).IntN(len(g.backends))].admit(now, id)
}

func (g *gateway) fullest(now float64) *bucket {
	best := g.backends[0]
	for _, b := range g.backends {
		b.fill(now)
		if b.level > best.level {
			best = b
		}
	}
	return best
}

func (g *gateway) done() {}

func (g *gateway) opens(now float64) float64 { return g.fullest(now).opens(now) }

func (g *gateway) offered(until, perSec float64) float64 {
	share, total := perSec/float64(len(g.backends)), 0.0
	for _, b := range g.backends {
		total += b.offered(until, share)
	}
	return total
}

func (g *gateway) hint(float64) aimd.Hint { return aimd.Hint{RetryAfter: time.Second} }

// varyingAtOnce admits so many calls at once as a schedule says. When the limit falls,
// the calls in flight go on.
type varyingAtOnce struct {
	limits  schedule
	held    int
	callSec float64
}

func (a *varyingAtOnce) admit(now float64, _ callID) bool {
	if float64(a.held) >= a.limits[a.limits.at(now)].rate {
		return false
	}
	a.held++
	return true
}

func (a *varyingAtOnce) done() { a.held-- }

func (a *varyingAtOnce) opens(now float64) float64 {
	for i := a.limits.at(now); i < len(a.limits); i++ {
		if float64(a.held) < a.limits[i].rate {
			return max(now, a.limits[i].from)
		}
	}
	return math.Inf(1)
}

func (a *varyingAtOnce) offered(until, perSec float64) float64 {
	return a.limits.integral(0, until, perSec*a.callSec) / a.callSec
}

func (a *varyingAtOnce) hint(float64) aimd.Hint { return aimd.Hint{RetryAfter: time.Second} }

// shared is a bucket of which others take calls at given instants, more than it holds if
// need be.
type shared struct {
	*bucket

	taken []float64
	next  int // index of the next of them
}

func (b *shared) advance(now float64) {
	for ; b.next < len(b.taken) && b.taken[b.next] <= now; b.next++ {
		b.fill(b.taken[b.next])
		b.level--
	}
}

func (b *shared) admit(now float64, id callID) bool {
	b.advance(now)
	return b.bucket.admit(now, id)
}

func (b *shared) opens(now float64) float64 {
	b.advance(now)
	return b.bucket.opens(now)
}

func (b *shared) offered(until, perSec float64) float64 {
	return b.bucket.offered(until, perSec) - float64(before(b.taken, until))
}

// tokens is a bucket of which each call takes its size. An oracle sends the rows in their
// order.
type tokens struct {
	*bucket

	sizes []float64
	sent  int // by an oracle
}

// roughly is nearly for a bucket that is full when a call as large as it goes: what comes
// while the call is on its way is lost.
const roughly = 1 - 1e-3

func (b *tokens) admit(now float64, id callID) bool {
	size := b.sizes[id.row]
	if id == (callID{}) {
		size = b.next()
		b.sent++
	}
	b.fill(now)
	if b.level < size*roughly {
		return false
	}
	b.level -= size
	return true
}

func (b *tokens) next() float64 { return b.sizes[min(b.sent, len(b.sizes)-1)] }

func (b *tokens) opens(now float64) float64 {
	b.fill(now)
	if size := b.next(); b.level < size*roughly {
		return b.rate.reach(now, size-b.level)
	}
	return now
}

// anyMinute admits so many calls in any minute, wherever it begins.
type anyMinute struct {
	quota int
	sent  []float64 // as a ring
	last  int
}

func (m *anyMinute) admit(now float64, _ callID) bool {
	if m.opens(now) > now {
		return false
	}
	if len(m.sent) < m.quota {
		m.sent = append(m.sent, now)
		return true
	}
	m.sent[m.last] = now
	m.last = (m.last + 1) % m.quota
	return true
}

func (m *anyMinute) done() {}

func (m *anyMinute) opens(now float64) float64 {
	if len(m.sent) < m.quota {
		return now
	}
	return max(now, m.sent[m.last]+60)
}

func (m *anyMinute) offered(until, perSec float64) float64 {
	minutes, rest := math.Modf(until / 60)
	return minutes*min(60*perSec, float64(m.quota)) + min(rest*60*perSec, float64(m.quota))
}

func (m *anyMinute) hint(now float64) aimd.Hint {
	return aimd.Hint{RetryAfter: wholeSeconds(m.opens(now) - now)}
}

// queue serves perSec calls a second, one after the other. Those that come meanwhile
// wait, and it refuses the ones that find too many waiting.
type queue struct {
	perSec float64
	most   int
	free   float64 // when all that wait are served
}

func (q *queue) admit(now float64, _ callID) bool {
	q.free = max(q.free, now)
	if q.waits(now) > float64(q.most)/q.perSec {
		return false
	}
	q.free += 1 / q.perSec
	return true
}

func (q *queue) done() {}

// waits returns how long a call that arrives now waits for its turn.
func (q *queue) waits(now float64) float64 { return max(0, q.free-now) }

func (q *queue) opens(now float64) float64 {
	if q.free > now+1e-9 {
		return q.free
	}
	return now
}

func (q *queue) offered(until, perSec float64) float64 { return until * min(perSec, q.perSec) }

func (q *queue) hint(float64) aimd.Hint { return aimd.Hint{RetryAfter: time.Second} }
