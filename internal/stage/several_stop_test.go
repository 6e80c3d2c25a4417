package stage

import (
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
)

// stalling makes the first call of a model take longer than any stop may.
func stalling(model string) llmtest.Config {
	return llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if c.Model == model {
			return &llmtest.Step{Trouble: llmtest.Stall}
		}
		return nil
	}}
}

// The first signal ends the stages that are done at once, and waits for the one whose call is in flight; the second ends
// that one too. No row is lost.
func TestASecondSignalStopsAllStagesAtOnce(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, stalling("stalls"), nil)
		stages := parallel(nil, map[string]string{"STAGE_LLM_MODEL": "stalls"})
		r := l.startSeveral(stages...)
		l.awaitReady(r)
		l.load("one", "two")
		l.awaitOf("RESULTS", "results.first.0.rows", 2)
		r.soft()
		time.Sleep(30 * time.Second)
		status, body := r.get("/readyz")
		if want := `{"ready":false,"stages":[{"stage":"first","ready":false,"reason":"ended: stopped"},{"stage":"other","ready":false,"reason":"stopping: waiting for 2 calls in flight, at most 2m0s"}]}`; status != http.StatusServiceUnavailable || strings.TrimSpace(body) != want {
			t.Errorf("got %d %s, want %s", status, body, want)
		}
		began := time.Now()
		r.hard(&stopping.InterruptError{Signal: syscall.SIGTERM})
		err := <-r.done
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v to stop at once", took)
		}
		if signal, ok := errors.AsType[*stopping.InterruptError](err); !ok || signal.Signal != syscall.SIGTERM || !strings.HasPrefix(err.Error(), "stage other: ") {
			t.Errorf("got %v, want the signal", err)
		}
		if said := stagetest.Lines(l.logs.String(), "this stage has ended"); said != nil {
			t.Errorf("a stop that was asked for is logged as an error: %q", said)
		}
		l.serve("first.test", llmtest.Config{})
		again := l.startSeveral(stages...)
		l.awaitOf("RESULTS", "results.other.0.rows", 2)
		again.stop()
	})
}

// A stage whose results can't be stored is given up when the time for a stop has passed.
// The others have drained long before.
func TestTheStopTimeoutEndsTheOneStageThatIsStuck(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, map[string]string{"STAGE_LLM_TIMEOUT": "104s"}) // a quarter longer is 130 s
		r := l.startSeveral(parallel(nil, map[string]string{
			"STAGE_RESULT_STREAM": "SMALL", "STAGE_RESULT_SUBJECT": "small", "STAGE_RESULT_MAX_BYTES": "10KiB",
		})...)
		l.awaitReady(r)
		l.load(times("q", 50)...)
		l.awaitOf("RESULTS", "results.first.0.rows", 50)
		for range 1000 {
			if _, body := r.get("/readyz"); strings.Contains(body, "maximum bytes exceeded") {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		began := time.Now()
		r.soft()
		time.Sleep(10 * time.Second)
		if _, body := r.get("/readyz"); !strings.Contains(body, `"reason":"ended: stopped"`) || !strings.Contains(body, `"reason":"stopping: waiting for `) {
			t.Errorf("after ten seconds: %s", body)
		}
		err := <-r.done
		if took := time.Since(began); took < 130*time.Second || took > 145*time.Second {
			t.Errorf("it took %v to stop, want 130 s", took)
		}
		if want := "stage other: results were not stored within 2m10s of the stop: "; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if said := stagetest.Lines(l.logs.String(), "this stage has ended"); len(said) != 1 || !strings.Contains(said[0], "stage=other") {
			t.Errorf("log: %q", said)
		}
		if n := stagetest.Stored(t, l.js, "RESULTS", "results.first.0.rows"); n != 50 {
			t.Errorf("%d results of the other stage, want 50", n)
		}
	})
}

// A new key is of no use to a stage that has ended, so it does not claim to have read it.
func TestAStageThatHasEndedReadsNoKey(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, refusing("sk-revoked-key"), nil)
		keyFile := stagetest.File(t, "key", "sk-revoked-key")
		r := l.startSeveral(parallel(nil, map[string]string{"STAGE_LLM_API_KEY": "", "STAGE_LLM_API_KEY_FILE": keyFile, "STAGE_ON_FATAL": "exit"})...)
		l.awaitReady(r)
		l.load("one")
		l.awaitOf("RESULTS", "results.first.0.rows", 1)
		time.Sleep(10 * time.Second) // until the other has ended
		r.reload <- syscall.SIGHUP
		synctest.Wait()
		if said := stagetest.Lines(l.logs.String(), "key reloaded"); len(said) != 1 || !strings.Contains(said[0], "stage=first") {
			t.Errorf("log: %q, want that of the stage that works alone", said)
		}
		r.soft()
		if err := <-r.done; err == nil {
			t.Error("the error of the stage that ended is lost")
		}
	})
}
