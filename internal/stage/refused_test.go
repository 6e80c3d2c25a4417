package stage

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/logging"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
)

func TestAProviderThatRefusesEveryCallIsAWarningAMinuteLaterAndEachTenMinutes(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var r refusedRhythm
	var warned []time.Duration
	over := time.Duration(0)
	for d := time.Duration(0); d < time.Hour; d += 5 * time.Second {
		since := time.Time{}
		if d >= 10*time.Minute && d < 45*time.Minute { // it refuses all from the tenth minute on
			since = start.Add(10 * time.Minute)
		}
		warn, ended := r.due(start.Add(d), since)
		if warn {
			warned = append(warned, d)
		}
		over = max(over, ended)
	}
	if want := []time.Duration{11 * time.Minute, 21 * time.Minute, 31 * time.Minute, 41 * time.Minute}; !slices.Equal(warned, want) || over != 35*time.Minute {
		t.Errorf("warned at %v, over after %v; want %v, and 35m", warned, over, want)
	}
}

// The provider's words are where one looks first: in the log and in the status, without the key, and without the row.
func TestAProviderThatRefusesEveryCallIsQuoted(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var accepts atomic.Bool
		l := newLab(t, llmtest.Config{Script: func(llmtest.Call) *llmtest.Step {
			if accepts.Load() {
				return &llmtest.Step{}
			}
			return &llmtest.Step{Status: 429, Body: `{"error":{"code":"rate_limit_exceeded","message":"org-1 has used its tokens; sk-first-secret, the row's secret text, THE ROW'S SECRET TEXT"}}`}
		}}, map[string]string{"STAGE_TEMPLATE": "{{ row.q }}: {{ row.q | upper }}"})
		l.log = logging.New(&l.logs, "info", "json")
		l.load("the row's secret text")
		r := l.start(nil, Options{})
		time.Sleep(12 * time.Minute)
		s := r.Status()
		const words = "openai: 429 rate_limit_exceeded: org-1 has used its tokens; [redacted], […],[…]"
		if f := s.LastRefusal; s.State != status.StateStarved || f == nil || f.Error != words || f.StatusCode != 429 || f.Provider != "openai" || s.Time.Sub(f.Time) > time.Minute || s.Do == "" {
			t.Errorf("%s, to do %q, last refusal %+v", s.State, s.Do, s.LastRefusal)
		}
		var lines []string
		for _, line := range stagetest.JSONLines[map[string]any](t, l.logs.String()) {
			if line["level"] == "WARN" {
				lines = append(lines, fmt.Sprint(line["msg"], line["error"], line["status_code"]))
			}
		}
		if len(lines) != 2 || !strings.HasPrefix(lines[0], "the provider refuses every call") || !strings.Contains(lines[0], words) {
			t.Errorf("warnings:\n%s", strings.Join(lines, "\n"))
		}
		if strings.Contains(l.logs.String(), `"msg":"working"`) {
			t.Error("the log says that the stage works")
		}
		accepts.Store(true)
		l.await(1)
		time.Sleep(10 * time.Second)
		if s := r.Status(); s.State != status.StateIdle || s.LastRefusal == nil || !strings.Contains(l.logs.String(), `"lasted_ms":`) {
			t.Errorf("after a success: %s, last refusal %v", s.State, s.LastRefusal)
		}
	})
}
