package pool

import (
	"fmt"
	"time"

	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/pool/internal/health"
)

// server is one of the servers that attempts go to. Each has a law and a health of its
// own: what one rejects is no evidence about the others.
type server struct {
	*health.Server

	law   Law
	gates []Gate

	shut      time.Time // a fallback is skipped until then, after a fatal verdict
	shutBy    error     // the error of that verdict
	postponed postponed // what the last attempt that was considered waits for
	skip      bool      // scheduler.first has ruled this server out for the rest of its pass
	checked   time.Time // when failOverdue last looked through its jobs
}

// postponed is why a server has no attempt go at once.
type postponed struct {
	until time.Time
	gate  Gate // the gate that holds it back; nil means that the law does, or that the server is shut
}

// next returns the instant at which an attempt at t may go to the server, the index of
// which is i.
func (v *server) next(now time.Time, t *task, i int) time.Time {
	at := v.law.Next(now, v.InFlight())
	if at.After(now) && !v.Out() {
		v.Waits()
	}
	if v.shut.After(at) {
		at = v.shut
	}
	v.postponed = postponed{until: at}
	if len(v.gates) == 0 {
		return at
	}
	w := t.work.weight(i)
	for _, g := range v.gates {
		if gate := g.Next(now, w); gate.After(at) {
			at = gate
			v.postponed = postponed{until: at, gate: g}
		}
	}
	return at
}

// sent reports to health, law and gates that an attempt at t goes now.
func (v *server) sent(now time.Time, t *task) {
	v.Sent(now, &t.Job, t.att.Probe)
	t.ticket = v.law.Sent(now, v.InFlight())
	if len(v.gates) == 0 {
		return
	}
	t.weighed = t.work.weight(t.att.Server)
	for _, g := range v.gates {
		g.Sent(now, t.weighed)
	}
}

// ended reports to health, law and gates how that attempt ended. It reports whether an
// outage is over.
func (v *server) ended(now time.Time, t *task) (over bool) {
	verdict, actual := &t.verdict, t.weighed
	seen := verdict.health()
	report := v.Ended(now, &t.Job, seen, t.ended.Sub(t.att.Dispatched))
	switch {
	case seen.Sign == health.NoEvidence, seen.Sign == health.Unreached, report.Spared:
		v.law.Dropped(now, t.ticket)
	case seen.Sign == health.Refused:
		v.law.Rejected(now, t.ticket, verdict.Hint)
	default:
		t.ticket.Output = verdict.Output
		v.law.Accepted(now, t.ticket)
	}
	if report.Restart {
		v.law.Restart(now)
	}
	switch {
	case verdict.void(), seen.InDoubt() && seen.Unsent:
		actual = 0
	case verdict.Weight > 0:
		actual = verdict.Weight
	case seen.Sign == health.Refused:
		actual = 0
	}
	for _, g := range v.gates {
		g.Ended(now, t.weighed, actual)
	}
	return report.Over
}

// wait returns why a job that may go does not go to the server. It has the kind
// [hold.Turn] if nothing holds the job but others that go first.
func (v *server) wait(now time.Time) hold.Hold {
	switch p := v.postponed; {
	case v.Out():
		b := &v.Outage
		return hold.Hold{Kind: hold.Outage, Why: textOf(b.Err), Since: b.Since, Next: b.Next, Err: b.Err}
	case v.shut.After(now):
		return hold.Hold{Kind: hold.Other, Why: textOf(v.shutBy), Next: v.shut, Err: v.shutBy}
	case v.SettingsSuspected(), v.JudgeAt().After(now):
		return hold.Hold{Kind: hold.Doubt, Next: v.JudgeAt()}
	case !p.until.After(now):
		return hold.Hold{Kind: hold.Turn}
	case p.gate != nil:
		h := hold.Hold{Kind: hold.Limit, Next: p.until}
		if named, ok := p.gate.(fmt.Stringer); ok {
			h.By = named.String()
		}
		return h
	}
	if until := v.law.Stats().PausedUntil; until.After(now) {
		return hold.Hold{Kind: hold.RetryAfter, Next: until}
	}
	return hold.Hold{Kind: hold.Throttle, Next: v.postponed.until}
}
