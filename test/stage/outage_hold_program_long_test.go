//go:build long

package stage_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/gateway"
)

var dashboardLine = regexp.MustCompile(`"dashboard":"(http://[^/"]+)/"`)

// page reads a page of the HTTP server of a process.
func (p *program) page(path string) (status int, body string) {
	p.t.Helper()
	eventually(p.t, "the dashboard", func() bool { return dashboardLine.MatchString(p.stderr.String()) })
	address := stagetest.Value(url.JoinPath(dashboardLine.FindStringSubmatch(p.stderr.String())[1], path))(p.t)
	req := stagetest.Value(http.NewRequestWithContext(p.t.Context(), http.MethodGet, address, nil))(p.t)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text := stagetest.Value(io.ReadAll(resp.Body))(p.t)
	return resp.StatusCode, string(text)
}

func TestAStageWhoseServerIsDownStaysUpAndReportsIt(t *testing.T) {
	t.Parallel()
	const paused = `llm_stage_paused{reason="network"}` // no call has succeeded yet
	o := newOut(t, llmtest.Config{}, nil)
	o.set(gateway.Refused)
	p := runStage(t, o.dir, o.environ, "run")
	if status, body := p.page("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d %s", status, body)
	}
	runStage(t, o.dir, nil, "load", o.input).ends(0)
	var why string
	eventually(t, "/readyz reports the pause", func() bool {
		var status int
		status, why = p.page("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(why, "paused")
	})
	if !strings.Contains(why, "nothing listens at") {
		t.Errorf("/readyz: %s", why)
	}
	if status, body := p.page("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d %s, an outage is no reason to restart the process", status, body)
	}
	if _, text := p.page("/metrics"); !hasLine(text, paused, " 1") {
		t.Errorf("want %s 1, have\n%s", paused, linesOf(text, "llm_stage_paused"))
	}
	<-time.After(o.lasts)
	if _, text := p.page("/metrics"); linesOf(text, "llm_stage_rows_total{") != "" && !hasLine(text, `llm_stage_rows_total{partition="0",status="error"}`, " 0") {
		t.Errorf("rows have results: %s", linesOf(text, "llm_stage_rows_total"))
	}
	o.set(gateway.Open)
	eventually(t, "results of all rows", func() bool {
		_, text := p.page("/metrics")
		return hasLine(text, `llm_stage_rows_total{partition="0",status="success"}`, " "+strconv.Itoa(o.rows))
	})
	if status, body := p.page("/readyz"); status != http.StatusOK {
		t.Errorf("/readyz after the outage: %d %s", status, body)
	}
	if _, text := p.page("/metrics"); !hasLine(text, paused, " 0") {
		t.Errorf("want %s 0, have\n%s", paused, linesOf(text, "llm_stage_paused"))
	}
	p.signal(syscall.SIGTERM)
	p.ends(0)
	s := stored(t, filepath.Join(o.dir, "stage-data"))
	s.verifyResults(o.rows)
	a := s.audit()
	if got, want := a.phases(), []string{"start", "claim", "pause", "resume", "end"}; !slices.Equal(got, want) {
		t.Errorf("run events %q, want %q", got, want)
	}
	for _, e := range a.runs {
		if e.E.Phase == auditlog.PhasePause && !strings.Contains(e.E.Reason, "refused") {
			t.Errorf("the pause's reason is %q", e.E.Reason)
		}
	}
}

func TestRowsAreHeldAsLongAsConfigured(t *testing.T) {
	t.Parallel()
	const hold = 3 * time.Second
	o := newOut(t, llmtest.Config{}, vars{"STAGE_OUTAGE_HOLD": hold.String()})
	o.set(gateway.Refused)
	o.process().ends(0)
	o.verify()
	s := stored(t, filepath.Join(o.dir, "stage-data", "job"))
	results := s.results(0)
	if len(results) != o.rows {
		t.Fatalf("%d results, want %d", len(results), o.rows)
	}
	s.validate("result", results[0].message)
	for i, r := range results {
		if r.Row != uint64(i+1) || r.Fault == nil || r.Fault.Reason != "api_call_failed" || !strings.Contains(r.Fault.Error, "refused") {
			t.Fatalf("result %d is of row %d: %s", i+1, r.Row, r.Body)
		}
	}
	a := s.audit()
	for _, e := range a.rows {
		if held := e.E.FinishedAt.Sub(e.E.QueuedAt); held < hold {
			t.Errorf("row %d failed after %v, want at least %v", e.E.Sequence, held, hold)
		}
	}
}

func TestRowsGoPastAnOutageToTheFallbackAndBack(t *testing.T) {
	t.Parallel()
	const after = time.Second
	fallback := stagetest.Value(llmtest.New(llmtest.Config{Latency: 200 * time.Millisecond}))(t)
	socket := httptest.NewServer(fallback)
	t.Cleanup(socket.Close)
	o := newOut(t, llmtest.Config{}, vars{
		"STAGE_FALLBACKS": "anthropic:big", "STAGE_LLM_ANTHROPIC_BASE_URL": socket.URL + "/v1", "STAGE_LLM_ANTHROPIC_API_KEY": apiKey,
		"STAGE_FALLBACK_AFTER": after.String(), "STAGE_POOL_SIZE": "4",
	})
	p := o.process()
	o.answered(o.rows / 5)
	o.set(gateway.Refused)
	eventually(t, "replies of the fallback", func() bool { return fallback.Stats().Answered >= 10 })
	if status, why := p.page("/readyz"); status != http.StatusOK {
		t.Errorf("/readyz while rows go to the fallback: %d %s", status, why)
	}
	before := o.llm.Stats().Answered
	o.set(gateway.Open)
	o.complete(p)
	first, second := o.llm.Stats(), fallback.Stats()
	if first.Answered < before+10 {
		t.Errorf("of %d rows the first provider answered %d and %d after its outage, the fallback %d", o.rows, before, first.Answered-before, second.Answered)
	}
	a := stored(t, filepath.Join(o.dir, "stage-data", "job")).audit()
	var failed time.Time // for the first time
	slices.SortFunc(a.calls, func(x, y event[auditlog.Call]) int { return x.E.Time.Compare(y.E.Time) })
	for _, e := range a.calls {
		ended := e.E.Time
		if e.E.Status == auditlog.CallFailure && failed.IsZero() {
			failed = ended
		}
		if e.E.Provider == "anthropic" && (failed.IsZero() || ended.Sub(failed) < after) {
			t.Fatalf("the fallback was called %v after the first failure, want at least %v", ended.Sub(failed), after)
		}
	}
}
