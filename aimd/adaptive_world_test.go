package aimd

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"
)

// world is a law with a pool of slots and endless work, and a server: enough to see the rules at work. The figures
// that the law is built for are test/throttle's to measure, with the real pool.
type world struct {
	law      *Adaptive
	slots    int
	now      time.Duration
	inFlight int
	calls    calls // in flight, by the instant at which they end
	sent     []time.Duration
	refused  []time.Duration

	admit  func(now time.Duration, inFlight int) bool
	hint   func(now time.Duration) Hint
	reply  time.Duration // how long an accepted call takes
	refuse time.Duration // how long a refusal takes
}

type call struct {
	ends     time.Duration
	ticket   Ticket
	accepted bool
}

type calls []call

func (c calls) Len() int           { return len(c) }
func (c calls) Less(i, j int) bool { return c[i].ends < c[j].ends }
func (c calls) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *calls) Push(x any)        { *c = append(*c, x.(call)) }
func (c *calls) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

func newWorld(t *testing.T, admit func(time.Duration, int) bool) *world {
	t.Helper()
	return newWorldWith(t, AdaptiveConfig{Config: Default(), PoolSize: 32}, admit)
}

func newWorldWith(t *testing.T, cfg AdaptiveConfig, admit func(time.Duration, int) bool) *world {
	t.Helper()
	law, err := NewAdaptive(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &world{
		law: law, slots: cfg.PoolSize, admit: admit,
		hint:  func(time.Duration) Hint { return Hint{} },
		reply: 1200 * ms, refuse: 60 * ms,
	}
}

// run lets the world go on until the given time.
func (w *world) run(until time.Duration) {
	for {
		wake := w.dispatch()
		if len(w.calls) > 0 && w.calls[0].ends <= wake {
			if w.calls[0].ends > until {
				break
			}
			w.end(heap.Pop(&w.calls).(call))
			continue
		}
		if wake > until {
			break
		}
		w.now = wake
	}
	w.now = until
	w.law.Next(at(w.now), w.inFlight)
}

// count runs the world until the given time and returns how many calls were sent meanwhile, and how many refused.
func (w *world) count(until time.Duration) (sent, refused int) {
	sent, refused = len(w.sent), len(w.refused)
	w.run(until)
	return len(w.sent) - sent, len(w.refused) - refused
}

// dispatch sends what may go now, and returns when to come back.
func (w *world) dispatch() time.Duration {
	for w.inFlight < w.slots {
		if next := w.law.Next(at(w.now), w.inFlight).Sub(at(0)); next > w.now {
			return next
		}
		w.inFlight++
		c := call{ticket: w.law.Sent(at(w.now), w.inFlight), accepted: w.admit(w.now, w.inFlight)}
		c.ends = w.now + w.refuse
		if c.accepted {
			c.ends = w.now + w.reply
		} else {
			w.refused = append(w.refused, w.now)
		}
		w.sent = append(w.sent, w.now)
		heap.Push(&w.calls, c)
	}
	return 1 << 62
}

func (w *world) end(c call) {
	w.now = c.ends
	w.inFlight--
	if c.accepted {
		w.law.Accepted(at(w.now), c.ticket)
	} else {
		w.law.Rejected(at(w.now), c.ticket, w.hint(w.now))
	}
}

// between counts the instants in [from, to).
func between(instants []time.Duration, from, to time.Duration) int {
	n := 0
	for _, i := range instants {
		if i >= from && i < to {
			n++
		}
	}
	return n
}

func always(time.Duration, int) bool { return true }
func never(time.Duration, int) bool  { return false }

// bucket admits rate calls a second on average and up to burst at once.
func bucket(rate, burst float64) func(time.Duration, int) bool {
	level, last := burst, time.Duration(0)
	return func(now time.Duration, _ int) bool {
		level = min(burst, level+rate*(now-last).Seconds())
		last = now
		if level < 1 {
			return false
		}
		level--
		return true
	}
}

// after switches from one server to another.
func after(d time.Duration, first, then func(time.Duration, int) bool) func(time.Duration, int) bool {
	return func(now time.Duration, inFlight int) bool {
		if now < d {
			return first(now, inFlight)
		}
		return then(now, inFlight)
	}
}

// atRandom refuses a share p of all calls.
func atRandom(p float64) func(time.Duration, int) bool {
	rng := rand.New(rand.NewPCG(1, 2))
	return func(time.Duration, int) bool { return rng.Float64() >= p }
}
