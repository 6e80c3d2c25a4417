package fleet

import (
	"math"
	"time"

	"github.com/llm-stage/stage/aimd"
)

// creditSec is for how long turns that were missed can be made up for, at least one:
// timers are late.
const creditSec = 0.02

// turns are the turns that a member takes.
type turns struct {
	taken  int64 // the number of the last, by its place
	flying map[uint64]flight
	last   uint64    // key of the latest flight
	sent   time.Time // when it went
	guard  guard
}

// flight is a call in flight.
type flight struct {
	alone  bool
	ticket aimd.Ticket // of the own law
	turn   float64     // over all members
	epoch  int
	term   uint64
}

func (p *place) at(turns float64) float64 { return float64(p.Offset) + float64(p.Share)*turns }

// whole returns the whole turns in x.
func whole(x float64) int64 { return int64(math.Floor(max(x, -1e15))) }

// move goes over to another place, when so many turns are due over all members. What the
// member had taken by the old place, which is of the same leader or nil, counts.
func (t *turns) move(old, now *place, due float64) {
	switch {
	case now == nil:
	case old == nil:
		t.taken = whole(now.at(due))
	default:
		t.taken += whole(now.at(due)) - whole(old.at(due))
	}
}

// next returns when the plan has the member's next turn.
func (t *turns) next(now time.Time, sec float64, v *view) time.Time {
	if v.place == nil || v.place.Share == 0 {
		return now.Add(tickMember)
	}
	position := v.position(sec)
	if most := position + max(2, v.rate()*silentSec); float64(t.taken) > most {
		t.taken = whole(math.Ceil(most)) // no plan tells of later turns: it has taken some that never were
	}
	if position >= float64(t.taken+1) {
		return now
	}
	all := (float64(t.taken+1) - float64(v.place.Offset)) / float64(v.place.Share)
	wait := v.plan.reach(math.Ceil(all-rounding)) - v.age(sec)
	if wait > silentSec {
		return now.Add(silent)
	}
	return now.Add(max(time.Duration(math.Ceil(wait*1e9)), 1))
}

// limits returns the account's limits, as far as the member knows them: its own, and
// those in the plan.
func (m *Member) limits() Limits {
	if m.view.plan == nil {
		return m.cfg.Limits
	}
	return m.cfg.Limits.lower(m.view.plan.Limits)
}

// TPM returns how many tokens a minute the member may use, by the account's limit, or 0.
func (m *Member) TPM() float64 { return float64(m.limits().TPM) * m.view.portion() }

// Room reports whether the member may have one more call in flight than the n that it
// has, by the account's limit. Ask again after each message.
func (m *Member) Room(now time.Time, n int) bool {
	sec := m.sec(now)
	var limit int
	switch {
	case m.view.place != nil && m.view.plan.Slots:
		limit = m.view.place.Slots
		if m.own.inUse {
			limit = max(1, limit)
		}
	case m.cfg.Limits.Concurrency > 0:
		limit = max(1, int(m.view.portion()*float64(m.cfg.Limits.Concurrency)))
	default:
		return true
	}
	if n < limit {
		return true
	}
	m.report.waiting.hold(sec, sec+2*reportSec)
	return false
}

// Hold reports that a call waits until an instant for the member's share of another
// limit.
func (m *Member) Hold(now, until time.Time) {
	sec := m.sec(now)
	m.report.waiting.hold(sec, sec+min(until.Sub(now).Seconds(), 2*reportSec))
}

// Next returns the instant of the member's next turn, now at the earliest. Without a place
// in a plan it is always a moment ahead. Call it again after each message.
func (m *Member) Next(now time.Time, inFlight int) time.Time {
	sec := m.sec(now)
	if m.own.inUse {
		return m.own.law.Next(now, inFlight)
	}
	at := m.turns.next(now, sec, &m.view)
	floor := m.turns.sent.Add(max(m.cfg.Law.MinDelay, time.Duration(m.turns.guard.wait(sec)*1e9)))
	if !m.turns.sent.IsZero() && floor.After(at) {
		at = floor
	}
	m.report.waiting.hold(sec, sec+at.Sub(now).Seconds())
	return at
}

// Sent records that a call goes now, with inFlight in flight, this one included.
func (m *Member) Sent(now time.Time, inFlight int) aimd.Ticket {
	sec := m.sec(now)
	t, v := &m.turns, &m.view
	var f flight
	switch {
	case m.own.inUse:
		f = flight{alone: true, ticket: m.own.law.Sent(now, inFlight)}
	case v.plan != nil:
		m.report.waiting.hold(sec, sec)
		f = flight{turn: v.due(sec), epoch: v.plan.Epoch, term: v.plan.Term}
		credit := 1 + int64(creditSec*v.share*v.plan.Rate)
		t.taken = max(t.taken+1, whole(v.position(sec))-credit+1)
	}
	t.last++
	t.flying[t.last], t.sent = f, now
	m.report.sent++
	return aimd.Ticket{Sent: now, InFlight: inFlight, Turn: t.last}
}

// Accepted records a reply that was no capacity error.
func (m *Member) Accepted(now time.Time, t aimd.Ticket) {
	m.report.accepted++
	if f := m.land(t); f.alone {
		f.ticket.Output = t.Output
		m.own.law.Accepted(now, f.ticket)
	} else {
		m.turns.guard.verdict(m.sec(now), true)
	}
}

// Rejected records a capacity error, with the server's hint.
func (m *Member) Rejected(now time.Time, t aimd.Ticket, h aimd.Hint) {
	sec := m.sec(now)
	m.report.refused++
	f := m.land(t)
	if f.alone {
		m.own.law.Rejected(now, f.ticket, h)
		return
	}
	m.turns.guard.verdict(sec, false)
	if p := m.view.plan; p != nil {
		m.report.refuse(f, h, f.epoch == p.Epoch && f.term == p.Term)
	}
}

// Dropped records a call that ended without a verdict.
func (m *Member) Dropped(now time.Time, t aimd.Ticket) {
	if f := m.land(t); f.alone {
		m.own.law.Dropped(now, f.ticket)
	}
}

// land forgets a call in flight, which has ended, and returns its record.
func (m *Member) land(t aimd.Ticket) flight {
	f := m.turns.flying[t.Turn]
	delete(m.turns.flying, t.Turn)
	if p := m.view.place; p != nil && m.view.plan.Slots && len(m.turns.flying) >= p.Slots {
		m.report.urgent = true // its slot is another's now, who waits for it
	}
	return f
}

// Restart tells the law that the server is back from an outage. The common one restarts
// if no other member has been served meanwhile.
func (m *Member) Restart(now time.Time) {
	if m.own.inUse {
		m.own.law.Restart(now)
		return
	}
	m.report.restart, m.report.urgent = true, true
}

// Stats returns the member's own counters, and the delay between its own calls.
func (m *Member) Stats() aimd.Stats {
	s := aimd.Stats{Successes: m.report.accepted, CapacityRetries: m.report.refused}
	if m.own.inUse {
		own := m.own.law.Stats()
		s.CurrentDelay, s.PausedUntil, s.PauseReason = own.CurrentDelay, own.PausedUntil, own.PauseReason
		s.Concurrency, s.Belief = own.Concurrency, own.Belief
	} else {
		s.Belief = m.view.belief(m.begin)
		if rate := m.view.rate(); rate > 0 {
			s.CurrentDelay = time.Duration(min(1/rate, waitMost) * float64(time.Second))
		}
		if p := m.view.plan; m.view.place != nil && p.Pause > 0 {
			s.PausedUntil = m.begin.Add(time.Duration((m.view.heard + p.Pause) * float64(time.Second)))
			s.PauseReason = p.Reason
		}
	}
	m.peak = max(m.peak, s.CurrentDelay)
	s.PeakDelay = m.peak
	return s
}
