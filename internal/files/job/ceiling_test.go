package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/files/jobs"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// refusingHead is a provider that answers all rows but the first, which it refuses once so many
// others are answered, until it accepts that, too.
type refusingHead struct {
	*llmtest.Server

	mu       sync.Mutex
	answered int
	refused  int
	accepts  bool
	enough   chan struct{} // closed once the others are answered
}

func newRefusingHead(t *testing.T, others int) *refusingHead {
	t.Helper()
	p := &refusingHead{enough: make(chan struct{})}
	var err error
	p.Server, err = llmtest.New(llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		p.mu.Lock()
		defer p.mu.Unlock()
		if strings.HasSuffix(c.Prompt, " 0") && !p.accepts {
			p.refused++
			return &llmtest.Step{Status: http.StatusTooManyRequests}
		}
		if p.answered++; p.answered == others {
			close(p.enough)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ServeHTTP holds the calls of the first row until enough of the others are answered.
func (p *refusingHead) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil && bytes.Contains(body, []byte("Say 0")) {
		<-p.enough
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.Server.ServeHTTP(w, r)
}

// TestAJobAtItsCeilingSaysWhatIsKept: the first row is refused once the others have reached the
// ceiling, so their answers wait behind it. They are kept, the job says so, and the next run pays
// for none of them.
func TestAJobAtItsCeilingSaysWhatIsKept(t *testing.T) {
	const rows = 12
	var text strings.Builder
	for i := range rows {
		fmt.Fprintf(&text, "{\"n\":%d}\n", i)
	}
	input, dir := stagetest.File(t, "rows.jsonl", text.String()), t.TempDir()
	prices := stagetest.File(t, "prices.yaml", "m: {input: 1000000, output: 1000000}\n") // a token costs 1 USD, and a call 12
	provider := newRefusingHead(t, 2)
	server := httptest.NewServer(provider)
	defer server.Close()
	process := func(ceiling string) (stderr string, err error) {
		cfg := stagetest.ConfigOfCalls(t, "STAGE_LLM_PROVIDER", "openai", "STAGE_LLM_BASE_URL", server.URL+"/v1", "STAGE_LLM_API_KEY", "k",
			"STAGE_LLM_MODEL", "m", "STAGE_TEMPLATE", "Say {{ row.n }}", "STAGE_PRICES_FILE", prices, "STAGE_MAX_COST_USD", ceiling,
			"STAGE_POOL_SIZE", "2", "STAGE_DATA_DIR", dir, "STAGE_HTTP_ADDR", "127.0.0.1:0", "STAGE_LOG_LEVEL", "error")
		var out stagetest.Buffer
		err = Process(t.Context(), t.Context(), IO{In: strings.NewReader(""), Out: &stagetest.Buffer{}, Err: &out}, cfg, input,
			Options{Mock: llmtest.Config{}.Start, Out: filepath.Join(dir, "out.jsonl"), Job: "job", Where: func(string) string { return "" }})
		return out.String(), err
	}
	find := func() *jobs.Job {
		j := stagetest.Value(jobs.Find(dir, "job"))(t)
		return j
	}

	stderr, err := process("20")
	if !errors.Is(err, cost.ErrCeiling) {
		t.Fatalf("got %v, want the ceiling\n%s", err, stderr)
	}
	provider.mu.Lock()
	kept, refused := provider.answered, provider.refused
	provider.accepts = true
	provider.mu.Unlock()
	want := fmt.Sprintf("\n%d more paid answers are kept in the job, behind rows without one: the same command with a higher --max-cost-usd uses them and does not pay for them again\n", kept)
	if !strings.Contains(stderr, want) || strings.Contains(stderr, "all runs") {
		t.Errorf("got\n%s\nwant in it%s", stderr, want)
	}
	if j := find(); j.State != jobs.Ceiling || !strings.HasPrefix(j.Why, "cost ceiling reached") || j.Counts != nil {
		t.Errorf("at the ceiling: %+v", j)
	}

	stderr, err = process("100000")
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	if provider.answered != rows {
		t.Errorf("%d calls were answered, want one for each of %d rows", provider.answered, rows)
	}
	this := fmt.Sprintf(`^%d results written, .*; this run: %d calls, `, rows, rows-kept)
	if !regexp.MustCompile(this).MatchString(stderr) || !strings.Contains(stderr, fmt.Sprintf("\nall runs of the job: %d calls, ", rows+refused)) || strings.Contains(stderr, "kept in the job") {
		t.Errorf("got\n%s\nwant %s and the sum of both runs", stderr, this)
	}
	if j := find(); j.State != jobs.Done || j.Why != "" || j.Counts == nil || j.Rows != rows || j.Succeeded != rows || j.Failed+j.Pending != 0 {
		t.Errorf("at the end: %+v", j)
	}
}

// TestHowARunEndedIsRecorded: a signal, an error and --limit are told apart.
func TestHowARunEndedIsRecorded(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	failure := errors.New("no such model")
	for name, tt := range map[string]struct {
		total, limit int64
		stopped      bool
		err          error
		want         jobs.State
	}{
		"all rows":                    {5, 0, false, nil, jobs.Done},
		"all rows, and a signal":      {5, 0, true, nil, jobs.Done},
		"as many as there are":        {5, 5, false, nil, jobs.Done},
		"fewer than there are":        {5, 4, false, nil, jobs.Partial},
		"standard input with a limit": {-1, 4, false, nil, jobs.Partial},
		"standard input":              {-1, 0, false, nil, jobs.Done},
		"an error":                    {5, 0, false, failure, jobs.Partial},
		"a signal":                    {5, 0, true, errors.New("interrupted"), jobs.Interrupted},
		"a ceiling":                   {5, 0, false, fmt.Errorf("fatal: %w", cost.ErrCeiling), jobs.Ceiling},
	} {
		p := &Pipeline{Total: tt.total, limit: tt.limit, places: &places{}, written: 5, failed: 2}
		soft := t.Context()
		if tt.stopped {
			soft = ended
		}
		r := p.record(soft, t.Context(), tt.err)
		if r.State != tt.want || (r.Why != "") != (tt.err != nil) || (r.Counts != nil) != (tt.want == jobs.Done) {
			t.Errorf("%s: got %+v, want %s", name, r, tt.want)
		}
	}
}
