package fleet

import "time"

// isolate returns to the member's own law, at what the plan gave it at last.
func (m *Member) isolate(now time.Time, sec float64) {
	if !m.alone {
		m.alone, m.since, m.cap = true, sec, 0
		m.remember()
		if m.had > 0 {
			m.cap = m.had
			m.own.Resume(now, m.cap)
		} else if m.begun() {
			m.own.Restart(now)
		}
	}
	limit := float64(m.cfg.Limits.RPM)
	if m.plan != nil {
		limit = least(limit, float64(m.plan.RPM))
	}
	limit *= m.shareOr(1) / 60
	if m.cap > 0 {
		limit = least(limit, m.cap*capGrowth(sec-m.since))
	}
	m.own.Limit(limit)
}

// remember notes how many calls per second the present plan gives the member, if it has
// any to give.
func (m *Member) remember() {
	if rate := m.share * m.rate(); rate > 0 && m.place != nil && !m.turns.guard.doubts {
		m.had = rate
	}
}

// rate returns the rate of the plan, or 0 without a plan.
func (m *Member) rate() float64 {
	if m.plan == nil {
		return 0
	}
	return m.plan.Rate
}

// begun reports whether the own law has ever been used.
func (m *Member) begun() bool { return m.own.Stats().Successes+m.own.Stats().CapacityRetries > 0 }

// least returns the lower of two limits, where 0 means no limit: least(0, 5) is 5.
func least(a, b float64) float64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// capGrowth returns how many times its last share a member may have that has been alone
// for so long.
func capGrowth(sec float64) float64 {
	growth := 1.0
	for next := capSec; sec >= next && growth < 1e6; next += capNextSec {
		growth *= 2
	}
	return growth
}
