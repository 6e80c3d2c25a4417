package pool

import (
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/pool/internal/health"
)

// route is the way of a job: the first server, and behind it the fallbacks.
//
// A job waits at one server. While that has been without capacity, slow or out for
// Config.FallbackAfter, an attempt may go past it, to the next one that admits it. The job
// stays where it waits, so it comes back as soon as there is capacity again. A job moves
//
//   - to the next server when its attempts are used up, or when the wait that its server has
//     asked for lasts longer than it has to stay there;
//   - to the server that it went past its own for, if it fails there;
//   - back to the first server when the fallback at which it waits is found to be out.
type route struct {
	servers []server
	after   time.Duration // Config.FallbackAfter
	hold    time.Duration // Config.OutageHold
	shutFor time.Duration // Config.ProbeInterval
}

func newRoute(cfg Config, m *health.Monitor) (route, error) {
	r := route{after: cfg.FallbackAfter, hold: cfg.OutageHold, shutFor: cfg.ProbeInterval}
	for i, c := range append([]Server{{Law: cfg.Law, Gates: cfg.Gates}}, cfg.Fallbacks...) {
		if c.Law == nil {
			law, err := aimd.NewClassic(aimd.Default())
			if err != nil {
				return route{}, err
			}
			c.Law = law
		}
		r.servers = append(r.servers, server{Server: m.Server(i), law: c.Law, gates: c.Gates})
	}
	return r, nil
}

// admits finds the server that an attempt at t may go to now: its own or, past those
// without capacity, a later one. If there is none it is -1, and when is the instant to
// try again. In that case all servers that were considered have skip set: they admit no
// younger job either.
func (r *route) admits(now time.Time, t *task) (at int, when time.Time) {
	for i := t.Server(); i < len(r.servers); i++ {
		v := &r.servers[i]
		switch {
		case v.skip:
		case v.Out(), v.SettingsSuspected(): // only probes go there
			v.skip = true
		case v.JudgeAt().After(now):
			v.skip, when = true, sooner(when, v.JudgeAt())
		default:
			next := v.next(now, t, i)
			if !next.After(now) {
				return i, time.Time{}
			}
			v.skip, when = true, sooner(when, next)
		}
		if pass := r.passable(now, i); pass.IsZero() || pass.After(now) {
			return -1, sooner(when, pass)
		}
	}
	return -1, when
}

// passable returns the instant from which attempts may go past a server. It is zero if
// they may not, however long they wait.
func (r *route) passable(now time.Time, i int) time.Time {
	v := &r.servers[i]
	since := v.LackingSince()
	switch {
	case i == len(r.servers)-1:
		return time.Time{}
	case v.shut.After(now), v.Out() && r.after == 0: // as if their attempts there were used up
		return now
	case r.after == 0 || since.IsZero():
		return time.Time{}
	default:
		return since.Add(r.after)
	}
}

// passed reports whether attempts may go past a server now.
func (r *route) passed(now time.Time, i int) bool {
	at := r.passable(now, i)
	return !at.IsZero() && !at.After(now)
}

// behind returns the next server behind that of t which is not shut, or -1 if there is
// none.
func (r *route) behind(now time.Time, t *task) int {
	for i := t.Server() + 1; i < len(r.servers); i++ {
		if !r.servers[i].shut.After(now) {
			return i
		}
	}
	return -1
}

// shut has a fallback skipped for a while, because of the error of a fatal verdict.
func (r *route) shut(now time.Time, i int, err error) {
	r.servers[i].shut, r.servers[i].shutBy = now.Add(r.shutFor), err
}

// stuckSince returns since when outages leave a job that waits at a server nowhere to go.
// It is zero if the job has somewhere to go.
func (r *route) stuckSince(now time.Time, at int) (since time.Time) {
	for i := at; i < len(r.servers); i++ {
		v := &r.servers[i]
		switch {
		case v.Out():
			since = later(since, v.Outage.Since)
		case i > at && v.shut.After(now):
			since = later(since, v.shut.Add(-r.shutFor))
		default:
			return time.Time{}
		}
		if !r.passed(now, i) {
			break
		}
	}
	return since
}

// outage returns the pause that outages are if they leave the jobs of the first server
// nowhere to go. Otherwise its kind is NotPaused.
func (r *route) outage(now time.Time) Pause {
	if r.stuckSince(now, 0).IsZero() {
		return Pause{}
	}
	p := describe(Outage, 0, &r.servers[0].Outage)
	for i := range r.servers { // Absent only if nothing has listened at any of them
		absent := r.servers[i].Outage.Absent
		if absent.IsZero() {
			p.Absent = time.Time{}
			break
		}
		p.Absent = later(p.Absent, absent)
	}
	return p
}

// due returns the instant at which the scheduler must look at an outage again. It is zero
// if none needs that without an event.
func (r *route) due(now time.Time) (at time.Time) {
	for i := range r.servers {
		v := &r.servers[i]
		if v.JudgeAt().After(now) {
			at = sooner(at, v.JudgeAt())
		}
		if !v.Out() {
			continue
		}
		if next := v.Outage.Due(); next.After(now) {
			at = sooner(at, next)
		}
		if pass := r.passable(now, i); pass.After(now) {
			at = sooner(at, pass)
		}
		if r.hold > 0 && !r.stuckSince(now, i).IsZero() {
			at = sooner(at, v.checked.Add(lookEvery))
		}
	}
	return at
}
