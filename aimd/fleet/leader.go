package fleet

import (
	"math"
	"slices"
	"time"

	"github.com/llm-stage/stage/aimd"
)

const (
	// planSec is the time between two plans; one that changes the rate goes at once.
	planSec = 0.5
	// hastySec is the least time between two plans that answer a hello or have new places.
	hastySec = 0.05
	// moved is the relative change of a share above which all members learn of it.
	moved = 0.25
	// Below this share of used turns the law does not climb: what nobody sends cannot be
	// refused.
	usedLeast = 0.8
	// usedMost bounds the rate, as a multiple of the members' use, until the server
	// refuses a call. Without it the rate would grow for ever while the pools are the
	// limit. The bound is at least usableLeast, in calls per second.
	usedMost    = 4.0
	usableLeast = 20.0
	// sampleSec is how often the use of turns is looked at, over the last samples.
	sampleSec = 0.25
	samples   = 5
	// slotSec is how long a member waits for a slot, where there are fewer than members,
	// before another makes room.
	slotSec = 2.0
	// sureSilence is until when a refusal that was reported has come, also where the
	// first report of it was lost.
	sureSilence = 700 * time.Millisecond
	// nurseSec is the time between the turns that come due until a canary is taken: as
	// long as a message takes.
	nurseSec = 0.1
	// turnsKept is for how many turns a refusal can still be told from others.
	turnsKept = 8192
	// placesRepeat is for how many plans of a new leader the places are sent, for those
	// that missed the first.
	placesRepeat = 3
)

// turnsRound keeps the numbers of turns within the range of a plan, even if an earlier
// plan was out of range.
const turnsRound = 1 << 40

// leader runs the one law on the reports of all members, and divides the turns among
// them.
type leader struct {
	id   string
	term uint64
	law  *aimd.Adaptive
	at   time.Time // the law has been run until then

	multiplier float64 // of the law

	// Turns: the law takes each for an attempt that is sent when it comes due.
	turn    int64
	taken   time.Time              // when the last came due
	tickets [turnsKept]aimd.Ticket // by turn
	settled int64                  // turns up to it have been accepted, refused or given up
	ends    [16]struct {           // the last turn of the latest epochs
		epoch int
		turn  int64
	}
	epoch int

	members map[string]*peer
	places  []place // sorted by ID
	ring    uint64  // version of places

	// limits are the limits in the plan before this term, until all members have
	// reported.
	limits report
	begun  time.Time

	perSec float64 // calls sent of late; infinite: not known yet

	sum   use // of all members, since this term began
	used  [samples]use
	looks int // at used
	look  time.Time

	canary canary

	news bool // the rate has changed, and all must know at once
	stir bool // the members or their demands have changed

	seq      uint64
	planned  time.Time // when the last plan went
	last     *plan
	accepted time.Time // when a member last reported that a call was accepted
	merged   map[string]bool
}

type use struct {
	turns                   int64
	sent, accepted, refused uint64
}

// peer is what the leader knows of a member, itself included.
type peer struct {
	report
	heard time.Time
	known bool      // by a report, not from the plan of an earlier leader alone
	slots int       // calls in flight that it may have
	held  int       // that it may still have, until it reports that it knows of fewer
	since time.Time // when it began to have any, or none
}

// newLeader returns the leader of a term that follows on a plan, if there was one.
func newLeader(now time.Time, id string, cfg aimd.AdaptiveConfig, before *plan, places []place, age float64) (*leader, error) {
	cfg.PoolSize = turnsKept / 2 // the pool must never be the limit, and the law must remember enough attempts
	cfg.SureSilence = sureSilence
	cfg.KeepConcurrency = true
	cfg.Config = lawOf(cfg.Config)
	cfg.MinDelay = time.Second / rateLimit // each member keeps its own; without any, turns would come without end
	law, err := aimd.NewAdaptive(cfg)
	if err != nil {
		return nil, err
	}
	law.Share(true)
	l := &leader{
		id: id, term: 1, law: law, multiplier: cfg.Multiplier, at: now, taken: now, members: map[string]*peer{}, look: now, accepted: now,
		merged: map[string]bool{}, begun: now, perSec: math.Inf(1),
	}
	if before != nil {
		l.term = before.Term + 1
		l.turn = int64(before.at(age)) % turnsRound
		if before.Estimate > 0 {
			law.Resume(now, before.Estimate)
		}
		l.limits = report{RPM: before.RPM, TPM: before.TPM, Concurrency: before.Concurrency}
		l.places = slices.Clone(places)
		for _, p := range l.places {
			if p.ID != before.Leader || p.ID == id {
				l.members[p.ID] = &peer{report: report{ID: p.ID, Weight: 1, Hungry: true}, heard: now, slots: p.Slots, held: p.Slots}
			}
		}
	}
	l.settled, l.ring = l.turn, l.term<<20
	l.bound()
	law.Next(now, 0)
	return l, nil
}

// rateLimit keeps a law that meets no limit from counting turns beyond all use.
const rateLimit = 1e5

// lawOf returns the settings of the common law. The floor of the delay is each member's
// own.
func lawOf(c aimd.Config) aimd.Config {
	c.MinDelay = 0
	if c.RecoveryStep == 0 {
		c.RecoveryStep = time.Nanosecond // the floor may have been all that led to a delay
	}
	return c
}

// advance runs the law until now.
func (l *leader) advance(now time.Time) {
	phase := l.law.Phase()
	for t := l.at; ; {
		next := l.law.Next(t, 0)
		if !next.After(t) {
			ticket := l.law.Sent(t, l.inFlight())
			l.comeDue(t, ticket)
			if l.law.Rate(t) == 0 {
				l.canary = canary{flies: true, ticket: ticket, sent: l.sum.sent, turned: t}
			}
			continue
		}
		if next.After(now) {
			break
		}
		t = next
	}
	l.nurse(now)
	l.at = now
	l.law.Next(now, 0)
	l.noteEpoch()
	l.watchUse(now)
	l.news = l.news || l.law.Phase() != phase
}

// comeDue has the next turn come due.
func (l *leader) comeDue(t time.Time, ticket aimd.Ticket) {
	l.turn++
	l.tickets[l.turn%turnsKept], l.taken = ticket, t
	l.news = l.news || l.law.Rate(t) == 0 // no plan has announced it
}

// canary is a turn in a pause that the server asked for, by which the law finds out
// whether it is over.
type canary struct {
	flies  bool
	ticket aimd.Ticket
	sent   uint64    // by all members, until then
	turned time.Time // when the last turn came due for it
}

// nurse makes sure that some member sends the canary. Until then the law must not take
// silence for an answer. The member with the turn may have run ahead of it when the pause
// began, or may have nothing to send, so further turns come due as long as members wait
// for one.
func (l *leader) nurse(now time.Time) {
	c := &l.canary
	switch {
	case !c.flies:
		return
	case l.law.Rate(now) > 0 || l.sum.sent > c.sent:
		c.flies = false
		return
	}
	l.law.Idle(now.Sub(l.at))
	if now.Sub(c.turned).Seconds() < nurseSec {
		return
	}
	for _, m := range l.members {
		if m.Hungry {
			c.turned = now
			l.comeDue(now, c.ticket)
			return
		}
	}
}

// noteEpoch notes that the law has begun another epoch, if it has.
func (l *leader) noteEpoch() {
	if e := l.law.Epoch(); e != l.epoch {
		l.news = true
		slot := &l.ends[l.epoch%len(l.ends)]
		slot.epoch, slot.turn = l.epoch, l.turn
		l.epoch = e
	}
}

func (l *leader) inFlight() int {
	n := 0
	for _, m := range l.members {
		n += m.InFlight
	}
	return n
}

// watchUse keeps the law from climbing while turns go unused.
func (l *leader) watchUse(now time.Time) {
	for now.Sub(l.look).Seconds() >= sampleSec {
		l.look = l.look.Add(time.Duration(sampleSec * float64(time.Second)))
		look, before := &l.used[l.looks%samples], l.used[(l.looks+1)%samples]
		latest := l.used[(l.looks+samples-1)%samples] // reports are a moment old, and so must be the turns
		*look = l.sum
		look.turns = l.turn
		l.looks++
		if now.Sub(l.begun) > silent {
			l.limits = report{}
		}
		if l.looks <= samples {
			l.bound()
			continue
		}
		if float64(look.sent-before.sent) < usedLeast*float64(latest.turns-before.turns)-1 {
			l.law.Idle(time.Duration(sampleSec * float64(time.Second)))
		}
		if refuted(l.law.Estimate(), &before, look) {
			l.law.Resume(now, 1) // forgets the estimate, which Restart keeps
			l.law.Restart(now)
			l.noteEpoch()
		}
		l.perSec = float64(look.sent-before.sent) / (sampleSec * (samples - 1))
		l.bound()
	}
}

// bound keeps the rate within the configured limit of the whole, and from rising far
// beyond the use of all members. The measured rate is available at once, even if they use
// less now. For example, with an estimate of 50/s and a use of 30/s the rate may rise to
// max(50, 20, 4*30) = 120/s.
func (l *leader) bound() {
	limit := min(rateLimit, max(l.law.Estimate(), usableLeast, usedMost*l.perSec))
	if rpm := l.least(func(r *report) int { return r.RPM }); rpm > 0 {
		limit = min(limit, float64(rpm)/60)
	}
	l.law.Limit(limit)
}

// hear takes a report.
func (l *leader) hear(now time.Time, r *report) {
	m := l.members[r.ID]
	if m == nil {
		if len(l.members) >= membersMax || r.Bye {
			return
		}
		m = &peer{}
		l.members[r.ID] = m
		l.stir = true
	}
	before := m.report
	switch {
	case !m.known:
		before.Sent, before.Accepted, before.Refused = r.Sent, r.Accepted, r.Refused
	case r.Seq <= m.Seq:
		return // doubled, or overtaken by a later one
	}
	m.report, m.heard, m.known = *r, now, true
	if r.RPM != before.RPM {
		l.bound()
	}
	if held := max(m.slots, min(m.held, r.InFlight)); r.Ring == l.ring && held < m.held {
		m.held = held
		l.stir = true
	}
	l.sum.sent += atMost(r.Sent, before.Sent, turnsKept)
	l.sum.accepted += atMost(r.Accepted, before.Accepted, turnsKept)
	l.sum.refused += atMost(r.Refused, before.Refused, turnsKept)
	unserved := now.Sub(l.accepted) > silent // until this report, which has the probe that the server is back by
	l.accept(now, atMost(r.Accepted, before.Accepted, turnsKept))
	known := len(r.Refusals) - int(atMost(r.News, before.News, uint64(len(r.Refusals))))
	for _, f := range r.Refusals[known:] {
		l.refuse(now, &f)
	}
	l.noteEpoch()
	if r.Restart && unserved {
		l.law.Restart(now)
		l.noteEpoch()
	}
	l.stir = l.stir || r.Bye || r.Hungry && !before.Hungry
}

// atMost returns by how much a counter has grown, but no more than is credible.
func atMost(now, before, most uint64) uint64 {
	if now < before {
		return 0
	}
	return min(now-before, most)
}

// accept reports n accepted calls to the law. Nobody knows which calls they were, so it
// takes the oldest.
func (l *leader) accept(now time.Time, n uint64) {
	if n > 0 {
		l.accepted = now
	}
	for ; n > 0 && l.settled < l.turn; n-- {
		l.settled++
		l.law.Accepted(now, l.tickets[l.settled%turnsKept])
	}
	// Turns that nobody took are not waited for.
	l.settled = max(l.settled, l.turn-int64(l.inFlight())-int64(l.law.Rate(now))-16)
}

// refuse tells the law of a turn at which a call was refused. A member that did not know
// yet of a new epoch ran ahead, and its turn has another number by now: it counts as the
// last of its epoch.
func (l *leader) refuse(now time.Time, f *refusal) {
	if f.Term != l.term || f.Epoch < 0 {
		return
	}
	turn := min(int64(f.Turn), l.turn)
	if end := l.ends[f.Epoch%len(l.ends)]; f.Epoch < l.epoch && end.epoch == f.Epoch {
		turn = min(turn, end.turn)
	}
	if turn <= max(0, l.turn-turnsKept) {
		return
	}
	if t := l.tickets[turn%turnsKept]; !t.Sent.IsZero() {
		l.law.Rejected(now, t, f.hint())
	}
}

func (l *leader) rate(now time.Time) float64 { return min(l.law.Rate(now), rateLimit) }

// turns returns how many turns have come due, with the part of the next that has passed.
func (l *leader) turns(now time.Time) float64 {
	return float64(l.turn) + min(1, l.rate(now)*now.Sub(l.taken).Seconds())
}

// next returns the plan that must go now, or nil. With asked a member waits for it and
// for the places.
func (l *leader) next(now time.Time, clock float64, asked bool) *plan {
	due := l.last == nil || now.Sub(l.planned).Seconds() >= planSec
	places := false
	if due || (l.stir || asked) && now.Sub(l.planned).Seconds() >= hastySec {
		places = l.arrange(now) || asked
		l.stir = false
	}
	if !due && !places && !l.news {
		return nil
	}
	l.news = false
	return l.plan(now, clock, places)
}

// plan returns the plan as of now. With places set, it includes the place of each member.
func (l *leader) plan(now time.Time, clock float64, places bool) *plan {
	l.seq++
	l.planned = now
	stats := l.law.Stats()
	p := &plan{
		Plan: 1, Term: l.term, Leader: l.id, Seq: l.seq, Sent: clock, Turns: l.turns(now), Epoch: l.epoch,
		Curve: make([]float64, 0, curveSteps), Rate: l.rate(now), Estimate: min(l.law.Estimate(), rateLimit),
		Belief: beliefOf(stats.Belief, now),
		Count:  len(l.members), Ring: l.ring, Slots: l.concurrency() > 0,
		RPM: l.least(func(r *report) int { return r.RPM }), TPM: l.least(func(r *report) int { return r.TPM }), Concurrency: l.concurrency(),
	}
	if !stats.PausedUntil.IsZero() {
		p.Pause, p.Reason = min(stats.PausedUntil.Sub(now).Seconds(), waitMost), stats.PauseReason
	}
	due := 0.0
	for i := range curveSteps {
		ahead := (float64(i) + 0.5) * curveStep
		p.Then = l.rate(now.Add(time.Duration(ahead * float64(time.Second))))
		if ahead > planSec && l.law.Phase() == aimd.Drain && p.Then*l.multiplier >= p.Estimate*0.99 {
			p.Then = p.Estimate // the law will have left drain by then, and without a plan nobody could say so
		}
		due += p.Then * curveStep
		p.Curve = append(p.Curve, due)
	}
	if places || l.seq <= placesRepeat {
		p.Places = slices.Clone(l.places)
	}
	l.last = p
	return p
}

// meet takes the plan of another leader that is to follow this one. Where the two had no
// member in common, each has learned its own part of what the server allows.
func (l *leader) meet(now time.Time, p *plan) {
	if l.merged[p.Leader] || len(l.merged) > 64 || l.members[p.Leader] != nil {
		return
	}
	l.merged[p.Leader] = true
	if mine := l.law.Estimate(); mine > 0 && p.Estimate > 0 {
		l.law.Resume(now, mine+min(p.Estimate, 4*mine))
	}
}
