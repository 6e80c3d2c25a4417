package fleet

import (
	"math"
	"slices"
	"time"

	"github.com/llm-stage/stage/aimd"
)

const (
	// creditSec is for how long turns that were missed can be made up for, at least one:
	// timers are late.
	creditSec = 0.02
	// A member is hungry that has waited for its turns for so long since the last report:
	// half of the time between two. One that was not hungry says so at once. Less would
	// be met by chance, whenever the law drains.
	hungrySec = 0.25
	// A member that is not hungry wants so much more than it has sent, and never less
	// than half of what it wanted before.
	wantMore, wantLess = 1.25, 0.5
	// meanSec is over how long the rate of a member is averaged.
	meanSec = 2.0
)

// turns are the turns that a member takes.
type turns struct {
	taken  int64 // the number of the last, by its place
	flying map[uint64]flight
	last   uint64    // key of the latest flight
	sent   time.Time // when it went
	guard  guard

	// Waiting for turns, since the last report.
	waits  float64 // since when; with waiting
	until  float64 // when the turn comes
	waited float64
	wait   bool
}

// flight is a call in flight.
type flight struct {
	alone  bool
	ticket aimd.Ticket // of the own law
	turn   float64     // over all members
	epoch  int
	term   uint64
}

// reporting is when and what to report next.
type reporting struct {
	at     float64 // the last report
	seq    uint64
	urgent bool

	sent, accepted, refused uint64
	refusals                []refusal // the refusals of the last report, and later ones
	fresh                   int       // how many of them no report has had
	news                    uint64    // how many there were so far

	before uint64  // sent, at the last report
	rate   float64 // calls per second of late
	want   float64
	hungry bool // as last reported

	restart bool
}

func (r *reporting) due(m *Member, sec float64) bool {
	switch {
	case r.at == none || sec-r.at >= reportSec:
		return true
	case sec-r.at < hastySec:
		return false
	}
	return r.urgent || !r.hungry && m.turns.waiting(sec) >= hungrySec
}

// waiting returns for how long the member has waited for turns since the last report.
func (t *turns) waiting(sec float64) float64 {
	if !t.wait {
		return t.waited
	}
	return t.waited + max(0, min(sec, t.until)-t.waits)
}

// makeReport returns what to tell the leader now.
func (m *Member) makeReport(sec float64) report {
	r := &m.report
	elapsed := reportSec
	if r.at != none {
		elapsed = max(sec-r.at, 1e-3)
	}
	r.rate += (float64(r.sent-r.before)/elapsed - r.rate) * min(1, elapsed/meanSec)
	r.hungry = m.turns.waiting(sec) >= hungrySec*min(1, elapsed/reportSec)
	r.want = min(max(wantMore*r.rate, wantLess*r.want), rateMost)
	r.seq++
	msg := report{
		Report: 1, ID: m.cfg.ID, Seq: r.seq, Weight: m.cfg.Weight, Ring: m.ring,
		Sent: r.sent, Accepted: r.accepted, Refused: r.refused, InFlight: len(m.turns.flying), Pool: m.cfg.Law.PoolSize,
		Want: r.want, Hungry: r.hungry, Refusals: slices.Clone(r.refusals), News: r.news, RPM: m.cfg.Limits.RPM, TPM: m.cfg.Limits.TPM,
		Concurrency: m.cfg.Limits.Concurrency, Restart: r.restart,
	}
	r.refusals, r.fresh = slices.Delete(r.refusals, 0, len(r.refusals)-r.fresh), 0
	r.at, r.before, r.urgent, r.restart = sec, r.sent, false, false
	m.turns.waited, m.turns.waits = 0, sec
	return msg
}

// position returns how many turns the member has had by its place, with the part of the
// next that has passed. It moves with each whole turn over all members: to the law, a
// call goes when its turn comes due.
func (m *Member) position(sec float64) float64 {
	if m.place == nil || m.plan == nil {
		return math.Inf(-1)
	}
	return m.place.at(math.Floor(m.plan.at(m.age(sec))+rounding)) + rounding
}

// rounding is far less than a turn, and more than sums of turns are off by.
const rounding = 1e-6

func (p *place) at(turns float64) float64 { return float64(p.Offset) + float64(p.Share)*turns }

// whole returns the whole turns in x.
func whole(x float64) int64 { return int64(math.Floor(max(x, -1e15))) }

// move goes over to another place. What the member had taken by the old one, of the same
// leader, counts.
func (t *turns) move(old, now *place, p *plan) {
	switch {
	case now == nil:
	case old == nil:
		t.taken = whole(now.at(p.Turns))
	default:
		t.taken += whole(now.at(p.Turns)) - whole(old.at(p.Turns))
	}
}

// TPM returns how many tokens a minute the member may use, by the account's limit, or 0.
func (m *Member) TPM() float64 {
	limit := float64(m.cfg.Limits.TPM)
	if m.plan != nil {
		limit = least(limit, float64(m.plan.TPM))
	}
	return limit * m.shareOr(1)
}

// Room reports whether the member may have one more call in flight than the n that it
// has, by the account's limit. Ask again after each message.
func (m *Member) Room(now time.Time, n int) bool {
	sec := m.sec(now)
	var limit int
	switch {
	case m.plan != nil && m.plan.Slots && m.place != nil:
		limit = m.place.Slots
		if m.alone {
			limit = max(1, limit)
		}
	case m.cfg.Limits.Concurrency > 0:
		limit = max(1, int(m.shareOr(1)*float64(m.cfg.Limits.Concurrency)))
	default:
		return true
	}
	if n < limit {
		return true
	}
	m.turns.hold(sec, sec+2*reportSec)
	return false
}

// Hold reports that a call waits until an instant for the member's share of another
// limit.
func (m *Member) Hold(now, until time.Time) {
	sec := m.sec(now)
	m.turns.hold(sec, sec+min(until.Sub(now).Seconds(), 2*reportSec))
}

// hold notes that a call waits, from now until the instant at which it may go.
func (t *turns) hold(sec, until float64) {
	t.waited = t.waiting(sec)
	t.wait, t.waits, t.until = until > sec, sec, until
}

// Next returns the instant of the member's next turn, now at the earliest. It may be far
// in the future while there is no plan; call it again after each message.
func (m *Member) Next(now time.Time, inFlight int) time.Time {
	sec := m.sec(now)
	if m.alone {
		return m.own.Next(now, inFlight)
	}
	at := m.nextTurn(now, sec)
	floor := m.turns.sent.Add(max(m.cfg.Law.MinDelay, time.Duration(m.turns.guard.wait(sec)*1e9)))
	if !m.turns.sent.IsZero() && floor.After(at) {
		at = floor
	}
	m.turns.hold(sec, sec+at.Sub(now).Seconds())
	return at
}

func (m *Member) nextTurn(now time.Time, sec float64) time.Time {
	if m.place == nil || m.plan == nil || m.place.Share == 0 {
		return now.Add(tickMember)
	}
	position := m.position(sec)
	m.turns.catchUp(position, float64(m.place.Share)*m.plan.Rate)
	if position >= float64(m.turns.taken+1) {
		return now
	}
	turn := (float64(m.turns.taken+1) - float64(m.place.Offset)) / float64(m.place.Share)
	age := m.plan.reach(math.Ceil(turn - rounding))
	wait := age - m.age(sec)
	if wait > silentSec {
		return now.Add(silent)
	}
	return now.Add(max(time.Duration(math.Ceil(wait*1e9)), 1))
}

// Sent records that a call goes now, with inFlight in flight, this one included.
func (m *Member) Sent(now time.Time, inFlight int) aimd.Ticket {
	sec := m.sec(now)
	t := &m.turns
	t.last++
	f := flight{alone: m.alone}
	switch {
	case m.alone:
		f.ticket = m.own.Sent(now, inFlight)
	case m.plan != nil:
		t.hold(sec, sec)
		f.turn, f.epoch, f.term = math.Floor(m.plan.at(m.age(sec))+rounding), m.plan.Epoch, m.plan.Term
		credit := 1 + int64(creditSec*m.shareOr(0)*m.plan.Rate)
		t.taken = max(t.taken+1, whole(m.position(sec))-credit+1)
	}
	t.flying[t.last] = f
	t.sent = now
	m.report.sent++
	return aimd.Ticket{Sent: now, InFlight: inFlight, Turn: t.last}
}

// Accepted records a reply that was no capacity error.
func (m *Member) Accepted(now time.Time, t aimd.Ticket) {
	m.stats.Successes++
	m.report.accepted++
	if f := m.land(t); f.alone {
		f.ticket.Output = t.Output
		m.own.Accepted(now, f.ticket)
	} else {
		m.turns.guard.verdict(m.sec(now), true)
	}
}

// Rejected records a capacity error, with the server's hint.
func (m *Member) Rejected(now time.Time, t aimd.Ticket, h aimd.Hint) {
	sec := m.sec(now)
	m.stats.CapacityRetries++
	r := &m.report
	r.refused++
	f := m.land(t)
	if !f.alone {
		m.turns.guard.verdict(sec, false)
	}
	switch {
	case f.alone:
		m.own.Rejected(now, f.ticket, h)
	case m.plan != nil && r.fresh < reportMost/2:
		news := refusal{Turn: min(max(0, f.turn), turnsMost), Epoch: f.epoch, Term: f.term, RetryAfter: min(max(0, h.RetryAfter.Seconds()), 1e9)}
		if h.Remaining0 {
			news.Reset = min(max(0, h.Reset.Seconds()), 1e9)
		}
		r.refusals = append(r.refusals, news)
		r.fresh++
		r.news++
		r.urgent = r.urgent || f.epoch == m.plan.Epoch && f.term == m.plan.Term
	}
}

// Dropped records a call that ended without a verdict.
func (m *Member) Dropped(now time.Time, t aimd.Ticket) {
	if f := m.land(t); f.alone {
		m.own.Dropped(now, f.ticket)
	}
}

// land forgets a call in flight, which has ended, and returns its record.
func (m *Member) land(t aimd.Ticket) flight {
	f := m.turns.flying[t.Turn]
	delete(m.turns.flying, t.Turn)
	if m.plan != nil && m.plan.Slots && m.place != nil && len(m.turns.flying) >= m.place.Slots {
		m.report.urgent = true // its slot is another's now, who waits for it
	}
	return f
}

// Restart tells the law that the server is back from an outage. The common one restarts
// if no other member has been served meanwhile.
func (m *Member) Restart(now time.Time) {
	if m.alone {
		m.own.Restart(now)
		return
	}
	m.report.restart, m.report.urgent = true, true
}

// Stats returns the member's own counters, and the delay between its own calls.
func (m *Member) Stats() aimd.Stats {
	s := m.stats
	switch {
	case m.alone:
		own := m.own.Stats()
		s.CurrentDelay, s.PausedUntil, s.PauseReason = own.CurrentDelay, own.PausedUntil, own.PauseReason
		s.Concurrency, s.Belief = own.Concurrency, own.Belief
	case m.plan != nil && m.place != nil:
		if rate := float64(m.place.Share) * m.plan.Rate; rate > 0 {
			s.CurrentDelay = time.Duration(min(1/rate, waitMost) * float64(time.Second))
		}
		if m.plan.Pause > 0 {
			s.PausedUntil = m.begin.Add(time.Duration((m.heard + m.plan.Pause) * float64(time.Second)))
			s.PauseReason = m.plan.Reason
		}
	}
	if !m.alone {
		s.Belief = m.belief()
	}
	m.stats.PeakDelay = max(m.stats.PeakDelay, s.CurrentDelay)
	s.PeakDelay = m.stats.PeakDelay
	return s
}

// belief returns what the leader believes about the server, as its last plan says.
func (m *Member) belief() aimd.Belief {
	b := aimd.Belief{Measured: true, Shared: true}
	switch {
	case m.plan == nil:
	case m.plan.Belief == nil:
		b.Limit = m.plan.Estimate
	default:
		of := m.plan.Belief
		b.Limit, b.Low, b.High, b.InFlight, b.Random = of.Limit, of.Low, of.High, of.InFlight, of.Random
		if of.MetAgo > 0 {
			b.Met = m.begin.Add(time.Duration((m.heard - of.MetAgo) * float64(time.Second)))
		}
	}
	return b
}
