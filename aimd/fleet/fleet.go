// Package fleet lets many pools that call one server share one law, so that they learn
// its limit together.
//
// Each pool has a [Member] in the place of a law of its own. One member leads: it runs
// the law on what all of them report, and counts how many turns have come due over all.
// The others are told how fast turns come and which are theirs, and take them by their
// own clocks, without asking before a call.
//
//	        reports: sent, refused turns, demand
//	members ────────────────────────────────────> leader
//	        <────────────────────────────────────
//	          plan: turns by now and soon, shares
//
// All of it is advice. A message that is lost, late, doubled or a lie costs efficiency: a
// member that hears no plan continues for a moment with the last, then some member leads
// in the place of the leader, and one that can reach nobody returns to a law of its own,
// at the rate that its last share gave it.
//
// The package is pure: messages are bytes that the caller carries, and every instant is
// an argument. The clocks of two members may show any times.
package fleet

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/llm-stage/stage/aimd"
)

const (
	// silentSec is how long a leader or a member may be silent before the others do
	// without it.
	silentSec = 2.0
	silent    = time.Duration(silentSec * float64(time.Second))
	// joinSec is how long a new member waits for a plan before it begins alone.
	joinSec = 1.1

	tickLeader = 20 * time.Millisecond
	tickMember = 100 * time.Millisecond
)

// The bounds of [Config].Weight.
const (
	weightLeast = 0.01
	weightMost  = 100.0
)

// Config sets up a [Member].
type Config struct {
	// ID distinguishes the member from all others, also from earlier lives of its
	// process. Required.
	ID string
	// Weight is the member's share relative to others while all want more than there is:
	// weights 1 and 3 divide 40 calls per second into 10 and 30. It is 0.01 to 100; 0
	// means 1.
	Weight float64
	// Law configures the common law, which the member runs if it leads, and its own law,
	// which it uses while alone.
	Law aimd.AdaptiveConfig
	// Limits apply to all members together, even if the server allows more. If members
	// have different limits, the lowest holds.
	Limits Limits
}

// Limits are configured for the whole fleet; 0 means no limit.
type Limits struct {
	RPM         int `json:"rpm,omitempty"`         // calls a minute
	TPM         int `json:"tpm,omitempty"`         // tokens a minute
	Concurrency int `json:"concurrency,omitempty"` // calls in flight
}

// lower returns the lower of each of two limits.
func (l Limits) lower(other Limits) Limits {
	return Limits{least(l.RPM, other.RPM), least(l.TPM, other.TPM), least(l.Concurrency, other.Concurrency)}
}

// least returns the lower of two limits, where 0 means no limit: least(0, 5) is 5.
func least[N int | float64](a, b N) N {
	if b > 0 && (a == 0 || b < a) {
		return b
	}
	return a
}

// Mode is a member's part in its fleet.
type Mode string

// The modes.
const (
	Alone  Mode = "alone"  // it hears nobody, and goes by a law of its own
	Follow Mode = "member" // it takes its turns by the plan of a leader
	Lead   Mode = "leader" // it makes the plan
)

// State is what a member knows of its fleet.
type State struct {
	Mode    Mode
	Leader  string // its ID; empty while alone
	Members int    // in the plan; 1 while alone
	// Share is the part of the whole that the member may use now, from 0 to 1; while it
	// is alone, its last share before.
	Share float64
	// Rate is how many calls per second all members of the plan may make; while it is
	// alone, the member itself.
	Rate float64
	Term uint64 // grows with each new leader
}

// Member is one pool of a fleet. It implements the pool's law: the pool calls its methods
// from Next to Stats, and the carrier of the messages calls Hear, Tick and Leave. It is
// not safe for concurrent use. Instants must not go back.
type Member struct {
	cfg   Config
	begin time.Time // the first instant that it was given

	view     view
	election election
	lead     *leader // nil while it does not lead
	parting  []byte  // its last plan, to be sent when it no longer leads, or nil
	own      ownLaw

	turns  turns
	report reporting
	peak   time.Duration // the longest delay that Stats has returned
}

// none stands for an instant that has not come, in seconds.
const none = -1.0

// New returns a member that has not begun, or an error about cfg. Call Tick at once.
func New(cfg Config) (*Member, error) {
	if cfg.Weight == 0 {
		cfg.Weight = 1
	}
	var err error
	if cfg.ID == "" {
		err = errors.New("fleet: ID is empty")
	}
	if !within(cfg.Weight, weightLeast, weightMost) {
		err = errors.Join(err, fmt.Errorf("fleet: Weight is %v, must be from %v to %v", cfg.Weight, weightLeast, weightMost))
	}
	own, bad := aimd.NewAdaptive(cfg.Law)
	if err = errors.Join(err, bad); err != nil {
		return nil, err
	}
	own.Share(true) // while it is alone the others most likely are, too
	return &Member{
		cfg: cfg, view: view{id: cfg.ID}, election: election{spread: spread(cfg.ID), asked: none, answered: none}, own: ownLaw{law: own},
		turns: turns{flying: map[uint64]flight{}}, report: reporting{at: none},
	}, nil
}

// spread returns a number in [0, 1) that differs from member to member.
func spread(id string) float64 {
	h := fnv.New32a()
	h.Write([]byte(id))
	return float64(h.Sum32()) / (1 << 32)
}

// sec returns an instant in seconds of the member's own clock, which begins with the
// first instant that it is given.
func (m *Member) sec(now time.Time) float64 {
	if m.begin.IsZero() {
		m.begin = now
	}
	return now.Sub(m.begin).Seconds()
}

// Tick does what the passing of time asks for. It returns the messages that must be
// published now, and when to call it again at the latest: earlier if Urgent is true.
func (m *Member) Tick(now time.Time) (out [][]byte, next time.Time) {
	sec := m.sec(now)
	m.resign(sec)
	if m.election.slept(sec) {
		m.election.answered = none // it listens before it claims anything
	}
	m.election.ticked = sec
	if m.lead == nil && m.election.mayClaim(sec, &m.view, m.own.inUse) {
		m.claim(now, sec)
	}
	if m.lead != nil {
		return m.tickLead(now, sec), now.Add(tickLeader)
	}
	if m.parting != nil {
		out, m.parting = append(out, m.parting), nil
	}
	v := &m.view
	if v.plan == nil && sec >= joinSec || v.plan != nil && sec-min(v.heard, v.placed) >= silentSec {
		m.isolate(now, sec)
	}
	if (v.outdated() || v.silence(sec) >= doubtSec) && m.election.ask(sec, m.own.inUse) {
		out = append(out, encode(hello{Hello: 1, ID: m.cfg.ID, Ring: v.ring}))
	}
	if v.plan != nil && v.silence(sec) < silentSec && m.report.due(sec) {
		out = append(out, encode(m.makeReport(sec)))
	}
	if m.report.urgent && !m.own.inUse {
		return out, now.Add(time.Duration(hastySec * float64(time.Second)))
	}
	return out, now.Add(tickMember)
}

// resign ends the lead of a member that has slept, or has not heard itself: others have
// not heard it for so long that one of them leads by now, or nobody can.
func (m *Member) resign(sec float64) {
	if m.lead != nil && (m.election.slept(sec) || sec-m.election.echo > claimSec) {
		m.lead = nil
		m.view.heard = min(m.view.heard, m.election.echo)
	}
}

// isolate has the member go by its own law, at the rate that a plan gave it at last.
func (m *Member) isolate(now time.Time, sec float64) {
	if !m.own.inUse {
		m.remember()
		m.own.begin(now, sec)
	}
	m.own.bound(float64(m.limits().RPM)*(m.view.portion()/60), sec)
}

// remember notes how many calls per second the present plan gives the member, for the
// case that it has to go by its own law. A plan that it doubts does not count.
func (m *Member) remember() {
	if rate := m.view.rate(); rate > 0 && !m.turns.guard.doubts {
		m.own.had = rate
	}
}

// makeReport returns the report that goes now.
func (m *Member) makeReport(sec float64) report {
	r := m.report.next(sec)
	r.ID, r.Weight, r.Ring, r.InFlight, r.Pool = m.cfg.ID, m.cfg.Weight, m.view.ring, len(m.turns.flying), m.cfg.Law.PoolSize
	r.Limits = m.cfg.Limits
	return r
}

// claim makes the member the leader of a new term.
func (m *Member) claim(now time.Time, sec float64) {
	lead, err := newLeader(now, sec, m.cfg.Law, &m.view)
	if err != nil {
		panic(err) // New has checked the settings
	}
	m.lead, m.election.echo, m.election.answered = lead, sec, none
}

// tickLead is Tick for the leader.
func (m *Member) tickLead(now time.Time, sec float64) (out [][]byte) {
	l := m.lead
	l.advance(now)
	if l.last == nil || m.report.due(sec) {
		r := m.makeReport(sec)
		l.hear(now, &r)
	}
	p := l.next(now, sec)
	if p == nil {
		return nil
	}
	out = append(out, encode(p))
	if p.Ring != m.view.ring {
		p.Places = slices.Clone(l.roster.places)
	}
	m.adopt(p, sec)
	return out
}

// Hear takes a message of another member, or the echo of one of this one.
func (m *Member) Hear(now time.Time, body []byte) error {
	sec := m.sec(now)
	msg, err := decode(body)
	if err != nil {
		return err
	}
	if m.election.slept(sec) {
		m.resign(sec) // it need not count the turns of hours
	}
	switch msg := msg.(type) {
	case *plan:
		m.hearPlan(now, sec, msg)
	case *report:
		if m.lead != nil && msg.ID != m.cfg.ID {
			m.lead.hear(now, msg)
		}
	case *hello:
		switch {
		case msg.ID == m.cfg.ID:
			m.election.echo = sec
			if m.election.answered == none {
				m.election.answered = sec
			}
		case m.lead != nil:
			m.lead.asked = true
		}
	}
	return nil
}

// hearPlan takes a plan, and goes by it unless it is no news or another leader's counts.
func (m *Member) hearPlan(now time.Time, sec float64, p *plan) {
	v := &m.view
	switch {
	case p.Leader == m.cfg.ID:
		m.election.echo = sec
	case v.plan != nil && p.Term > v.plan.Term+termLeap: // a lie
	case m.lead != nil && !p.beats(m.lead.term, m.cfg.ID):
		m.lead.meet(now, p)
	case v.plan != nil && m.lead == nil && sec-v.heard < claimSec && !p.beats(v.plan.Term, v.plan.Leader) && !v.follows(p): // the present leader counts
	case v.plan != nil && v.follows(p) && (p.Seq <= v.plan.Seq || sec-p.Sent > v.delays.least()+silentSec): // doubled, overtaken, or late
	default:
		if m.lead != nil { // the other may not know yet what this one has learned
			m.lead.advance(now)
			m.parting = encode(m.lead.plan(now, sec, false))
			m.lead = nil
		}
		m.adopt(p, sec)
	}
}

// adopt goes by a new plan from now on.
func (m *Member) adopt(p *plan, sec float64) {
	m.remember()
	v := &m.view
	old := v.take(p, sec)
	m.turns.move(old, v.place, p.Turns)
	m.election.answered = none
	if v.place == nil || v.outdated() {
		m.report.urgent = true // so that the leader learns who it is
	}
	if m.own.inUse && v.place != nil {
		m.own.inUse = false
		m.turns.taken = whole(v.position(sec))
	}
}

// Leave returns the messages that tell the others that the member is leaving.
func (m *Member) Leave(now time.Time) [][]byte {
	sec := m.sec(now)
	m.resign(sec)
	r := m.makeReport(sec)
	r.Bye = true
	out := [][]byte{encode(r)}
	if m.lead != nil { // the others need not wait for its silence
		m.lead.advance(now)
		p := m.lead.plan(now, sec, true)
		p.Bye = true
		out, m.lead = append(out, encode(p)), nil
	}
	return out
}

// Leads reports whether the member must hear the reports of the others.
func (m *Member) Leads() bool { return m.lead != nil }

// Urgent reports whether Tick must be called now: the member has been refused, and the
// others need to know.
func (m *Member) Urgent() bool { return m.report.urgent }

// State returns the member's present part in its fleet.
func (m *Member) State() State {
	s := State{Mode: Alone, Members: 1, Share: m.view.portion()}
	p := m.view.plan
	switch {
	case m.lead != nil && p != nil:
		s.Mode = Lead
	case p != nil && !m.own.inUse && m.view.share > 0: // before it has a place it is in no plan
		s.Mode = Follow
	default:
		if d := m.own.law.Stats().CurrentDelay; d > 0 {
			s.Rate = float64(time.Second) / float64(d)
		}
		return s
	}
	s.Leader, s.Members, s.Rate, s.Term = p.Leader, p.Count, p.Rate, p.Term
	return s
}
