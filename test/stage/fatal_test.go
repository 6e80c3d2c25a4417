package stage_test

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// locked is an LLM that refuses every key until the account is fixed.
func locked(open *atomic.Bool, status int) llmtest.Config {
	return llmtest.Config{Latency: time.Second, Script: func(llmtest.Call) *llmtest.Step {
		if open.Load() {
			return nil
		}
		return &llmtest.Step{Status: status}
	}}
}

func TestABadKeyPausesTheStageUntilItIsFixed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		s := loaded(t, 20, locked(&open, 401))
		r := s.start(vars{"STAGE_POOL_SIZE": "1", "STAGE_FATAL_PROBE_INTERVAL": "30s"})
		time.Sleep(3 * time.Minute)

		if status, body := r.get("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "paused") || !strings.Contains(body, "401") {
			t.Errorf("/readyz: %d %s", status, body)
		}
		if status, _ := r.get("/healthz"); status != http.StatusOK {
			t.Errorf("/healthz: %d, a pause is no reason to restart the process", status)
		}
		if _, body := r.get("/metrics"); !strings.Contains(body, "\nllm_stage_paused{reason=") || !hasLine(body, "llm_stage_paused{", "} 1") {
			t.Errorf("/metrics does not report the pause:\n%s", linesOf(body, "llm_stage_paused"))
		}
		if got := s.stored(); got != 0 {
			t.Errorf("%d results during the pause", got)
		}
		seen := s.tap.seen()
		if len(seen) < 5 || len(seen) > 7 { // the first, and one probe in 30 s
			t.Errorf("%d calls in three minutes", len(seen))
		}
		for i := 1; i < len(seen); i++ {
			if gap := seen[i].At.Sub(seen[i-1].At); gap < 30*time.Second {
				t.Errorf("probe %d came after %v", i, gap)
			}
		}

		open.Store(true)
		s.await(20)
		if status, body := r.get("/readyz"); status != http.StatusOK {
			t.Errorf("/readyz after the pause: %d %s", status, body)
		}
		if _, body := r.get("/metrics"); hasLine(body, "llm_stage_paused{", "} 1") {
			t.Errorf("/metrics still reports the pause:\n%s", linesOf(body, "llm_stage_paused"))
		}
		r.stop()
		a := s.verify()
		if got, want := a.phases(), []string{"start", "claim", "pause", "resume", "end"}; !slices.Equal(got, want) {
			t.Errorf("run events %q, want %q", got, want)
		}
		for _, e := range a.runs {
			if e.E.Phase == "pause" && !strings.Contains(e.E.Reason, "401") {
				t.Errorf("the pause's reason is %q", e.E.Reason)
			}
		}
	})
}

func hasLine(text, prefix, suffix string) bool {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, prefix) && strings.HasSuffix(line, suffix) {
			return true
		}
	}
	return false
}

func linesOf(text, prefix string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, prefix) {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

func TestTheKeysFileIsReadAgainBeforeAProbeAndAtASignal(t *testing.T) {
	for _, how := range []string{"probe", "signal"} {
		t.Run(how, func(t *testing.T) {
			key := stagetest.File(t, "key", "sk-expired\n")
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := loaded(t, 2, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
					if c.Header.Get("Authorization") == "Bearer "+apiKey {
						return nil
					}
					return &llmtest.Step{Status: 401, Body: `{"error":{"message":"Incorrect API key provided: sk-expired","code":"invalid_api_key"}}`}
				}})
				r := s.start(vars{"STAGE_LLM_API_KEY": "", "STAGE_LLM_API_KEY_FILE": key})
				time.Sleep(10 * time.Second)
				stagetest.Must(t, os.WriteFile(key, []byte(apiKey+"\n"), 0o600))
				if how == "signal" {
					r.reload <- syscall.SIGHUP
				}
				s.await(2)
				r.stop()
				a := s.audit()
				s.verifySecret()
				for _, e := range a.calls {
					if strings.Contains(string(e.Body), "sk-expired") {
						t.Errorf("the old key is in the audit: %s", e.Body)
					}
				}
			})
		})
	}
}

func TestAFatalErrorEndsTheStageIfConfigured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		s := loaded(t, 20, locked(&open, 402))
		r := s.start(vars{"STAGE_ON_FATAL": "exit"})
		err := r.wait()
		if err == nil || !strings.Contains(err.Error(), "fatal provider error") || !strings.Contains(err.Error(), "402") {
			t.Errorf("it ended with: %v", err)
		}
		if s.stored() != 0 {
			t.Error("rows were answered without a call")
		}
		open.Store(true) // once the bill is paid, the same stage resumes with the first row
		again := s.start(vars{"STAGE_ON_FATAL": "exit"})
		s.await(20)
		again.stop()
		s.verify()
	})
}

func TestAFatalErrorFailsTheRowIfConfigured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		s := loaded(t, 3, locked(&open, 401))
		r := s.start(vars{"STAGE_ON_FATAL": "fail"})
		s.await(3)
		open.Store(true)
		s.publish(`{"n":4}`, nil)
		s.await(4)
		r.stop()
		s.verify()
		for i, res := range s.results(0) {
			if i == 3 {
				if res.Fault != nil {
					t.Errorf("row 4 failed: %s", res.Body)
				}
				continue
			}
			if f := res.Fault; f == nil || f.Reason != "api_call_failed" || len(f.Errors) != 1 || f.Errors[0].Class != "fatal" || f.Raw["status_code"] != 401.0 {
				t.Errorf("row %d: %s", res.Row, res.Body)
			}
		}
	})
}

func TestAnUnknownModelIsTheStagesMistakeOnlyBeforeAnySuccess(t *testing.T) {
	const body = `{"error":{"message":"no such model","code":"model_not_found"}}`
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		s := loaded(t, 3, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if !open.Load() || promptRow(c.Prompt) == 3 {
				return &llmtest.Step{Status: 404, Body: body}
			}
			return nil
		}})
		r := s.start(vars{"STAGE_POOL_SIZE": "1"})
		time.Sleep(time.Minute / 2)
		if status, _ := r.get("/readyz"); status != http.StatusServiceUnavailable || s.stored() != 0 {
			t.Errorf("an unknown model: /readyz %d, %d results", status, s.stored())
		}
		open.Store(true)
		s.await(3)
		r.stop()
		s.verify()
		if f := s.results(0)[2].Fault; f == nil || f.Errors[0].Class != "permanent" {
			t.Errorf("the row that met it after a success: %+v", f)
		}
	})
}
