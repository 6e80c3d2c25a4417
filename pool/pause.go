package pool

import (
	"fmt"
	"time"
)

// PauseKind says what kind of trouble holds a pool.
type PauseKind uint8

// The kinds. The zero value is NotPaused.
const (
	NotPaused     PauseKind = iota
	FatalError              // a fatal verdict
	WrongSettings           // the same verdict about every job
	Outage                  // the server, or the way to it, is out
	Shortage                // this machine is short of something, and no call is in flight that could give it back
)

var pauseNames = [...]string{"", "fatal", "settings", "outage", "shortage"}

// String returns the kind in one word in lower case; empty for NotPaused.
func (k PauseKind) String() string {
	if int(k) < len(pauseNames) {
		return pauseNames[k]
	}
	return fmt.Sprintf("pause(%d)", uint8(k))
}

// Pause is what holds a pool: no attempt goes but probes, each at another job, until one finds that the trouble is over.
type Pause struct {
	Kind PauseKind
	// Err is the error of the latest probe, or the one that began the pause.
	Err error
	// Since is when the trouble began: for an outage the first failure after the last success.
	Since time.Time
	// Next is the instant of the next probe; that of the last one while it is in flight.
	Next time.Time
	// Probes counts those that have been sent.
	Probes int
	// Server is the one in trouble: 0 for the first, n for the n-th fallback.
	Server int
	// Passed says, when the pause is over, that the server is still out and jobs go past it to a fallback.
	Passed bool
}

// pause is what holds a pool after a fatal error. It belongs to no job: the one that met the error may be recalled, and
// whichever is first in line when a probe is due finds out whether the error is gone. Without a job it lasts until one
// comes.
type pause struct {
	reason error     // the fatal error, of the latest probe if there was one; nil: the pool is not paused
	since  time.Time // began
	due    time.Time // no probe before
	probe  *task     // the one in flight, or nil
}

// holds reports whether nothing may go now, not even a probe.
func (p *pause) holds(now time.Time) bool {
	return p.reason != nil && (p.probe != nil || now.Before(p.due))
}

// next returns the instant at which a pause that holds will not; zero: that depends on the probe.
func (p *pause) next() time.Time {
	if p.probe != nil {
		return time.Time{}
	}
	return p.due
}

func (s *scheduler) paused() bool { return s.pause.reason != nil }

// hold puts t back in line because of its fatal verdict, and pauses the pool. Others whose calls are in flight may bring
// such a verdict too: only that of a probe puts off the next probe.
func (s *scheduler) hold(t *task) {
	s.inbox.occupy(t)
	s.servers[t.server].ready.push(t)
	reason, begins := t.verdict.Err, !s.paused()
	if !begins && t != s.pause.probe {
		return
	}
	s.pause.reason, s.pause.probe, s.pause.due = reason, nil, s.tick.Add(s.cfg.ProbeInterval)
	if begins {
		s.pause.since = s.tick
		s.delayAgain()
		s.turnAway()
	}
	s.counts.Pause = Pause{Kind: FatalError, Err: reason, Since: s.pause.since, Next: s.pause.due}
	if begins {
		s.cfg.OnPause(s.counts.Pause)
	}
}

// probed acts on the class of a probe's verdict; hold and fatal see to a fatal one. A probe that was cut off found out
// nothing, so the next in line goes at once.
func (s *scheduler) probed(class Class) {
	if class == Cancelled {
		s.pause.probe = nil
	} else if class != Fatal {
		s.resume()
	}
}

func (s *scheduler) resume() {
	s.pausedFor += s.tick.Sub(s.pause.since)
	s.pause = pause{}
	s.delayAgain()
	over := s.counts.Pause
	s.counts.Pause = Pause{}
	s.cfg.OnResume(over)
}

// firstProbe is first for a paused pool.
func (s *scheduler) firstProbe() (t *task, at int, next time.Time) {
	if s.pause.holds(s.tick) {
		return nil, 0, time.Time{}
	}
	if t = s.candidate(); t == nil {
		return nil, 0, time.Time{}
	}
	if next = s.servers[t.server].next(s.tick, t, t.server); next.After(s.tick) {
		return nil, 0, next
	}
	return t, t.server, time.Time{}
}

// candidate returns the job that probes next, or nil. Those that ask the first server go before, for it is the one whose
// errors pause the pool: what a fallback says proves little, and is better only than to wait for ever.
func (s *scheduler) candidate() *task {
	for i := range s.servers {
		if t := s.servers[i].ready.first(); t != nil {
			return t
		}
		if t := s.fresh.firstJob(); i == 0 && t != nil && !s.mustNotOvertake() {
			return t
		}
	}
	return nil
}
