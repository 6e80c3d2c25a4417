package stage_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

func TestADrainFinishesTheCallsInFlightAndNoOthers(t *testing.T) {
	for _, throttle := range throttles() {
		t.Run(throttle, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := loaded(t, 100, llmtest.Config{Latency: 2 * time.Second, LatencySigma: .5, Rate: 8})
				first := s.start(vars{"STAGE_THROTTLE": throttle})
				s.await(30)
				before := len(s.tap.seen())
				took := first.stop()
				if after := len(s.tap.seen()); after > before {
					t.Errorf("%d calls were made after the stop", after-before)
				}
				if took > 20*time.Second {
					t.Errorf("it took %v", took)
				}
				for _, x := range s.tap.seen() {
					if x.Status == 0 {
						t.Error("a call was cut off")
					}
				}
				s.verifyResults(s.stored())

				again := s.start(vars{"STAGE_THROTTLE": throttle})
				s.await(100)
				again.stop()
				a := s.verify()
				for _, e := range a.calls {
					if e.E.Status == auditlog.CallUnknown {
						t.Errorf("a call of row %d is of unknown outcome", e.E.Sequence)
					}
				}
			})
		})
	}
}

// A row that waits for capacity is handed back, and what is complete behind it stays in the journal.
func TestAStopLeavesWhatIsCompleteBehindAnOpenRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 10, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if promptRow(c.Prompt) == 4 && c.N < 30 {
				return &llmtest.Step{Status: 429}
			}
			return &llmtest.Step{Delay: time.Second}
		}})
		r := s.start(vars{"STAGE_THROTTLE": "classic", "STAGE_MAX_DISPATCH_DELAY_MS": "2000"})
		s.await(3)
		time.Sleep(10 * time.Second)
		if took := r.stop(); took > 2*time.Second {
			t.Errorf("with no call in flight it took %v to stop", took)
		}
		s.verifyResults(3)
		again := s.start(nil)
		s.await(10)
		again.stop()
		s.verify()
	})
}

func TestASecondSignalStopsAtOnceAndLosesNoRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 3, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if c.N < 3 {
				return &llmtest.Step{Delay: time.Hour}
			}
			return nil
		}})
		r := s.start(vars{"STAGE_LLM_TIMEOUT": "100m"})
		time.Sleep(time.Minute)
		r.soft()
		r.hard() // the second signal
		began := time.Now()
		err := r.wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("a hard stop took %v", took)
		}
		if err == nil {
			t.Error("a hard stop with calls in flight is not a clean end")
		}
		if s.stored() != 0 {
			t.Errorf("%d results", s.stored())
		}
		again := s.start(nil)
		s.await(3)
		again.stop()
		a := s.verify()
		unknown := 0
		for _, e := range a.calls {
			if e.E.Status == auditlog.CallUnknown {
				unknown++
			}
		}
		if unknown != 3 {
			t.Errorf("%d calls of unknown outcome, want the 3 that were cut off", unknown)
		}
	})
}

func TestADrainRetriesNoCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 3, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if c.N < 3 {
				return &llmtest.Step{Trouble: llmtest.Stall}
			}
			return nil
		}})
		r := s.start(vars{"STAGE_LLM_TIMEOUT": "50s", "STAGE_RETRY_BASE_DELAY": "10ms"})
		time.Sleep(time.Second)
		began := time.Now()
		r.soft()
		err := r.wait()
		// The attempts time out and are not retried, so the rows are handed back: a clean end.
		if took := time.Since(began); took > 60*time.Second || err != nil {
			t.Errorf("it ended after %v with: %v", took, err)
		}
		again := s.start(nil)
		s.await(3)
		again.stop()
		s.verify()
	})
}

// A drain that can't end because the audit stream is full reports that, and does not blame calls.
func TestNoResultIsStoredWhoseAuditCannotBe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 5, llmtest.Config{Latency: time.Second})
		full := jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"audit.>"}, MaxMsgs: 4, Discard: jetstream.DiscardNew}
		s.configured(full)
		r := s.start(vars{"STAGE_LLM_TIMEOUT": "40s"}) // a quarter longer is 50 s
		time.Sleep(time.Minute)
		if got := s.stored(); got > 1 {
			t.Errorf("%d results with room for 4 events", got)
		}
		if status, body := r.get("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "audit: refused") ||
			!strings.Contains(body, "maximum messages exceeded") {
			t.Errorf("/readyz: %d %s", status, body)
		}
		if _, text := r.get("/metrics"); !hasLine(text, `llm_stage_paused{reason="nats"}`, " 1") {
			t.Errorf("metrics do not report that the stage is blocked: %s", linesOf(text, "llm_stage_paused"))
		}
		r.soft()
		began := time.Now()
		err := r.wait()
		if took := time.Since(began).Round(time.Second); took < 50*time.Second || took > 55*time.Second {
			t.Errorf("it ended after %v", took)
		}
		want := "results were not stored within 50s of the stop: audit: refused by the server: maximum messages exceeded"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it ended with %v, want %s", err, want)
		}
		if log := s.logs.String(); !strings.Contains(log, "stopping, waiting for results that can't be stored") {
			t.Error("the log does not say what the stop waits for")
		}
		full.MaxMsgs, full.Storage = -1, jetstream.MemoryStorage
		stagetest.Value(s.js.UpdateStream(t.Context(), full))(t)
		s.crashed = true // the events that there was no room for are lost with the process
		again := s.start(nil)
		s.await(5)
		again.stop()
		s.verify()
	})
}

func TestAStandbyTakesOver(t *testing.T) {
	for _, how := range []string{"drain", "kill"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := loaded(t, 60, llmtest.Config{Latency: time.Second, LatencySigma: .5})
				replicas := []*replica{s.start(nil), s.start(nil)}
				s.await(20)
				owner := slices.IndexFunc(replicas, owns)
				if owner < 0 || owns(replicas[1-owner]) {
					t.Fatalf("the owner is %d; there must be one", owner)
				}
				if status, body := replicas[1-owner].get("/readyz"); status != 200 {
					t.Errorf("/readyz of the standby: %d %s", status, body)
				}
				most := 3 * time.Second // the pin of a dead owner expires
				if how == "kill" {
					replicas[owner].kill()
				} else {
					replicas[owner].stop()
					most = 500 * time.Millisecond // handed over
				}
				began := time.Now()
				s.until("take-over", func() bool { return owns(replicas[1-owner]) })
				if took := time.Since(began); took > most {
					t.Errorf("the standby took over after %v", took)
				}
				s.await(60)
				replicas[1-owner].stop()
				s.verify()
				if seen := len(s.tap.seen()); how == "drain" && seen != 60 {
					t.Errorf("%d calls for 60 rows: the drain threw replies away", seen)
				}
			})
		})
	}
}

// owns reports whether the replica serves the partition.
func owns(r *replica) bool {
	_, body := r.get("/metrics")
	return hasLine(body, `llm_stage_active{partition="0"}`, " 1")
}
