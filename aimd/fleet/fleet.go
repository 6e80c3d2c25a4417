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
// at the rate that its last share was.
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
	// reportSec is the time between two reports. A refusal that is news goes at once, but
	// for hastySec.
	reportSec = 0.5
	// doubtSec is how long a leader may be silent before a member asks for its plan,
	// askSec how long until it asks again.
	doubtSec = 0.9
	askSec   = 0.25
	aloneSec = 0.5 // the same while it is alone
	// claimSec is how long a leader may be silent before the first of the members leads;
	// each next one waits by rankSec longer, so that a leader is replaced by one and not
	// by all.
	claimSec = 1.25
	rankSec  = 0.04
	ranksMax = 15
	// answerSec is how long a member that hears itself waits for the answer of a leader,
	// when it has none.
	answerSec = 0.35
	spreadSec = 0.3
	// joinSec is how long a new member waits for a connection before it begins alone.
	joinSec = 1.1
	// capSec is how long a member that is alone keeps to its last share; then it may have
	// twice as much, and again each capNextSec.
	capSec, capNextSec = 60.0, 30.0

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
	RPM         int // calls a minute
	TPM         int // tokens a minute
	Concurrency int // calls in flight
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
	begin time.Time
	own   *aimd.Adaptive // while it is alone

	// What it knows of the leader.
	plan   *plan
	heard  float64 // when a plan was last heard
	placed float64 // when one last had a place for it, or it first heard one
	delays delays
	place  *place
	share  float64 // the last one that it had; 0 means that none ever
	ring   uint64  // version of place, or 0
	places []place // of that version

	lead   *leader // nil while it does not lead
	echo   float64 // when it last heard a message of its own
	alone  bool    // it goes by its own law
	since  float64 // when that began
	cap    float64 // the rate that it kept to when that began, or 0
	had    float64 // calls per second by the plan before the present one; 0 means that no plan gave it any
	ranked float64 // a wait of its own, so that not all claim at once

	asked    float64 // the last hello
	answered float64 // when it first heard the echo of a hello since it heard a plan; none: not yet
	ticked   float64
	answer   bool   // the leader must send a plan with places
	last     []byte // the last plan of one that leads no more, to be sent, or nil

	turns  turns
	report reporting
	stats  aimd.Stats
}

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
		cfg: cfg, own: own, heard: none, echo: none, asked: none, answered: none, ranked: spread(cfg.ID),
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
// published now, and when to call it again: also after Hear, and as soon as Urgent is
// true.
func (m *Member) Tick(now time.Time) (out [][]byte, next time.Time) {
	sec := m.sec(now)
	asleep := sec-m.ticked > claimSec
	m.resign(sec)
	m.ticked = sec
	if asleep {
		m.answered = none // it listens before it claims anything
	}
	if m.lead == nil && m.mayClaim(sec) {
		m.claim(now, sec)
	}
	if m.lead != nil {
		return m.tickLead(now, sec), now.Add(tickLeader)
	}
	if m.last != nil {
		out, m.last = append(out, m.last), nil
	}
	if m.plan == nil && sec >= joinSec || m.plan != nil && sec-min(m.heard, m.placed) >= silentSec {
		m.isolate(now, sec)
	}
	lost := m.plan != nil && m.plan.Ring != m.ring // the plan with the places
	if (lost || m.silence(sec) >= doubtSec) && (m.asked == none || sec-m.asked >= m.patience()) {
		m.asked = sec
		out = append(out, encode(hello{Hello: 1, ID: m.cfg.ID, Ring: m.ring}))
	}
	if m.plan != nil && m.silence(sec) < silentSec && m.report.due(m, sec) {
		out = append(out, encode(m.makeReport(sec)))
	}
	if m.report.urgent && !m.alone {
		return out, now.Add(time.Duration(hastySec * float64(time.Second)))
	}
	return out, now.Add(tickMember)
}

// resign ends the lead of a member that has slept, or has not heard itself: others have
// not heard it for so long that one of them leads by now, or nobody can.
func (m *Member) resign(sec float64) {
	if m.lead != nil && (sec-m.ticked > claimSec || sec-m.echo > claimSec) {
		m.lead = nil
		m.heard = min(m.heard, m.echo)
	}
}

// patience returns how long to wait before it asks for a leader again.
func (m *Member) patience() float64 {
	if m.alone {
		return aloneSec
	}
	return askSec
}

// silence returns for how long no leader has been heard; since ever: long.
func (m *Member) silence(sec float64) float64 {
	if m.plan == nil {
		return silentSec
	}
	return sec - m.heard
}

// mayClaim reports whether it is this member's turn to lead: it is connected, as it has
// heard itself ask, and a leader would have answered.
func (m *Member) mayClaim(sec float64) bool {
	if m.answered == none {
		return false
	}
	if m.plan == nil || m.alone {
		return sec-m.answered >= answerSec+spreadSec*m.ranked
	}
	return m.silence(sec) >= claimSec+rankSec*m.rank() && sec-m.answered >= hastySec
}

// rank returns how many of the last plan's members lead rather than this one when their
// leader has gone.
func (m *Member) rank() float64 {
	rank := 0.0
	for _, p := range m.places {
		if p.ID == m.cfg.ID {
			return min(rank, ranksMax+m.ranked*ranksMax/2)
		}
		if p.ID != m.plan.Leader {
			rank++
		}
	}
	return ranksMax * (1 + m.ranked)
}

// claim makes the member the leader of a new term.
func (m *Member) claim(now time.Time, sec float64) {
	age := 0.0
	if m.plan != nil {
		age = m.age(sec)
	}
	lead, err := newLeader(now, m.cfg.ID, m.cfg.Law, m.plan, m.places, age)
	if err != nil {
		panic(err) // New has checked the settings
	}
	m.lead, m.echo, m.answered = lead, sec, none
}

// tickLead is Tick for the leader.
func (m *Member) tickLead(now time.Time, sec float64) (out [][]byte) {
	l := m.lead
	l.advance(now)
	if l.last == nil || m.report.due(m, sec) {
		r := m.makeReport(sec)
		l.hear(now, &r)
	}
	p := l.next(now, sec, m.answer)
	if p == nil {
		return nil
	}
	if p.Places != nil {
		m.answer = false
	}
	out = append(out, encode(p))
	if p.Ring != m.ring {
		p.Places = slices.Clone(l.places)
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
	if sec-m.ticked > claimSec {
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
			m.echo = sec
			if m.answered == none {
				m.answered = sec
			}
		case m.lead != nil:
			m.answer = true
		}
	}
	return nil
}

func (m *Member) hearPlan(now time.Time, sec float64, p *plan) {
	switch {
	case p.Leader == m.cfg.ID:
		m.echo = sec
	case m.plan != nil && p.Term > m.plan.Term+termLeap:
	case m.lead != nil && !p.beats(m.lead.term, m.cfg.ID):
		m.lead.meet(now, p)
	case m.plan != nil && m.lead == nil && sec-m.heard < claimSec && !p.beats(m.plan.Term, m.plan.Leader) && !m.follows(p):
	case m.plan != nil && m.follows(p) && (p.Seq <= m.plan.Seq || sec-p.Sent > m.delays.least()+silentSec): // doubled, overtaken, or late
	default:
		if m.lead != nil { // the other may not know yet what this one has learned
			m.lead.advance(now)
			m.last = encode(m.lead.plan(now, sec, false))
			m.lead = nil
		}
		m.adopt(p, sec)
	}
}

// follows reports whether p is of the leader that the member follows.
func (m *Member) follows(p *plan) bool { return p.Leader == m.plan.Leader && p.Term == m.plan.Term }

// adopt goes by a new plan from now on.
func (m *Member) adopt(p *plan, sec float64) {
	if m.plan == nil {
		m.placed = sec
	}
	m.remember()
	if m.plan == nil || !m.follows(p) {
		m.delays, m.place, m.ring = delays{}, nil, 0 // places of one leader mean nothing in the turns of another
	}
	m.delays.add(sec - p.Sent)
	m.plan, m.heard, m.answered = p, sec, none
	if p.Places != nil && p.Ring != m.ring {
		old := m.place
		m.ring, m.places, m.place = p.Ring, p.Places, nil
		for i := range p.Places {
			if own := p.Places[i]; own.ID == m.cfg.ID {
				m.place = &own
			}
		}
		m.turns.move(old, m.place, p)
		if m.place != nil {
			m.share = float64(m.place.Share)
		}
	}
	if m.place != nil {
		m.placed = sec
	}
	if m.place == nil || p.Ring != m.ring {
		m.report.urgent = true // so that the leader learns who it is
	}
	if m.alone && m.place != nil {
		m.alone = false
		m.turns.taken = whole(m.position(sec))
	}
	if p.Bye {
		m.heard = sec - claimSec
	}
}

// age returns for how long the plan has been sent.
func (m *Member) age(sec float64) float64 { return max(0, sec-m.delays.least()-m.plan.Sent) }

// Leave returns the messages that tell the others that the member is leaving.
func (m *Member) Leave(now time.Time) [][]byte {
	sec := m.sec(now)
	m.resign(sec)
	r := m.makeReport(sec)
	r.Bye = true
	out := [][]byte{encode(r)}
	if m.lead != nil { // the others need not wait for its silence
		l := m.lead
		l.advance(now)
		p := l.plan(now, sec, true)
		p.Bye = true
		out = append(out, encode(p))
		m.lead = nil
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
	s := State{Mode: Alone, Members: 1, Share: m.shareOr(1)}
	switch {
	case m.lead != nil && m.plan != nil:
		s.Mode = Lead
	case m.plan != nil && !m.alone && m.share > 0: // before it has a place it is in no plan
		s.Mode = Follow
	default:
		if d := m.own.Stats().CurrentDelay; d > 0 {
			s.Rate = float64(time.Second) / float64(d)
		}
		return s
	}
	s.Leader, s.Members, s.Rate, s.Term = m.plan.Leader, m.plan.Count, m.plan.Rate, m.plan.Term
	return s
}

// shareOr returns the member's share of the whole, or the default where it never had any.
func (m *Member) shareOr(otherwise float64) float64 {
	if m.share == 0 {
		return otherwise
	}
	return m.share
}

// delays finds the leader's clock: the least time between sending and hearing, of the
// last plans, is nearest to the difference of the two clocks.
type delays struct {
	last [16]float64
	n    int
}

func (d *delays) add(sec float64) {
	d.last[d.n%len(d.last)] = sec
	d.n++
}

func (d *delays) least() float64 {
	least := d.last[0]
	for _, sec := range d.last[:min(d.n, len(d.last))] {
		least = min(least, sec)
	}
	return least
}
