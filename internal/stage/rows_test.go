package stage

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/tail"
	"github.com/llm-stage/stage/internal/stagetest"
)

// failingSecrets refuses each first call, and fails those for secrets for good.
func failingSecrets() llmtest.Config {
	var seen sync.Map
	return llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		_, again := seen.LoadOrStore(c.Prompt, true)
		switch {
		case !again:
			return &llmtest.Step{Status: http.StatusTooManyRequests}
		case strings.Contains(c.Prompt, "secret"):
			return &llmtest.Step{Status: http.StatusBadRequest, Body: `{"error":{"message":"cannot answer 'a secret text', sorry"}}`}
		}
		return nil
	}}
}

// answerOf reads a page of the process as JSON.
func answerOf[T any](r *team, path string) (answer T) {
	r.lab.t.Helper()
	status, body := r.get(path)
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK {
		r.lab.t.Fatalf("%s: got %d %s", path, status, body)
	}
	return answer
}

// Two stages of one process read the same rows; only the second one may show what is in them.
func TestRowsThatFailedAndTheirStoriesAreOnThePageOfEachStage(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, failingSecrets(), map[string]string{"STAGE_POOL_SIZE": "1"})
		l.load("fine", "a secret text", "fine, too", "another secret text")
		r := l.startSeveral(
			map[string]string{"STAGE_NAME": "first"},
			map[string]string{"STAGE_NAME": "second", "STAGE_DASHBOARD_PAYLOADS": "true", "STAGE_TEMPLATE": "Answer {{ row.q }}"},
		)
		for _, name := range []string{"first", "second"} {
			l.awaitOf("RESULTS", "results."+name+".0.rows", 4)
		}
		synctest.Wait()
		for _, name := range []string{"first", "second"} {
			shown, at := name == "second", "/stages/"+name
			page := answerOf[tail.Failures](r, at+"/api/failures?reason=api_call_failed&limit=1")
			if len(page.Rows) != 1 || page.Rows[0].Row != 4 || page.Rows[0].CapacityRetries != 1 || (page.Rows[0].Error != "") != shown || page.Before == 0 {
				t.Errorf("%s: got %+v", name, page)
			}
			story := answerOf[tail.Story](r, at+"/api/row?sequence=2&partition=0")
			text := ""
			for _, s := range story.Steps {
				text += string(s.Kind) + " "
			}
			if text != "queued call call finished waited emitted " || story.Status != "error" || story.Reason != "api_call_failed" {
				t.Errorf("%s: got %s of %+v", name, text, story)
			}
			call := story.Steps[2].Call
			if quoted := "'a secret text'"; strings.Contains(call.Error, quoted) != shown || !strings.Contains(call.Error, "cannot answer '") {
				t.Errorf("%s: the error is %q", name, call.Error)
			}
			_, body := r.get(at + "/api/row?sequence=2")
			if strings.Contains(body, "secret text") != shown {
				t.Errorf("%s: got %s", name, body)
			}
		}
		if status, body := r.get("/stages/first/api/row?sequence=9"); status != http.StatusNotFound || !strings.Contains(body, "row 9 has no event of stage first") {
			t.Errorf("an unknown row: got %d %s", status, body)
		}
		if status, _ := r.get("/api/row?sequence=2"); status != http.StatusNotFound {
			t.Errorf("a row of no stage: got %d", status)
		}
	})
}

// A page that is asked while NATS is away says so at once, and what to do.
func TestRowsWithoutNATS(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, nil)
		l.load("one")
		r := l.startSeveral(map[string]string{"STAGE_NAME": "first"}, map[string]string{"STAGE_NAME": "second"})
		l.awaitOf("RESULTS", "results.first.0.rows", 1)
		stagetest.Must(t, l.js.DeleteStream(t.Context(), "AUDIT"))
		for _, path := range []string{"/api/row?sequence=1", "/api/failures"} {
			if status, body := r.get("/stages/first" + path); status != http.StatusServiceUnavailable || !strings.Contains(body, "stream AUDIT does not exist (STAGE_AUDIT_STREAM)") {
				t.Errorf("%s without a stream: got %d %s", path, status, body)
			}
		}
		l.srv.Server.Stop()
		synctest.Wait()
		for _, path := range []string{"/api/row?sequence=1", "/api/failures"} {
			if status, body := r.get("/stages/first" + path); status != http.StatusServiceUnavailable || !strings.Contains(body, "not connected to NATS") {
				t.Errorf("%s without a server: got %d %s", path, status, body)
			}
		}
	})
}
