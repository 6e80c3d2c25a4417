package aimd

import (
	"testing"
	"time"
)

// settled returns a world at 20/s in which the law has found the rate.
func settled(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, bucket(20, 5))
	w.run(30 * time.Second)
	return w
}

// refuseInARow has the law refused n times, each attempt sent after the refusal before it.
func (w *world) refuseInARow(n int, h Hint) {
	for range n {
		next := w.law.Next(at(w.now), 0)
		ticket := w.law.Sent(next, 1)
		w.now = next.Add(60 * ms).Sub(at(0))
		w.law.Rejected(at(w.now), ticket, h)
	}
}

func TestRestartStartsSlowlyAndSpeedsUp(t *testing.T) {
	w := settled(t)
	w.refuseInARow(12, Hint{})
	if delay := w.law.Stats().CurrentDelay; delay < 500*ms {
		t.Fatalf("after twelve refusals in a row the delay is %v, want more than 500ms: nothing to restart from", delay)
	}
	w.law.Restart(at(w.now))
	if phase, delay := w.law.Phase(), w.law.Stats().CurrentDelay; phase != Start || delay != 125*ms {
		t.Errorf("restarted in %v with a delay of %v, want start and 125ms", phase, delay)
	}
	if next := w.law.Next(at(w.now), 0); next.After(at(w.now + 125*ms)) {
		t.Errorf("the next may go %v after the restart, want at the first rate, 125ms after the last at most", next.Sub(at(w.now)))
	}
	from := w.now
	w.calls, w.inFlight = nil, 0
	w.run(from + 5*time.Second)
	if got := between(w.sent, from+2*time.Second, w.now); got < 55 {
		t.Errorf("%d calls in the three seconds from two seconds on, want about 60: what the server allows", got)
	}
}

func TestRestartEndsAPause(t *testing.T) {
	w := settled(t)
	w.refuseInARow(12, Hint{RetryAfter: time.Hour})
	if w.law.Stats().PausedUntil.IsZero() {
		t.Fatal("no pause to end")
	}
	w.law.Restart(at(w.now))
	if until, stats := w.law.Stats().PausedUntil, w.law.Stats(); !until.IsZero() || stats.PauseReason != "" {
		t.Errorf("paused until %v for %q after a restart", until, stats.PauseReason)
	}
	if next := w.law.Next(at(w.now), 0); next.After(at(w.now + 125*ms)) {
		t.Errorf("the next may go %v after the restart, want at the first rate, 125ms after the last at most", next.Sub(at(w.now)))
	}
}

// Verdicts on attempts of before come late: those that ran into a time-out, and refusals that took their time.
func TestRestartJudgesNoAttemptOfBefore(t *testing.T) {
	w := settled(t)
	w.refuseInARow(3, Hint{})
	var before []Ticket
	for range 8 {
		before = append(before, w.law.Sent(at(w.now), 8))
	}
	w.now += 10 * time.Second
	w.law.Restart(at(w.now))
	for _, ticket := range before {
		w.law.Rejected(at(w.now+ms), ticket, Hint{})
	}
	if w.law.Phase() != Start || w.law.epoch.failures != 0 {
		t.Errorf("in %v with %d failures after refusals of attempts sent before the restart, want in start with none", w.law.Phase(), w.law.epoch.failures)
	}
	w.law.Rejected(at(w.now+2*ms), w.law.Sent(at(w.now), 1), Hint{})
	if w.law.Phase() != Drain {
		t.Errorf("in %v after a refusal of an attempt sent since, want drain", w.law.Phase())
	}
}

// A burst just before the restart, all of it lost, must not pass for what the server admits.
func TestRestartMeasuresFromThereOn(t *testing.T) {
	w := newWorld(t, nil)
	w.law.Resume(at(0), 1)
	for range 100 {
		w.law.Accepted(at(w.now), w.law.Sent(at(w.now), 1))
	}
	w.law.noise.spared = 50
	w.now = 500 * ms
	w.law.Restart(at(w.now))
	w.law.Sent(at(w.now), 1)
	w.law.Sent(at(w.now+500*ms), 2)
	refused := w.law.Sent(at(w.now+time.Second), 3)
	w.law.Rejected(at(w.now+1060*ms), refused, Hint{})
	if w.law.estimate < 1 || w.law.estimate > 3 {
		t.Errorf("measured %.1f/s after the restart, want about 2/s: two were admitted in a second", w.law.estimate)
	}
}

func TestRestartForgetsHowLongFailuresTook(t *testing.T) {
	w := newWorld(t, nil)
	for range 100 { // a sick server's errors count as accepted where they are no capacity errors
		w.now += ms
		w.law.Accepted(at(w.now), w.law.Sent(at(w.now-ms), 1))
	}
	w.law.Restart(at(w.now))
	w.law.Accepted(at(w.now+100*ms), w.law.Sent(at(w.now), 1))
	if delay := w.law.Stats().CurrentDelay; delay < 50*ms {
		t.Errorf("the delay is %v after a restart and a success that took 100ms, want more than 50ms", delay)
	}
}

func TestRestartAbandonsAProbe(t *testing.T) {
	w := settled(t)
	w.law.noise.suspicion = suspicion{wanted: true, probe: probe{left: 3}}
	w.law.Restart(at(w.now))
	if ticket := w.law.Sent(w.law.Next(at(w.now), 0), 1); ticket.mark.probe || w.law.Phase() != Start {
		t.Errorf("in %v, and the attempt after a restart is part of a probe: %t", w.law.Phase(), ticket.mark.probe)
	}
}

func TestClassicRestartsWithoutADelay(t *testing.T) {
	law := newClassic(t, func(c *Config) { c.MinDelay = 30 * ms })
	for range 5 {
		law.Rejected(at(0), law.Sent(at(0), 1), Hint{})
	}
	before := law.Stats()
	law.Restart(at(10 * ms))
	if got, want := law.Next(at(10*ms), 0), at(30*ms); !got.Equal(want) {
		t.Errorf("after a restart the next may go at %v, want %v: the floor after the last", got, want)
	}
	if got, want := law.Stats(), (Stats{CapacityRetries: 5, PeakDelay: before.PeakDelay}); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
}
