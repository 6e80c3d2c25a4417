package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// team is a process with several stages.
type team struct {
	lab    *lab
	soft   context.CancelFunc
	hard   context.CancelCauseFunc
	done   chan error
	pages  *llmtest.PipeListener
	reload chan os.Signal
}

// startSeveral runs the stages whose settings are the lab's with these changes.
func (l *lab) startSeveral(changes ...map[string]string) *team {
	l.t.Helper()
	var cfgs []*config.Config
	for _, c := range changes {
		cfgs = append(cfgs, l.config(c))
	}
	r := &team{lab: l, done: make(chan error, 1), pages: llmtest.NewPipeListener(), reload: make(chan os.Signal, 1)}
	soft, stop := context.WithCancel(l.t.Context())
	hard, kill := context.WithCancelCause(context.WithoutCancel(l.t.Context()))
	r.soft, r.hard = stop, kill
	go func() {
		r.done <- RunSeveral(soft, hard, cfgs, Deps{
			MockLLM: llmtest.Config{}.Start,
			NATS:    func() (*nats.Conn, error) { return l.srv.Server.Connect() }, DialLLM: l.dial, Listener: r.pages, Reloads: r.reload,
			Logger: slog.New(slog.NewTextHandler(&l.logs, nil)),
		})
		close(r.done)
	}()
	l.t.Cleanup(func() {
		kill(nil)
		stop()
		for range r.done { // until it has ended
		}
	})
	return r
}

// stop drains the stages and waits for their end.
func (r *team) stop() {
	r.lab.t.Helper()
	r.soft()
	if err := <-r.done; err != nil {
		r.lab.t.Error(err)
	}
}

// get reads a page of the process.
func (r *team) get(path string) (status int, body string) {
	r.lab.t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: r.pages.DialContext, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(r.lab.t.Context(), http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		r.lab.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		r.lab.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	text := stagetest.Value(io.ReadAll(resp.Body))(r.lab.t)
	return resp.StatusCode, string(text)
}

// awaitOf waits until a stage has n results.
func (l *lab) awaitOf(stream, subject string, n int) {
	l.t.Helper()
	for range 10_000 {
		if stagetest.Stored(l.t, l.js, stream, subject) >= n {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	l.t.Fatalf("never %d results on %s; log:\n%s", n, subject, l.logs.String())
}

// refusing makes calls with a key fail for good.
func refusing(key string) llmtest.Config {
	return llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if c.Header.Get("Authorization") == "Bearer "+key {
			return &llmtest.Step{Status: http.StatusUnauthorized}
		}
		return nil
	}}
}

// behind is the second stage of a chain.
func behind(first string) map[string]string {
	return map[string]string{
		"STAGE_NAME": "second", "STAGE_INPUT_STREAM": "RESULTS", "STAGE_INPUT_SUBJECT": "results." + first + ".0.rows",
		"STAGE_TEMPLATE": "{{ row.llm_response }}", "STAGE_RESULT_STREAM": "LAST", "STAGE_RESULT_SUBJECT": "last", "STAGE_RESPONSE_FIELD": "again",
	}
}

// The second stage of a chain may start first, on a server without any stream.
func TestStagesOfAChainStartInAnyOrder(t *testing.T) {
	first, second := map[string]string{"STAGE_NAME": "first"}, behind("first")
	for name, stages := range map[string][]map[string]string{"first": {first, second}, "last": {second, first}} {
		t.Run(name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, llmtest.Config{}, nil)
				r := l.startSeveral(stages...)
				synctest.Wait()
				l.awaitReady(r)
				l.load("one", "two", "three")
				l.awaitOf("LAST", "last.second.0.rows", 3)
				r.stop()
				for _, m := range stagetest.Read(t, l.js, "LAST", "last.second.0.rows") {
					var row map[string]any
					if err := json.Unmarshal(m.Body, &row); err != nil || row["llm_response"] == "" || row["again"] == "" || row["again"] == nil {
						t.Errorf("%s: %v", m.Body, err)
					}
				}
			})
		})
	}
}

// The second stage alone makes the stream that the first one needs.
func TestAStageMayStartBeforeTheOneThatItReadsFrom(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, nil)
		second := l.start(behind("stage"), Options{})
		time.Sleep(5 * time.Second)
		l.load("one")
		l.work(1, nil)
		l.awaitOf("LAST", "last.second.0.rows", 1)
		second.stop()
	})
}

// awaitReady waits until the process is ready.
func (l *lab) awaitReady(r *team) {
	l.t.Helper()
	for range 1000 {
		if status, _ := r.get("/readyz"); status == http.StatusOK {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	_, body := r.get("/readyz")
	l.t.Fatalf("never ready: %s; log:\n%s", body, l.logs.String())
}

// parallel are two stages that read the same rows.
func parallel(changes ...map[string]string) []map[string]string {
	stages := []map[string]string{{"STAGE_NAME": "first"}, {"STAGE_NAME": "other"}}
	for i := range changes {
		maps.Copy(stages[i], changes[i])
	}
	return stages
}

func TestABadKeyPausesOneStageAlone(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, refusing("sk-revoked-key"), nil)
		keyFile := stagetest.File(t, "key", "sk-revoked-key")
		r := l.startSeveral(parallel(nil, map[string]string{"STAGE_LLM_API_KEY": "", "STAGE_LLM_API_KEY_FILE": keyFile})...)
		l.awaitReady(r)
		l.load("one", "two")
		l.awaitOf("RESULTS", "results.first.0.rows", 2)
		time.Sleep(time.Second)
		status, body := r.get("/readyz")
		if want := `{"ready":false,"stages":[{"stage":"first","ready":true},{"stage":"other","ready":false,"reason":"paused: `; status != http.StatusServiceUnavailable || !strings.HasPrefix(body, want) {
			t.Errorf("got %d %s", status, body)
		}
		_, index := r.get("/")
		if !strings.Contains(index, `<td><a href="stages/first/">first</a></td><td>idle</td><td></td>`) || !strings.Contains(index, `<td><a href="stages/other/">other</a></td><td>paused</td><td>`) {
			t.Errorf("the list of stages is\n%s", index)
		}
		stagetest.Must(t, os.WriteFile(keyFile, []byte("sk-renewed-key"), 0o600))
		r.reload <- os.Interrupt // any signal
		l.awaitOf("RESULTS", "results.other.0.rows", 2)
		r.stop()
	})
}

func TestAStageThatFailsEndsAlone(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, refusing("sk-revoked-key"), nil)
		r := l.startSeveral(parallel(nil, map[string]string{"STAGE_LLM_API_KEY": "sk-revoked-key", "STAGE_ON_FATAL": "exit"})...)
		l.awaitReady(r)
		l.load("one", "two")
		l.awaitOf("RESULTS", "results.first.0.rows", 2)
		time.Sleep(10 * time.Second)
		status, body := r.get("/readyz")
		if want := `{"stage":"other","ready":false,"reason":"ended: fatal provider error: `; status != http.StatusServiceUnavailable || !strings.Contains(body, want) {
			t.Errorf("got %d %s", status, body)
		}
		_, report := r.get("/stages/other/api/status")
		if !strings.Contains(report, `"state":"ended","why":"fatal provider error: `) {
			t.Errorf("status %s", report)
		}
		l.load("three")
		l.awaitOf("RESULTS", "results.first.0.rows", 3)
		r.soft()
		err := <-r.done
		if _, fatal := errors.AsType[*FatalError](err); !fatal || !strings.HasPrefix(err.Error(), "stage other: ") {
			t.Errorf("got %v, want the error of the stage that failed", err)
		}
		if n := stagetest.Stored(t, l.js, "RESULTS", "results.other.0.rows"); n != 0 {
			t.Errorf("%d results of the stage without a key", n)
		}
	})
}

func TestTheProcessEndsWithTheLastStage(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, refusing("sk-first-secret"), map[string]string{"STAGE_ON_FATAL": "exit"})
		l.load("one") // creates the stream
		r := l.startSeveral(parallel()...)
		if err := <-r.done; err == nil || !strings.HasPrefix(err.Error(), "stage ") {
			t.Errorf("got %v", err)
		}
	})
}

// A stage that can't be set up does not keep the others from working.
func TestAStageWithoutItsStreamEndsAlone(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, nil)
		l.load("one")
		r := l.startSeveral(parallel(nil, map[string]string{"STAGE_INPUT_STREAM": "NONE", "STAGE_INPUT_SUBJECT": "none.>", "STAGE_CREATE_STREAMS": "false"})...)
		l.awaitOf("RESULTS", "results.first.0.rows", 1)
		if _, body := r.get("/readyz"); !strings.Contains(body, `"reason":"ended: STAGE_INPUT_STREAM: stream NONE does not exist`) {
			t.Errorf("got %s", body)
		}
		r.soft()
		if err := <-r.done; err == nil || !strings.HasPrefix(err.Error(), "stage other: STAGE_INPUT_STREAM: ") {
			t.Errorf("got %v", err)
		}
	})
}

func TestEachStageHasItsMetricsAndPages(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, nil)
		r := l.startSeveral(parallel()...)
		l.awaitReady(r) // so that the streams are theirs
		l.load("one", "two")
		l.awaitOf("RESULTS", "results.first.0.rows", 2)
		l.awaitOf("RESULTS", "results.other.0.rows", 2)
		time.Sleep(time.Second)
		_, all := r.get("/metrics")
		_, own := r.get("/stages/other/metrics")
		for text, in := range map[string][2]bool{
			"\n" + `llm_stage_rows_total{partition="0",stage="first",status="success"} 2` + "\n": {true, false},
			"\n" + `llm_stage_rows_total{partition="0",stage="other",status="success"} 2` + "\n": {true, true},
			"\n" + `llm_stage_in_flight_calls{stage="other"} 0` + "\n":                           {true, true},
			"\ngo_goroutines ": {true, false},
		} {
			if got := [2]bool{strings.Contains(all, text), strings.Contains(own, text)}; got != in {
				t.Errorf("%q: in the metrics of all and of the stage: %v, want %v", text, got, in)
			}
		}
		for path, want := range map[string]string{
			"/healthz": "ok", "/stages/first/": "<!DOCTYPE html>", "/stages/first/dashboard.js": "api/events", "/stages/first/readyz": "ok",
			"/stages/other/api/status": `"stage":"other"`, "/api/status": `{"stages":[{"stage":"first"`, "/dashboard.css": "{", "/stages/other": "Moved",
		} {
			if status, body := r.get(path); status != http.StatusOK || !strings.Contains(body, want) {
				if want != "Moved" || !strings.Contains(body, "<!DOCTYPE html>") { // the client follows
					t.Errorf("%s: %d %.300s", path, status, body)
				}
			}
		}
		for _, path := range []string{"/stages/none/", "/stages/", "/nothing", "/stages/first/nothing"} {
			if status, _ := r.get(path); status != http.StatusNotFound {
				t.Errorf("%s: %d", path, status)
			}
		}
		r.stop()
	})
}

// Two stages with one budget keep its limit together, and share it by their weights while both have work.
func TestStagesOfOneProcessShareABudget(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		const rpm, minutes = 120, 3
		var mu sync.Mutex
		calls := map[string][]time.Time{}
		l := newLab(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			mu.Lock()
			defer mu.Unlock()
			calls[c.Model] = append(calls[c.Model], time.Now())
			return nil
		}}, map[string]string{"STAGE_BUDGET": "team", "STAGE_LLM_RPM": fmt.Sprint(rpm)})
		l.load(questions(rpm * minutes / 2)...)
		r := l.startSeveral(parallel(
			map[string]string{"STAGE_BUDGET_WEIGHT": "3", "STAGE_LLM_MODEL": "heavy"}, map[string]string{"STAGE_BUDGET_WEIGHT": "1", "STAGE_LLM_MODEL": "light"})...)
		time.Sleep(30 * time.Second) // until they know each other
		mu.Lock()
		clear(calls)
		mu.Unlock()
		time.Sleep((minutes - 2) * time.Minute)
		mu.Lock()
		heavy, light := len(calls["heavy"]), len(calls["light"])
		mu.Unlock()
		most := rpm * (minutes - 2)
		if sum := heavy + light; sum > most+most/10 || sum < most*8/10 {
			t.Errorf("%d calls in %d minutes, want about %d", sum, minutes-2, most)
		}
		if ratio := float64(heavy) / float64(max(1, light)); ratio < 2.4 || ratio > 3.6 {
			t.Errorf("%d and %d calls, want three to one", heavy, light)
		}
		_, report := r.get("/stages/other/api/status")
		if !strings.Contains(report, `"members":2`) {
			t.Errorf("status %s", report)
		}
		r.stop()
	})
}

// The server checks that a new stream takes no subject of another, and adds it later. So two that are created at the same
// moment may both be accepted, and at its next start it refuses one of them, whose results nobody finds any more. The
// later entry ends, at each start: its streams must not keep the stages before it from having theirs.
func TestStagesOfOneProcessDoNotCreateStreamsThatOverlap(t *testing.T) {
	for range stagetest.Runs(0, 5, 20) {
		stagetest.Virtual(t, func(t *testing.T) {
			l := newLab(t, llmtest.Config{}, nil)
			r := l.startSeveral(parallel(map[string]string{"STAGE_RESULT_STREAM": "R1"}, map[string]string{"STAGE_RESULT_STREAM": "R2"})...)
			synctest.Wait()
			l.load("one")
			time.Sleep(10 * time.Second)
			if _, body := r.get("/readyz"); !strings.Contains(body, `{"stage":"first","ready":true}`) || strings.Count(body, "its subjects overlap with those of another stream") != 1 {
				t.Errorf("got %s, want the later one to have ended", body)
			}
			r.soft()
			if err := <-r.done; err == nil || !strings.Contains(err.Error(), "set STAGE_RESULT_STREAM to that stream if it is meant, else change STAGE_RESULT_SUBJECT") {
				t.Errorf("got %v", err)
			}
		})
	}
}
