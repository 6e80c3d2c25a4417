package aimd

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// queueing is a server that refuses nothing: it has slots, works at all that are taken at a speed that may depend on
// their number, and lets the rest wait. Beside the law's calls it has those of someone who makes one at a time.
type queueing struct {
	law  *Adaptive
	pool int
	rng  *rand.Rand

	slots   int
	speed   func(running int) float64 // tokens per second of each call
	tokens  func() int                // length of a reply
	unknown bool                      // replies don't say it
	before  float64                   // seconds that a call takes on the way, whatever its length
	rows    int                       // left to send

	now      float64
	work     float64 // tokens that each running call has had since the beginning
	running  queued  // by the work at which they end
	waiting  []*queuedCall
	inFlight int
	guestAt  float64 // when the next comes; infinite: while it makes a call

	trace []int // concurrency at each whole second
	done  []finished
}

type queuedCall struct {
	ticket Ticket
	guest  bool
	from   float64
	tokens int
	until  float64 // work
}

type finished struct {
	at, sec, alone float64
	tokens         int
	guest          bool
}

type queued []*queuedCall

func (c queued) Len() int           { return len(c) }
func (c queued) Less(i, j int) bool { return c[i].until < c[j].until }
func (c queued) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *queued) Push(x any)        { *c = append(*c, x.(*queuedCall)) }
func (c *queued) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

func lognormal(rng *rand.Rand, mean, sigma float64) func() int {
	return func() int {
		return max(1, int(mean*math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)))
	}
}

// newQueueing has slots that together do 20 calls a second of 100 tokens on average.
func newQueueing(t *testing.T, pool, slots int, sigma float64) *queueing {
	t.Helper()
	law, err := NewAdaptive(AdaptiveConfig{Config: Default(), PoolSize: pool})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 9))
	return &queueing{
		law: law, pool: pool, rng: rng, slots: slots, rows: math.MaxInt,
		speed:  func(int) float64 { return 2000 / float64(slots) },
		tokens: lognormal(rng, 100, sigma),
	}
}

func (q *queueing) arrive(c *queuedCall) {
	c.tokens = q.tokens()
	c.from = q.now
	q.waiting = append(q.waiting, c)
	q.admit()
}

func (q *queueing) admit() {
	for len(q.running) < q.slots && len(q.waiting) > 0 {
		c := q.waiting[0]
		q.waiting = q.waiting[1:]
		c.until = q.work + float64(c.tokens) + q.before*q.speed(len(q.running)+1)
		heap.Push(&q.running, c)
	}
}

func (q *queueing) pass(to float64) {
	q.work += (to - q.now) * q.speed(len(q.running))
	for at := math.Floor(q.now) + 1; at <= to; at++ {
		q.trace = append(q.trace, q.law.Stats().Concurrency)
	}
	q.now = to
}

func (q *queueing) at() time.Time { return at(time.Duration(q.now * 1e9)) }

// run goes on until the given second.
func (q *queueing) run(until float64) {
	for {
		next := until
		for q.rows > 0 && q.inFlight < q.pool {
			if when := q.law.Next(q.at(), q.inFlight); when.After(q.at()) {
				next = min(next, when.Sub(at(0)).Seconds()+1e-9)
				break
			}
			q.inFlight++
			q.rows--
			q.arrive(&queuedCall{ticket: q.law.Sent(q.at(), q.inFlight)})
		}
		ends := math.Inf(1)
		if len(q.running) > 0 {
			ends = q.now + max(0, q.running[0].until-q.work)/q.speed(len(q.running))
		}
		next = min(next, q.guestAt)
		if ends > next || ends >= until {
			q.pass(max(q.now, next))
			if q.now >= q.guestAt {
				q.guestAt = math.Inf(1)
				q.arrive(&queuedCall{guest: true})
			}
			if next >= until {
				return
			}
			continue
		}
		q.pass(ends)
		c := heap.Pop(&q.running).(*queuedCall)
		q.admit()
		q.done = append(q.done, finished{at: q.now, sec: q.now - c.from, alone: q.before + float64(c.tokens)/q.speed(1), tokens: c.tokens, guest: c.guest})
		if c.guest {
			q.guestAt = q.now + 2
			continue
		}
		q.inFlight--
		if !q.unknown {
			c.ticket.Output = int64(c.tokens)
		}
		q.law.Accepted(q.at(), c.ticket)
	}
}

// queueFigures are those of what was finished between two seconds.
type queueFigures struct {
	tokensPerSec, p95 float64
	guest             float64 // seconds by which its calls took longer than on an idle server, on average
}

func (q *queueing) figures(from, to float64) (f queueFigures) {
	var secs []float64
	guests := 0
	for _, c := range q.done {
		switch {
		case c.at < from || c.at >= to:
		case c.guest:
			f.guest += c.sec - c.alone
			guests++
		default:
			f.tokensPerSec += float64(c.tokens) / (to - from)
			secs = append(secs, c.sec)
		}
	}
	slices.Sort(secs)
	f.p95, f.guest = secs[len(secs)*95/100], f.guest/float64(guests)
	return f
}
