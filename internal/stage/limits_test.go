package stage

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// took is the time between the first and the last call of the audit.
func (l *lab) took() time.Duration {
	l.t.Helper()
	calls := l.events(auditlog.KindCall)
	return calls[len(calls)-1].Time.Sub(calls[0].Time)
}

func times(text string, n int) []string { return slices.Repeat([]string{text}, n) }

func TestCallsAMinuteAreSpreadOverTheMinute(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: 100 * time.Millisecond}, map[string]string{"STAGE_LLM_RPM": "60"})
		l.load(times("q", 31)...)
		l.work(31, nil)
		if got := l.took(); got < 29*time.Second || got > 31*time.Second {
			t.Errorf("31 calls took %v at 60 a minute, want about 30s", got)
		}
	})
}

// TestTokensAMinuteAreEstimatedAndCorrected: the estimate of a call is its request and the most that it may answer,
// some 1100 tokens; it uses some 40 in fact, so that the limit lets far more through than by the estimate.
func TestTokensAMinuteAreEstimatedAndCorrected(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: 100 * time.Millisecond}, map[string]string{
			"STAGE_LLM_TPM": "3000", "STAGE_LLM_MAX_TOKENS": "1000", "STAGE_POOL_SIZE": "4",
		})
		l.load(times(strings.Repeat("word ", 8), 50)...)
		r := l.work(50, nil)
		used := r.Usage.All().Usage.TotalTokens
		want := time.Duration(float64(used) / 3000 * float64(time.Minute))
		if got := l.took(); got < want*8/10 || got > want+25*time.Second {
			t.Errorf("%d tokens took %v at 3000 a minute, want about %v", used, got, want)
		}
	})
}

func TestConcurrencyIsLimitedByProvider(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: time.Second}, fallback)
		l.serve("second.test", llmtest.Config{Latency: time.Second})
		l.load(times("q", 30)...)
		l.work(30, map[string]string{"STAGE_LLM_MAX_CONCURRENCY": "openai=3,anthropic=1", "STAGE_THROTTLE": "classic"})
		if got := l.llms["first.test"].Stats().MaxInFlight; got != 3 {
			t.Errorf("at most %d calls in flight, want 3", got)
		}
	})
}
