package pool

import (
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool/internal/health"
)

// server is one of the servers that attempts go to, with the jobs that wait for it. Each
// has a law and a health of its own: what one rejects is no evidence about the others.
//
// A job waits at one server and moves from there only forwards, when its attempts are
// used up. While that server has been without capacity, or slow, for Config.FallbackAfter
// an attempt may go past it, to the next one that admits it. The job stays where it
// waits, so it comes back as soon as there is capacity again.
type server struct {
	*health.Server

	law   Law
	gates []Gate
	ready taskHeap // jobs that may have their next attempt, oldest first

	shut      time.Time // a fallback is skipped until then, after a fatal verdict
	shutBy    error     // the error of that verdict
	postponed postponed // what the last attempt that was considered waits for
	skip      bool      // first has ruled this server out for the rest of its pass
	checked   time.Time // when failOverdue last looked through its jobs
}

func newServers(cfg Config, m *health.Monitor) (servers []server, err error) {
	for i, c := range append([]Server{{Law: cfg.Law, Gates: cfg.Gates}}, cfg.Fallbacks...) {
		if c.Law == nil {
			if c.Law, err = aimd.NewClassic(aimd.Default()); err != nil {
				return nil, err
			}
		}
		servers = append(servers, server{
			Server: m.Server(i), law: c.Law, gates: c.Gates, ready: taskHeap{less: older},
		})
	}
	return servers, nil
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

// firstReady returns the job of those that may have their next attempt which goes first.
func (v *server) firstReady() *task {
	if !v.RetriesInVain() {
		return v.ready.first()
	}
	var least *task
	for _, t := range v.ready.tasks {
		if least == nil || t.Refusals() < least.Refusals() ||
			t.Refusals() == least.Refusals() && older(t, least) {
			least = t
		}
	}
	return least
}
