package throttle

import (
	"math"
	"math/rand/v2"
	"sort"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// server is the limit that a model of an LLM server keeps. Instants are seconds since the
// beginning.
type server interface {
	// admit decides about a call that arrives now.
	admit(now float64, id callID) bool
	// done: a call that was admitted has ended.
	done()
	// opens returns when the next call would be admitted, as only an oracle knows;
	// infinite: when one ends.
	opens(now float64) float64
	// offered returns how many calls the server would have admitted by then, never more
	// than perSec of them a second.
	offered(until, perSec float64) float64
	// hint returns when to come back, which the server reports with a refusal if its plan
	// has hints.
	hint(now float64) aimd.Hint
}

// callID names a call, so that chance can be drawn for each and does not depend on their
// order.
type callID struct {
	client, row, attempt int
	fallback             bool // it goes there
}

// rand returns a source of chance for the call. Each purpose has its own stream.
func (id callID) rand(seed, stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, stream<<56|uint64(id.client)<<48|uint64(id.attempt)<<24|uint64(id.row)))
}

// step is a rate that holds from an instant on.
type step struct{ from, rate float64 }

// schedule is a rate that changes by steps, the first of them at 0.
type schedule []step

func (s schedule) at(t float64) int {
	return sort.Search(len(s), func(i int) bool { return s[i].from > t }) - 1
}

// integral returns the area under the schedule, cut off at perSec, between two instants.
func (s schedule) integral(from, to, perSec float64) float64 {
	area := 0.0
	for i := s.at(from); i < len(s) && s[i].from < to; i++ {
		end := to
		if i+1 < len(s) {
			end = min(to, s[i+1].from)
		}
		area += (end - max(from, s[i].from)) * min(s[i].rate, perSec)
	}
	return area
}

// reach returns when the area from t on is as large as asked.
func (s schedule) reach(t, area float64) float64 {
	for i := s.at(t); i < len(s); i++ {
		begin, end := max(t, s[i].from), math.Inf(1)
		if i+1 < len(s) {
			end = s[i+1].from
		}
		if s[i].rate > 0 {
			if at := begin + area/s[i].rate; at <= end {
				return at
			}
		}
		area -= (end - begin) * s[i].rate
	}
	return math.Inf(1)
}

// bucket is a token bucket that fills at the rate of a schedule. While the rate is 0 the
// server is out, whatever the bucket holds.
type bucket struct {
	rate     schedule
	burst    float64
	counts   bool // refused calls draw tokens too
	level    float64
	filledAt float64
}

func newBucket(rate schedule, burst float64) *bucket {
	return &bucket{rate: rate, burst: burst, level: burst}
}

// nearly lets a call in that comes right when its token does, in spite of rounding.
const nearly = 1 - 1e-6

func (b *bucket) fill(now float64) {
	b.level = min(b.burst, b.level+b.rate.integral(b.filledAt, now, math.Inf(1)))
	b.filledAt = now
}

func (b *bucket) out(now float64) bool { return b.rate[b.rate.at(now)].rate == 0 }

func (b *bucket) admit(now float64, _ callID) bool {
	b.fill(now)
	if b.level >= nearly && !b.out(now) {
		b.level--
		return true
	}
	if b.counts && !b.out(now) {
		b.level = max(b.level-1, -b.burst)
	}
	return false
}

func (b *bucket) done() {}

func (b *bucket) opens(now float64) float64 {
	b.fill(now)
	if b.level >= nearly && !b.out(now) {
		return now
	}
	return b.rate.reach(now, max(nearly-b.level, 1e-9)) // so that a full bucket waits for the end of an outage
}

func (b *bucket) offered(until, perSec float64) float64 { return b.rate.integral(0, until, perSec) }

func (b *bucket) hint(now float64) aimd.Hint {
	return aimd.Hint{RetryAfter: wholeSeconds(b.opens(now) - now)}
}

// wholeSeconds is how the header counts.
func wholeSeconds(s float64) time.Duration {
	return time.Duration(max(1, math.Ceil(s))) * time.Second
}

// atOnce admits so many calls at once.
type atOnce struct {
	limit, held int
	callSec     float64
}

func (a *atOnce) admit(float64, callID) bool {
	if a.held == a.limit {
		return false
	}
	a.held++
	return true
}

func (a *atOnce) done() { a.held-- }

func (a *atOnce) opens(now float64) float64 {
	if a.held == a.limit {
		return math.Inf(1)
	}
	return now
}

func (a *atOnce) offered(until, perSec float64) float64 {
	return until * min(perSec, float64(a.limit)/a.callSec)
}

func (a *atOnce) hint(float64) aimd.Hint {
	return aimd.Hint{RetryAfter: time.Second}
}

// perMinute admits so many calls in each minute of the clock.
type perMinute struct {
	quota  int
	minute float64
	used   int
}

func (p *perMinute) turn(now float64) {
	if m := math.Floor(now / 60); m != p.minute {
		p.minute, p.used = m, 0
	}
}

func (p *perMinute) admit(now float64, _ callID) bool {
	p.turn(now)
	if p.used == p.quota {
		return false
	}
	p.used++
	return true
}

func (p *perMinute) done() {}

func (p *perMinute) opens(now float64) float64 {
	p.turn(now)
	if p.used == p.quota {
		return (p.minute + 1) * 60
	}
	return now
}

func (p *perMinute) offered(until, perSec float64) float64 {
	return until * min(perSec, float64(p.quota)/60)
}

func (p *perMinute) hint(now float64) aimd.Hint {
	return aimd.Hint{RetryAfter: wholeSeconds((p.minute+1)*60 - now)}
}

// random refuses a share of all calls, whatever the rate. A slot of the pool is taken for
// the time of a refusal too, which counts against what it offers.
type random struct {
	share float64
	seed  uint64

	callSec, refusalSec float64
}

func (r *random) admit(_ float64, id callID) bool {
	return id.rand(r.seed, 1).Float64() >= r.share
}

func (r *random) done() {}

func (r *random) opens(now float64) float64 { return now }

func (r *random) offered(until, perSec float64) float64 {
	return until * perSec * r.callSec / (r.callSec + r.refusalSec*r.share/(1-r.share))
}

func (r *random) hint(float64) aimd.Hint {
	return aimd.Hint{RetryAfter: time.Second}
}
