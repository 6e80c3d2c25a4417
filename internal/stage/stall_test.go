package stage

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// Whatever keeps a partition from its rows, it is reported within a minute, and the watch has no part in what is stuck:
// here the goroutine that renders rows.
func TestAPartitionThatStandsStillIsNeverReady(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: time.Second}, nil)
		stuck := make(chan struct{})
		l.prepare = func(s *Stage) {
			s.executor.Failed = func(uint64, string) { <-stuck }
		}
		l.load("a", "b")
		r := l.start(nil, Options{})
		l.await(2)
		time.Sleep(3 * time.Minute) // without rows nothing stands still
		if ok, why := r.ready(); !ok {
			t.Errorf("an idle stage is not ready: %s", why)
		}
		l.publish(&nats.Msg{Data: []byte("no row")})
		l.load("c", "d")
		time.Sleep(time.Minute)
		ok, why := r.ready()
		s := r.Status()
		for _, want := range []string{"partition 0: no progress for ", "this replica has taken 3, of which 0 are answered, and has 0 calls in flight", "every row up to 2 has one"} {
			if ok || s.State != status.StateHeld || !strings.Contains(why, want) || !strings.Contains(s.Why, want) || s.Do == "" {
				t.Errorf("ready: %v, %s; state %s: %s, to do %q; want %q in it", ok, why, s.State, s.Why, s.Do, want)
			}
		}
		time.Sleep(15 * time.Minute)
		if n := strings.Count(l.logs.String(), "no progress although rows wait"); n != 2 {
			t.Errorf("%d warnings in 16 minutes, want one and one after ten minutes", n)
		}
		close(stuck)
		l.await(5)
		time.Sleep(time.Minute)
		if ok, why := r.ready(); !ok || !strings.Contains(l.logs.String(), "progress again") {
			t.Errorf("after it goes on: ready: %v, %s", ok, why)
		}
	})
}

// Rows that wait for a reason are no stall, however long that takes.
func TestRowsThatWaitForAReasonAreNoStall(t *testing.T) {
	cases := map[string]struct {
		llm  llmtest.Config
		vars map[string]string
	}{
		"no capacity":          {llmtest.Config{Errors: map[int]float64{429: 1}}, nil},
		"asked to wait":        {llmtest.Config{Errors: map[int]float64{429: 1}, RetryAfter: 5 * time.Minute}, nil},
		"an outage":            {llmtest.Config{Errors: map[int]float64{500: 1}}, nil},
		"a bad key":            {llmtest.Config{Errors: map[int]float64{401: 1}}, nil},
		"slow calls":           {llmtest.Config{Latency: 9 * time.Minute}, map[string]string{"STAGE_LLM_TIMEOUT": "10m"}},
		"calls that time out":  {llmtest.Config{Latency: time.Hour}, map[string]string{"STAGE_LLM_TIMEOUT": "4m"}},
		"few calls per minute": {llmtest.Config{}, map[string]string{"STAGE_LLM_RPM": "1"}},
		"an operator":          {llmtest.Config{}, nil},
		"a paused partition":   {llmtest.Config{}, map[string]string{"STAGE_CONTROL": "true"}},
		"equal rows":           {llmtest.Config{Latency: 9 * time.Minute}, map[string]string{"STAGE_DEDUPE": "inflight", "STAGE_LLM_TIMEOUT": "10m"}},
		"a small window":       {llmtest.Config{Latency: 3 * time.Minute}, map[string]string{"STAGE_WINDOW": "2", "STAGE_LLM_TIMEOUT": "10m"}},
	}
	names := slices.Sorted(maps.Keys(cases))
	for i := 0; i < len(names); i += stagetest.Stride(4) {
		name, tt := names[i], cases[names[i]]
		t.Run(name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, tt.llm, tt.vars)
				l.load("a", "a", "b", "c", "d", "e")
				r := l.start(nil, Options{})
				switch name {
				case "an operator":
					r.executor.Pool.Halt(errors.New("paused by alice"))
				case "a paused partition":
					l.await(6) // it owns the partition
					if outcome, text := r.steering.carryOut(t.Context(), &control.Order{Verb: control.Pause, Partition: new(0)}); outcome != control.Done {
						t.Fatalf("%s: %s", outcome, text)
					}
					l.load("f", "g")
				}
				for range 72 {
					time.Sleep(10 * time.Second)
					if why, _ := r.watchdog.of(0); why != "" {
						t.Fatalf("reported: %s", why)
					}
				}
			})
		})
	}
}

// What is known to block a partition is reported, although the watch has noticed before that nothing moves.
func TestAKnownProblemIsNotOverwrittenByAStall(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, nil)
		l.load("a")
		r := l.start(nil, Options{})
		l.await(1)
		r.watchdog.set(0, "no progress for 25s although rows wait", false)
		if s := r.Status(); !strings.Contains(s.Partitions[0].Problem, "no progress") {
			t.Errorf("nothing else is known: %q", s.Partitions[0].Problem)
		}
		stagetest.Fill(t, l.js, "RESULTS", true)
		for range 30 {
			l.load("b")
		}
		time.Sleep(time.Second)
		r.watchdog.set(0, "no progress for 25s although rows wait", false)
		if s := r.Status(); !strings.Contains(s.Partitions[0].Problem, "maximum messages exceeded") || strings.Contains(s.Why, "no progress") {
			t.Errorf("the results are full: %q, held because of %q", s.Partitions[0].Problem, s.Why)
		}
	})
}

// A partition that waits for its first row has no owner, and needs none.
func TestAPartitionThatWaitsForItsFirstRowIsIdle(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, nil)
		r := l.start(nil, Options{})
		time.Sleep(5 * time.Second)
		if s := r.Status(); s.State != status.StateIdle || !s.Partitions[0].Vacant || s.Do != "" || s.Why != "" {
			t.Errorf("%s %q, to do %q, vacant %v", s.State, s.Why, s.Do, s.Partitions[0].Vacant)
		}
		second := l.start(nil, Options{})
		l.load("a")
		l.await(1)
		time.Sleep(time.Minute)
		states := map[status.State]int{r.Status().State: 1}
		states[second.Status().State]++
		if states[status.StateIdle] != 1 || states[status.StateStandby] != 1 {
			t.Errorf("with an owner: %v, want one idle, one standby", states)
		}
	})
}
