package stage

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// fallback are the variables of a stage with two fallbacks.
var fallback = map[string]string{
	"STAGE_FALLBACKS":              "anthropic:claude,openai:small",
	"STAGE_LLM_ANTHROPIC_BASE_URL": "http://second.test/v1", "STAGE_LLM_ANTHROPIC_API_KEY": "sk-second-secret",
	"STAGE_RETRY_MAX_ATTEMPTS": "2",
}

// byModel answers the calls of each model with its own status; 0: with a reply.
func byModel(statuses map[string]int) llmtest.Config {
	return llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if status := statuses[c.Model]; status != 0 {
			return &llmtest.Step{Status: status}
		}
		return nil
	}}
}

func TestFallbacksAreCalledInOrderWithTheirOwnKeys(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, byModel(map[string]int{"large": 500}), fallback)
		var keys []string
		l.serve("second.test", llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			keys = append(keys, c.Header.Get("X-Api-Key"))
			return &llmtest.Step{Status: http.StatusBadGateway}
		}})
		l.load("one")
		l.work(1, nil)
		want := []string{"openai:large", "openai:large", "anthropic:claude", "anthropic:claude", "openai:small"}
		if got := l.targets(); !slices.Equal(got, want) {
			t.Errorf("called %v, want %v", got, want)
		}
		if r := l.results()[0]; r.Error != nil || r.Model != "small" || r.Text != llmtest.Answer("one") {
			t.Errorf("result %+v", r)
		}
		if !slices.Equal(keys, []string{"sk-second-secret", "sk-second-secret"}) {
			t.Errorf("the second provider was given the keys %q", keys)
		}
		row := l.events(auditlog.KindRow)[0].Row
		if row.Attempts != 5 || len(row.Errors) != 4 || row.Errors[3].Provider != "anthropic" || row.Status != auditlog.RowSuccess {
			t.Errorf("row event %+v", row)
		}
	})
}

func TestExhaustedFallbacksGiveTheWholeChain(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, byModel(map[string]int{"large": http.StatusConflict, "small": http.StatusConflict}), fallback)
		l.serve("second.test", byModel(map[string]int{"claude": http.StatusUnauthorized}))
		l.load("one", "two")
		r := l.work(2, map[string]string{"STAGE_POOL_SIZE": "1"})
		for i, result := range l.results() {
			var chain []string
			for _, e := range result.Error.Errors {
				chain = append(chain, e.Provider+" "+e.Class)
			}
			want := []string{"openai transient", "openai transient", "anthropic fatal", "openai transient", "openai transient"}
			if i == 1 { // a provider with a bad key is skipped for a while
				want = slices.Delete(want, 2, 3)
			}
			if result.Error.Reason != "api_call_failed" || !slices.Equal(chain, want) {
				t.Errorf("result %d: %s after %v, want %v", i, result.Error.Reason, chain, want)
			}
		}
		if r.Status().Pool.PauseReason != "" {
			t.Error("the stage is paused for the key of a fallback")
		}
	})
}

func TestTheModelOfARowIsSentToTheFirstProviderAlone(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, byModel(map[string]int{"special": 500}), fallback)
		l.serve("second.test", llmtest.Config{})
		l.publish(&nats.Msg{Data: []byte(`{"q":"one"}`), Header: nats.Header{streams.HeaderModel: {"special"}}})
		l.work(1, nil)
		if got, want := l.targets(), []string{"openai:special", "openai:special", "anthropic:claude"}; !slices.Equal(got, want) {
			t.Errorf("called %v, want %v", got, want)
		}
	})
}

func TestFallbackAfterServesRowsWhileTheFirstHasNoCapacity(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var recovers time.Time
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: func(llmtest.Call) *llmtest.Step {
			if time.Now().Before(recovers) {
				return &llmtest.Step{Status: http.StatusTooManyRequests}
			}
			return nil
		}}, fallback)
		l.serve("second.test", llmtest.Config{Latency: time.Second})
		recovers = time.Now().Add(time.Minute)
		l.load(times("same question", 300)...)
		l.work(300, map[string]string{"STAGE_FALLBACK_AFTER": "20s"})
		answered := map[string]int{}
		for _, e := range l.events(auditlog.KindCall) {
			if e.Call.Status == auditlog.CallSuccess {
				answered[e.Call.Model]++
			}
		}
		if answered["claude"] < 200 || answered["large"] > 100 || answered["small"] > 0 {
			t.Errorf("answered %v, want most by the fallback: it had the 40 seconds of the outage", answered)
		}
		l.noneFailed()
	})
}

func TestErrorsOfAFallbackNameItsVariables(t *testing.T) {
	cfg, err := config.Source{Environ: map[string]string{
		"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_MODEL": "m", "STAGE_LLM_BASE_URL": "http://first.test/v1", "STAGE_TEMPLATE": "x",
		"STAGE_FALLBACKS": "gemini:m", "STAGE_LLM_GEMINI_API_KEY": "key", "STAGE_LLM_GEMINI_BASE_URL": "http://second.test/v1?x",
	}}.Load(t.Context(), config.NeedCalls)
	if err != nil {
		t.Fatal(err)
	}
	_, err = call.Open(cfg, nil, llmtest.Config{}.Start)
	if !config.IsInvalid(err) || !strings.Contains(err.Error(), "STAGE_LLM_GEMINI_BASE_URL: contains a query") {
		t.Errorf("got %v", err)
	}
}

// Some servers leave the model out of their replies.
func TestTheModelOfAReplyThatNamesNoneIsThatOfTheRequest(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		reply := llmtest.Step{Body: `{"choices":[{"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}]}`}
		l := newLab(t, llmtest.Config{Script: llmtest.Steps(reply)}, map[string]string{"STAGE_LLM_MODEL": "asked"})
		l.load("q")
		l.work(1, nil)
		if r := l.results()[0]; r.Text != "yes" || r.Model != "asked" {
			t.Errorf("got %+v", r)
		}
	})
}
