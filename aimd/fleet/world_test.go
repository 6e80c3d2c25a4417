//go:build !race

// A world is one goroutine: the race detector would only make it ten times slower.

package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// world runs members against a server in steps of a millisecond of virtual time.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	now     float64
	rate    func(now float64) float64 // of the server, calls per second
	burst   float64
	hint    aimd.Hint // with each refusal
	level   float64
	members []*node
	mail    []letter
	loss    float64
	dead    bool // no message arrives
	split   int  // members below it do not hear those from it on; 0: all hear all

	sent, accepted, refused int
	messages                int
}

type node struct {
	*Member
	skew     time.Duration
	pool     int
	demand   func(now float64) bool // whether it has a call to make
	inFlight int
	calls    []landing
	next     float64 // Tick
	wake     float64 // when it has something to do, unless it hears a message or is given a call to make
	cut      bool    // hears and says nothing
	mute     bool    // says nothing
	off      bool    // does not run
	accepted int
	sent     int
}

type landing struct {
	at     float64
	ticket aimd.Ticket
	ok     bool
}

type letter struct {
	at   float64
	to   *node
	body []byte
}

var genesis = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(tb testing.TB, seed uint64, n int, rate, burst float64) *world {
	tb.Helper()
	w := &world{
		t: tb, rng: rand.New(rand.NewPCG(seed, 1)), burst: burst, level: burst, loss: 0,
		rate: func(float64) float64 { return rate },
	}
	for range n {
		w.join(Config{})
	}
	return w
}

func (w *world) join(cfg Config) {
	w.t.Helper()
	cfg.ID = fmt.Sprintf("m%03d", len(w.members))
	cfg.Law = aimd.DefaultAdaptive(32)
	m, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	n := &node{Member: m, pool: 32, next: w.now, skew: time.Duration(w.rng.IntN(200)-100) * time.Second}
	w.members = append(w.members, n)
}

func (n *node) at(sec float64) time.Time {
	return genesis.Add(n.skew + time.Duration(sec*1e9))
}

func (w *world) run(sec float64) {
	for end := w.now + sec; w.now < end; w.now += 0.001 {
		w.level = min(w.burst, w.level+0.001*w.rate(w.now))
		kept := w.mail[:0]
		for _, l := range w.mail {
			switch {
			case l.at > w.now:
				kept = append(kept, l)
			case !l.to.off && !l.to.cut:
				w.hear(l.to, l.body)
			}
		}
		w.mail = kept
		for _, n := range w.members {
			if !n.off {
				w.step(n)
			}
		}
	}
}

// hear hands a message to a member.
func (w *world) hear(n *node, body []byte) {
	w.t.Helper()
	if err := n.Hear(n.at(w.now), body); err != nil {
		w.t.Fatalf("%v: %s", err, body)
	}
	n.wake = w.now
}

func (w *world) step(n *node) {
	if n.wake > w.now && n.demand == nil {
		return
	}
	now := n.at(w.now)
	n.wake = math.Inf(1)
	for i := 0; i < len(n.calls); i++ {
		c := n.calls[i]
		if c.at > w.now {
			n.wake = min(n.wake, c.at)
			continue
		}
		n.calls[i] = n.calls[len(n.calls)-1]
		n.calls = n.calls[:len(n.calls)-1]
		i--
		n.inFlight--
		if c.ok {
			n.Accepted(now, c.ticket)
		} else {
			n.Rejected(now, c.ticket, w.hint)
		}
	}
	if n.next <= w.now || n.Urgent() {
		out, next := n.Tick(now)
		n.next = w.now + max(0.001, next.Sub(now).Seconds())
		w.post(n, out)
	}
	n.wake = min(n.wake, n.next)
	for n.inFlight < n.pool && (n.demand == nil || n.demand(w.now)) {
		if wait := n.Next(now, n.inFlight).Sub(now); wait > 0 {
			n.wake = min(n.wake, w.now+wait.Seconds())
			return
		}
		n.inFlight++
		c := landing{at: w.now + 0.06, ticket: n.Sent(now, n.inFlight)}
		w.sent++
		n.sent++
		if w.level >= 1 {
			w.level--
			w.accepted++
			n.accepted++
			c.ok, c.at = true, w.now+1.2*math.Exp(0.3*w.rng.NormFloat64())
		} else {
			w.refused++
		}
		n.wake = min(n.wake, c.at)
		n.calls = append(n.calls, c)
	}
}

func (w *world) post(from *node, out [][]byte) {
	if from.cut || from.mute || w.dead {
		return
	}
	for _, body := range out {
		w.messages++
		for i, to := range w.members {
			if IsReport(body) && !to.Leads() || w.rng.Float64() < w.loss || w.split > 0 && (i < w.split) != (slices.Index(w.members, from) < w.split) {
				continue
			}
			w.mail = append(w.mail, letter{w.now + 0.001 + 0.049*w.rng.Float64(), to, body})
		}
	}
}

// count resets what is counted.
func (w *world) count() {
	w.sent, w.accepted, w.refused, w.messages = 0, 0, 0, 0
	for _, n := range w.members {
		n.accepted = 0
	}
}

func (w *world) jain() float64 {
	total, squares := 0.0, 0.0
	for _, n := range w.members {
		total += float64(n.accepted)
		squares += float64(n.accepted) * float64(n.accepted)
	}
	return total * total / (float64(len(w.members)) * squares)
}

func (w *world) leaders() (leaders, alone int) {
	for _, n := range w.members {
		switch {
		case n.off:
		case n.State().Mode == Lead:
			leaders++
		case n.State().Mode == Alone:
			alone++
		}
	}
	return leaders, alone
}
