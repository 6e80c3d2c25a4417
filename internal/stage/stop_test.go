package stage

import (
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
)

// slowFirst takes a minute for the first call and a second for each other.
func slowFirst() llmtest.Config {
	return llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if c.N == 0 {
			return &llmtest.Step{Delay: time.Minute}
		}
		return &llmtest.Step{Delay: time.Second}
	}}
}

func TestAStopSaysWhatItWaitsForAndHowLong(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, slowFirst(), nil)
		l.load(times("q", 20)...)
		r := l.start(nil, Options{})
		time.Sleep(9 * time.Second) // one more, and the state would be that 19 answered rows wait for the first
		if s := r.Status(); s.Stop != nil || s.State != status.StateWorking {
			t.Errorf("before the stop: %s, %+v", s.State, s.Stop)
		}
		r.signal(&stopping.InterruptError{Signal: syscall.SIGTERM})
		synctest.Wait()
		const line = `msg="stopping, waiting for calls in flight and their results; a second signal stops at once"`
		const attrs = "calls_in_flight=1 results_to_store=19 at_most=2m30s signal=terminated"
		if said := stagetest.Lines(l.logs.String(), "stopping"); len(said) != 1 || !strings.Contains(said[0], "level=INFO "+line) || !strings.HasSuffix(said[0], attrs) {
			t.Errorf("log: %q", said)
		}
		time.Sleep(20 * time.Second)
		const waits = "waiting for 1 call in flight and 19 results to store, at most 2m10s"
		ready, why := r.ready()
		if ready || why != "stopping: "+waits {
			t.Errorf("ready %v: %s", ready, why)
		}
		if s := r.Status(); s.State != status.StateStopping || s.Why != waits || s.Since == nil || s.Time.Sub(*s.Since) != 20*time.Second || s.Stop.By.Sub(s.Stop.Since) != 150*time.Second {
			t.Errorf("status: %s since %v: %s, %+v", s.State, s.Since, s.Why, s.Stop)
		}
		if err := <-r.done; err != nil {
			t.Errorf("run: %v", err)
		}
		if n := len(l.results()); n != 20 {
			t.Errorf("%d results, want 20", n)
		}
		l.work(20, nil) // a run that is done
		if said := stagetest.Lines(l.logs.String(), "stopping"); len(said) != 1 {
			t.Errorf("log: %q", said)
		}
	})
}

func TestAPausedStageThatStopsIsStopping(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if c.N == 0 {
				return &llmtest.Step{Delay: time.Minute}
			}
			return &llmtest.Step{Status: 401}
		}}, nil)
		l.load(times("q", 20)...)
		r := l.start(nil, Options{})
		time.Sleep(10 * time.Second)
		r.signal(&stopping.InterruptError{Signal: syscall.SIGTERM})
		time.Sleep(time.Second)
		if s := r.Status(); s.State != status.StateStopping || !strings.HasPrefix(s.Why, "waiting for 1 call in flight") || s.Pool.Paused == "" {
			t.Errorf("status: %s: %s, paused %q", s.State, s.Why, s.Pool.Paused)
		}
		if err := <-r.done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}
