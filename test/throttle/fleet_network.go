package throttle

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/aimd/fleet"
)

// messages is how the network treats the messages of a fleet. Each has its own delay for
// each receiver, so they overtake one another.
type messages struct {
	least, most   time.Duration // delay
	lost, doubled float64       // share of all, for each receiver
}

// usualMessages is what core NATS does between sites.
var usualMessages = messages{least: time.Millisecond, most: 50 * time.Millisecond}

// network carries the messages of a fleet.
type network struct {
	messages
	seed uint64

	mu      sync.Mutex      // guards all below; held with no other lock
	members map[int]*member // by client, those that run
	sides   map[int]int     // by client, 0 where not set: two hear each other if they are on the same side
	sent    int             // messages so far
	liar    *forger         // nil: none
}

// outsider publishes and is no member.
const outsider = -1

// nowhere is the side of those that hear nobody, nor themselves.
const nowhere = -1

func newNetwork(m messages, seed uint64) *network {
	return &network{messages: m, seed: seed, members: make(map[int]*member), sides: make(map[int]int)}
}

// publish sends a message to all that hear from, itself included.
func (n *network) publish(from int, body []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent++
	number := n.sent
	if n.liar != nil {
		n.liar.overhear(body)
	}
	n.carry(from, uint64(number), body)
}

// carry delivers a message that has a number of its own. N.mu is held.
func (n *network) carry(from int, number uint64, body []byte) {
	report := fleet.IsReport(body)
	for to, m := range n.members {
		if n.sides[from] != n.sides[to] || n.sides[to] == nowhere || report && !m.leading.Load() {
			continue
		}
		rng := rand.New(rand.NewPCG(n.seed^0xf1ee7, number<<12|uint64(to)))
		for copies := 1; copies > 0; copies-- {
			lost, doubled := rng.Float64() < n.lost, rng.Float64() < n.doubled
			delay := n.least + time.Duration(rng.Int64N(int64(n.most-n.least)+1))
			if lost {
				continue
			}
			time.AfterFunc(delay, func() { m.hear(body) })
			if doubled {
				copies++
			}
		}
	}
}

// forge delivers a forgery to all.
func (n *network) forge() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.carry(outsider, 1<<40+uint64(n.sent), n.liar.message())
}

// put moves members to a side of the network.
func (n *network) put(side int, clients ...int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range clients {
		n.sides[c] = side
	}
}

// running returns the members that run, in no order.
func (n *network) running() []*member {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]*member, 0, len(n.members))
	for _, m := range n.members {
		list = append(list, m)
	}
	return list
}

// member is one process of a fleet, with a clock of its own. It is the law of its pool,
// and does what the process does around [fleet.Member]: a lock, a goroutine that ticks,
// and messages out and in.
type member struct {
	net    *network
	client int
	skew   time.Duration // of its clock
	kick   chan struct{} // the time of the next tick has changed

	leading atomic.Bool // hears reports

	mu      sync.Mutex // guards all below
	law     *fleet.Member
	mode    fleet.Mode
	clock   time.Time // the last instant that it was given: instants must not go back
	wake    func()    // its pool
	next    time.Time
	asleep  bool // suspended
	gone    bool
	pending []func() // what it will find when it wakes up
}

// pendingMost is how many messages and verdicts wait for a process that is suspended.
const pendingMost = 10000

// add makes a client a member that is not running yet.
func (n *network) add(client int, skew time.Duration, cfg fleet.Config) *member {
	law, err := fleet.New(cfg)
	if err != nil {
		panic(err)
	}
	return &member{net: n, client: client, skew: skew, law: law, kick: make(chan struct{}, 1), wake: func() {}}
}

// run ticks until ctx is done.
func (m *member) run(ctx context.Context, wake func()) {
	m.mu.Lock()
	m.wake = wake
	m.mu.Unlock()
	m.net.mu.Lock()
	m.net.members[m.client] = m
	m.net.mu.Unlock()
	m.tick()
	for timer := time.NewTimer(time.Hour); ; {
		m.mu.Lock()
		wait := time.Until(m.next)
		if m.asleep {
			wait = time.Hour
		}
		m.mu.Unlock()
		timer.Reset(max(wait, 0))
		select {
		case <-timer.C:
			m.tick()
		case <-m.kick:
		case <-ctx.Done():
			m.leave(false)
			return
		}
	}
}

// tick lets the member act on the passing of time, and sends what it wants to say.
func (m *member) tick() {
	m.mu.Lock()
	if m.asleep || m.gone {
		m.mu.Unlock()
		return
	}
	out, next := m.law.Tick(m.now())
	m.next = next.Add(-m.skew)
	m.leading.Store(m.law.Leads())
	mode := m.law.State().Mode
	changed := mode != m.mode
	m.mode = mode
	m.mu.Unlock()
	for _, body := range out {
		m.net.publish(m.client, body)
	}
	if changed || mode == fleet.Lead && len(out) > 0 {
		m.wake()
	}
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// hear takes a message from the network.
func (m *member) hear(body []byte) {
	m.event(false, func() { _ = m.law.Hear(m.now(), body) }) // an error is of the sender
	if !fleet.IsReport(body) {
		m.wake()
	}
}

// event lets something happen to the member; to one that is suspended when it wakes up.
// With news it then says at once what cannot wait.
func (m *member) event(news bool, happen func()) {
	m.mu.Lock()
	if m.asleep || m.gone {
		if len(m.pending) < pendingMost {
			m.pending = append(m.pending, func() { m.event(news, happen) })
		}
		m.mu.Unlock()
		return
	}
	happen()
	news = news && m.law.Urgent()
	m.mu.Unlock()
	if news {
		m.tick()
	}
}

// suspend stops the process as SIGSTOP does: its calls go on at the server, and it learns
// of nothing.
func (m *member) suspend() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asleep = true
}

// resume wakes it up. The first that it knows is the time.
func (m *member) resume() {
	m.mu.Lock()
	m.asleep = false
	pending := m.pending
	m.pending = nil
	m.mu.Unlock()
	m.tick()
	for _, happen := range pending {
		happen()
	}
	m.wake()
}

// leave takes the member out of the network; one that does so in order says goodbye.
func (m *member) leave(orderly bool) {
	m.mu.Lock()
	var out [][]byte
	if orderly && !m.gone {
		out = m.law.Leave(m.now())
	}
	m.gone = true
	m.mu.Unlock()
	for _, body := range out {
		m.net.publish(m.client, body)
	}
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	if m.net.members[m.client] == m {
		delete(m.net.members, m.client)
	}
}

// state returns what the member takes the fleet for.
func (m *member) state() fleet.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.law.State()
}

// now is the instant by the member's clock. M.mu is held.
func (m *member) now() time.Time { return m.at(time.Now()) }

// at turns an instant into one by the member's clock. M.mu is held.
func (m *member) at(now time.Time) time.Time {
	if now = now.Add(m.skew); now.After(m.clock) {
		m.clock = now
	}
	return m.clock
}

const far = time.Hour

func (m *member) Next(now time.Time, inFlight int) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asleep {
		return now.Add(far)
	}
	instant := m.at(now)
	next := m.law.Next(instant, inFlight)
	if !next.After(instant) {
		return now
	}
	return next.Add(-m.skew)
}

func (m *member) Sent(now time.Time, inFlight int) aimd.Ticket {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.law.Sent(m.at(now), inFlight)
}

func (m *member) Accepted(_ time.Time, t aimd.Ticket) {
	m.event(true, func() { m.law.Accepted(m.now(), t) })
}

func (m *member) Rejected(_ time.Time, t aimd.Ticket, h aimd.Hint) {
	m.event(true, func() { m.law.Rejected(m.now(), t, h) })
}

func (m *member) Dropped(_ time.Time, t aimd.Ticket) {
	m.event(true, func() { m.law.Dropped(m.now(), t) })
}

func (m *member) Restart(time.Time) {
	m.event(true, func() { m.law.Restart(m.now()) })
}

func (m *member) Stats() aimd.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.law.Stats()
}

// slots is the gate of the budget's limit on calls in flight.
type slots struct {
	member   *member
	inFlight int
}

func (s *slots) Next(now time.Time, _ int64) time.Time {
	m := s.member
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.law.Room(m.at(now), s.inFlight) {
		return now
	}
	return now.Add(time.Second) // a message that makes room wakes the pool
}

func (s *slots) Sent(time.Time, int64) { s.inFlight++ }

func (s *slots) Ended(time.Time, int64, int64) { s.inFlight-- }
