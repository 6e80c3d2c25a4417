package stage

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
)

// sick is an LLM of 100 ms a call that answers all calls with one step while that is set.
type sick struct{ step atomic.Pointer[llmtest.Step] }

func (s *sick) config() llmtest.Config {
	return llmtest.Config{Latency: 100 * time.Millisecond, Script: func(llmtest.Call) *llmtest.Step { return s.step.Load() }}
}

// badGateway answers at once, like a proxy whose server is down.
var badGateway = &llmtest.Step{Status: http.StatusBadGateway}

// runEvents returns the reasons of the run events of one phase.
func (l *lab) runEvents(phase auditlog.Phase) (reasons []string) {
	l.t.Helper()
	for _, e := range l.events(auditlog.KindRun) {
		if e.Run.Phase == phase {
			reasons = append(reasons, e.Run.Reason)
		}
	}
	return reasons
}

// matches checks that there are as many texts as patterns, and that each text matches its own.
func matches(t *testing.T, what string, texts []string, patterns ...string) {
	t.Helper()
	ok := len(texts) == len(patterns)
	for i := 0; ok && i < len(texts); i++ {
		ok = regexp.MustCompile("^" + patterns[i] + "$").MatchString(texts[i])
	}
	if !ok {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(texts, "\n"), strings.Join(patterns, "\n"))
	}
}

func TestAnOutageIsReportedWhileItLastsAndWhatItCostWhenItIsOver(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var server sick
		l := newLab(t, server.config(), nil)
		l.load(times("q", 200)...)
		r := l.start(nil, Options{ExitOnFatal: true}) // an outage ends no run
		time.Sleep(time.Second)
		server.step.Store(badGateway)
		began := time.Now().UTC().Format(time.TimeOnly)
		time.Sleep(3 * time.Minute)

		ready, why := r.ready()
		pattern := "outage since " + began + " UTC, last error: openai: 502 server_error: .*; next probe (in .*|is due); no row is lost"
		matches(t, fmt.Sprintf("ready %v", ready), []string{why}, "paused: "+pattern)
		page := r.page()
		if !strings.Contains(page, `llm_stage_paused{reason="outage"} 1`) {
			t.Errorf("metrics: %q", stagetest.Lines(page, "llm_stage_paused"))
		}
		if s := r.Status(); s.State != status.StatePaused || s.Pool.PauseReason != hold.Outage || s.Pool.Probes == 0 || s.Rows.Failed != 0 {
			t.Errorf("status: %s, %s, %d probes, %d rows failed", s.State, s.Pool.PauseReason, s.Pool.Probes, s.Rows.Failed)
		}

		server.step.Store(nil)
		l.await(200)
		r.stop()
		l.noneFailed()
		lost := 0
		for _, e := range l.events(auditlog.KindCall) {
			if e.Call.Status != auditlog.CallSuccess {
				lost++
			}
		}
		if lost < 10 || lost > 200 {
			t.Errorf("%d calls failed in an outage of 3 minutes", lost)
		}
		matches(t, "pause", l.runEvents(auditlog.PhasePause), pattern)
		matches(t, "resume", l.runEvents(auditlog.PhaseResume),
			fmt.Sprintf(`outage is over after 3m[0-9.]+s, [0-9]+ probes; %d calls were sent without a usable reply \(may have been billed\)`, lost))
		if n := len(stagetest.Lines(l.logs.String(), "still paused, rows are held")); n != 3 && n != 2 {
			t.Errorf("%d reminders in 3 minutes", n)
		}
	})
}

func TestAnOutageFailsRowsAfterItsHoldAlone(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var server sick
		l := newLab(t, server.config(), map[string]string{"STAGE_OUTAGE_HOLD": "2m"})
		server.step.Store(badGateway)
		l.load(times("q", 20)...) // as many as the pool's queue holds: a row is held from the moment it is queued
		r := l.start(nil, Options{})
		time.Sleep(time.Minute)
		server.step.Store(nil)
		l.await(20)
		server.step.Store(badGateway)
		began := time.Now()
		l.load(times("q", 20)...)
		l.await(40)
		if took := time.Since(began); took < 2*time.Minute || took > 3*time.Minute {
			t.Errorf("rows failed after %v, want 2 to 3 minutes", took)
		}
		r.stop()
		for i, result := range l.results() {
			held := result.Error != nil && result.Error.Reason == "api_call_failed" && strings.Contains(result.Error.Text, "held by an outage for 2m0s: openai: 502")
			if held != (i >= 20) || result.Error != nil && !held {
				t.Errorf("row %d: %+v", i+1, result.Error)
			}
		}
	})
}

func TestWrongSettingsShowTheProvidersWordsAndTheRequest(t *testing.T) {
	for _, exit := range []bool{false, true} {
		stagetest.Virtual(t, func(t *testing.T) {
			var server sick
			server.step.Store(&llmtest.Step{Status: 400, Body: `{"error":{"message":"Unknown parameter: 'top_q'.","type":"invalid_request_error","code":"unknown_parameter"}}`})
			l := newLab(t, server.config(), map[string]string{"STAGE_LLM_EXTRA_BODY": `{"top_q":1}`})
			l.load(times("q", 20)...)
			r := l.start(nil, Options{ExitOnFatal: exit})
			text := `openai: 400 unknown_parameter: Unknown parameter: 'top_q'.*; the request was POST http://first.test/v1/chat/completions \{model: "large", .*top_q: 1\}`
			if exit {
				err := <-r.done
				matches(t, "end", []string{err.Error()}, "wrong settings: the provider refuses every row: "+text)
				if !isFatal(err) {
					t.Errorf("got %T, want a fatal error", err)
				}
			} else {
				time.Sleep(90 * time.Second)
				_, why := r.ready()
				matches(t, "not ready", []string{why}, "paused: settings since 00:00:00 UTC, last error: "+text+"; next probe in .*; no row is lost")
				server.step.Store(nil)
				l.await(20)
				r.stop()
				l.noneFailed()
			}
			matches(t, "pause", l.runEvents(auditlog.PhasePause), "settings since 00:00:00 UTC, last error: "+text+"; next probe in .*; no row is lost")
		})
	}
}

func TestRowsThatGoPastAnOutageAreReported(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var server sick
		l := newLab(t, server.config(), fallback)
		l.serve("second.test", llmtest.Config{Latency: 100 * time.Millisecond})
		server.step.Store(badGateway)
		l.load(times("q", 40)...)
		r := l.start(map[string]string{"STAGE_FALLBACKS": "anthropic:claude", "STAGE_FALLBACK_AFTER": "30s"}, Options{})
		l.await(40)
		if ready, why := r.ready(); !ready {
			t.Errorf("not ready while the fallback answers: %s", why)
		}
		r.stop()
		matches(t, "pause", l.runEvents(auditlog.PhasePause), "outage since .*; no row is lost")
		matches(t, "resume", l.runEvents(auditlog.PhaseResume), "openai is down; rows go to anthropic/claude until a probe succeeds")
	})
}
