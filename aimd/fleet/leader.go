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
	// hastySec is the least time between two plans that answer a hello or have new places,
	// and between two reports.
	hastySec = 0.05
	// usedMost bounds the rate, as a multiple of the members' use, until the server
	// refuses a call. Without it the rate would grow for ever while the pools are the
	// limit. The bound is at least usableLeast, in calls per second.
	usedMost    = 4.0
	usableLeast = 20.0
	// rateLimit keeps a law that meets no limit from counting turns beyond all use.
	rateLimit = 1e5
	// sureSilence is until when a refusal that was reported has come, also where the
	// first report of it was lost.
	sureSilence = 700 * time.Millisecond
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
	id    string
	term  uint64
	begun time.Time

	law      commonLaw
	use      useLog
	roster   roster
	stir     bool            // the members or their demands have changed
	accepted time.Time       // when a member last reported that a call was accepted
	merged   map[string]bool // leaders whose estimates the law has taken up

	// The plans that were sent.
	seq     uint64
	planned time.Time // when the last plan went
	last    *plan     // nil before the first
	asked   bool      // a member waits for a plan with the places
}

// newLeader returns the leader of a term that follows on a member's view of the leader
// before, if there was one.
func newLeader(now time.Time, sec float64, cfg aimd.AdaptiveConfig, v *view) (*leader, error) {
	cfg.PoolSize = turnsKept / 2 // the pool must never be the limit, and the law must remember enough attempts
	cfg.SureSilence = sureSilence
	cfg.KeepConcurrency = true
	cfg.MinDelay = time.Second / rateLimit // each member keeps its own; without any, turns would come without end
	if cfg.RecoveryStep == 0 {
		cfg.RecoveryStep = time.Nanosecond // the floor may have been all that led to a delay
	}
	law, err := aimd.NewAdaptive(cfg)
	if err != nil {
		return nil, err
	}
	law.Share(true)
	l := &leader{
		id: v.id, term: 1, begun: now, law: commonLaw{Adaptive: law, multiplier: cfg.Multiplier, at: now, came: now},
		use: useLog{last: now, perSec: math.Inf(1)}, roster: newRoster(now, v), accepted: now, merged: map[string]bool{},
	}
	if before := v.plan; before != nil {
		l.term = before.Term + 1
		l.law.turn = int64(before.at(v.age(sec))) % turnsRound
		if before.Estimate > 0 {
			law.Resume(now, before.Estimate)
		}
	}
	l.law.settled, l.roster.ring = l.law.turn, l.term<<20
	l.bound()
	law.Next(now, 0)
	return l, nil
}

// advance runs the law until now, and keeps it from climbing while turns go unused.
func (l *leader) advance(now time.Time) {
	inFlight, hungry := l.roster.demand()
	l.law.advance(now, inFlight, l.use.sum.sent, hungry)
	for l.use.sample(now, l.law.turn) {
		if now.Sub(l.begun) > silent {
			l.roster.before = Limits{}
		}
		if l.use.idle() {
			l.law.Idle(time.Duration(sampleSec * float64(time.Second)))
		}
		if l.use.refutes(l.law.Estimate()) {
			l.law.Resume(now, 1) // forgets the estimate, which Restart keeps
			l.law.Restart(now)
			l.law.noteEpoch()
		}
		l.bound()
	}
}

// bound keeps the rate within the configured limit of the whole, and from rising far
// beyond the use of all members. The measured rate is available at once, even if they use
// less now. For example, with an estimate of 50/s and a use of 30/s the rate may rise to
// max(50, 20, 4*30) = 120/s.
func (l *leader) bound() {
	limit := min(rateLimit, max(l.law.Estimate(), usableLeast, usedMost*l.use.perSec))
	if rpm := l.roster.limits().RPM; rpm > 0 {
		limit = min(limit, float64(rpm)/60)
	}
	l.law.Limit(limit)
}

// hear takes a report.
func (l *leader) hear(now time.Time, r *report) {
	m := l.roster.members[r.ID]
	if m == nil {
		if len(l.roster.members) >= membersMax || r.Bye {
			return
		}
		m = &peer{}
		l.roster.members[r.ID] = m
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
	if held := max(m.slots, min(m.held, r.InFlight)); r.Ring == l.roster.ring && held < m.held {
		m.held = held
		l.stir = true
	}
	accepted := atMost(r.Accepted, before.Accepted, turnsKept)
	l.use.sum.sent += atMost(r.Sent, before.Sent, turnsKept)
	l.use.sum.accepted += accepted
	l.use.sum.refused += atMost(r.Refused, before.Refused, turnsKept)
	unserved := now.Sub(l.accepted) > silent // before this report, which has the probe that found the server back
	if accepted > 0 {
		l.accepted = now
	}
	inFlight, _ := l.roster.demand()
	l.law.accept(now, accepted, inFlight)
	known := len(r.Refusals) - int(atMost(r.News, before.News, uint64(len(r.Refusals))))
	for _, f := range r.Refusals[known:] {
		if f.Term == l.term && f.Epoch >= 0 {
			l.law.refuse(now, &f)
		}
	}
	l.law.noteEpoch()
	if r.Restart && unserved {
		l.law.Restart(now)
		l.law.noteEpoch()
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

// next returns the plan that must go now, or nil.
func (l *leader) next(now time.Time, clock float64) *plan {
	due := l.last == nil || now.Sub(l.planned).Seconds() >= planSec
	places := false
	if due || (l.stir || l.asked) && now.Sub(l.planned).Seconds() >= hastySec {
		places = l.arrange(now) || l.asked
		l.stir = false
	}
	if !due && !places && !l.law.news {
		return nil
	}
	l.law.news = false
	return l.plan(now, clock, places)
}

// arrange drops members that are silent or have left, and gives all new places where
// their shares have changed.
func (l *leader) arrange(now time.Time) (changed bool) {
	gone, silenced := l.roster.expire(now, l.id)
	if e := l.law.Estimate(); silenced > 0.5 && e > 0 {
		// Most are gone at once, so they are on the other side of a partition, with a
		// leader of their own, and use the server as well.
		l.law.Resume(now, e*max(1-silenced, 0.01))
	}
	ids, claims := l.roster.claims()
	shares := divide(max(l.law.rate(now), 0.01), claims)
	slots, granted := l.roster.allot(now, ids, claims, l.last != nil && l.last.Slots)
	if changed = gone || granted || l.roster.differ(ids, shares); changed {
		l.roster.place(l.law.turns(now), ids, shares, slots)
	}
	return changed
}

// plan returns the plan as of now. With places set, it includes the place of each member.
func (l *leader) plan(now time.Time, clock float64, places bool) *plan {
	l.seq++
	l.planned = now
	stats, limits := l.law.Stats(), l.roster.limits()
	p := &plan{
		Plan: 1, Term: l.term, Leader: l.id, Seq: l.seq, Sent: clock, Turns: l.law.turns(now), Epoch: l.law.epoch,
		Rate: l.law.rate(now), Estimate: min(l.law.Estimate(), rateLimit), Belief: beliefOf(stats.Belief, now),
		Count: len(l.roster.members), Ring: l.roster.ring, Slots: limits.Concurrency > 0, Limits: limits,
	}
	p.Curve, p.Then = l.law.curve(now)
	if !stats.PausedUntil.IsZero() {
		p.Pause, p.Reason = min(stats.PausedUntil.Sub(now).Seconds(), waitMost), stats.PauseReason
	}
	if places || l.seq <= placesRepeat {
		p.Places = slices.Clone(l.roster.places)
	}
	l.asked = l.asked && p.Places == nil
	l.last = p
	return p
}

// meet takes the plan of another leader that is to follow this one. Where the two had no
// member in common, each has learned its own part of what the server allows.
func (l *leader) meet(now time.Time, p *plan) {
	if l.merged[p.Leader] || len(l.merged) > 64 || l.roster.members[p.Leader] != nil {
		return
	}
	l.merged[p.Leader] = true
	if mine := l.law.Estimate(); mine > 0 && p.Estimate > 0 {
		l.law.Resume(now, mine+min(p.Estimate, 4*mine))
	}
}
