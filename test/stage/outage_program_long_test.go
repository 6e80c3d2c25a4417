//go:build long

package stage_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/gateway"
)

var outageFull = flag.Bool("outage.full", false, "outages of real processes last 30 s and meet 2,000 rows of 1 s, with a pool of 64 and the default retries")

// out is a job of real processes whose LLM may be down.
type out struct {
	t       *testing.T
	llm     *llmtest.Server
	gate    *gateway.Gateway
	environ vars
	dir     string // of the process
	input   string
	results string
	rows    int
	pool    int
	lasts   time.Duration // how long an outage lasts
}

// newOut prepares a job. A row whose failures count exhausts its attempts within tenths of a second.
func newOut(t *testing.T, cfg llmtest.Config, changes vars) *out {
	t.Helper()
	o := &out{t: t, dir: t.TempDir(), rows: 200, pool: 16, lasts: 2 * time.Second}
	o.results = filepath.Join(o.dir, "out.jsonl")
	cfg.Latency = 100 * time.Millisecond
	o.environ = vars{
		"STAGE_LLM_MODEL": "m", "STAGE_TEMPLATE": "Row {{ row.n }}", "STAGE_RETRY_BASE_DELAY": "50ms", "STAGE_FATAL_PROBE_INTERVAL": "1s",
	}
	if *outageFull {
		o.rows, o.pool, o.lasts, cfg.Latency = 2000, 64, 30*time.Second, time.Second
		delete(o.environ, "STAGE_RETRY_BASE_DELAY")
	}
	o.environ["STAGE_POOL_SIZE"] = strconv.Itoa(o.pool)
	var err error
	if o.llm, err = llmtest.New(cfg); err != nil {
		t.Fatal(err)
	}
	if o.gate, err = gateway.New(o.llm); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.gate.Close)
	o.environ["STAGE_LLM_BASE_URL"] = o.gate.URL()
	maps.Copy(o.environ, changes)
	o.input = writeRows(t, o.rows)
	return o
}

func (o *out) set(to gateway.State) {
	o.t.Helper()
	stagetest.Must(o.t, o.gate.Set(to))
}

// process starts the job, or resumes it.
func (o *out) process() *program {
	o.t.Helper()
	return runStage(o.t, o.dir, o.environ, "process", o.input, "-o", o.results, "--job", "job")
}

// answered waits until the LLM has answered n calls.
func (o *out) answered(n int) {
	o.t.Helper()
	eventually(o.t, fmt.Sprintf("%d replies", n), func() bool { return o.llm.Stats().Answered >= int64(n) })
}

// complete waits for the end of the job and checks that each row has succeeded, in order.
func (o *out) complete(p *program) {
	o.t.Helper()
	p.endsWithin(realPatience+2*o.lasts, 0)
	text := stagetest.Value(os.ReadFile(o.results))(o.t)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	failed := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.Contains(l, `"llm_response_error"`) })
	if len(failed) > 0 {
		o.t.Fatalf("%d of %d rows failed, the first: %s", len(failed), len(lines), failed[0])
	}
	checkRows(o.t, string(text), o.rows)
	o.verify()
}

// verify runs the program's verify command on the job.
func (o *out) verify() {
	o.t.Helper()
	runStage(o.t, o.dir, nil, "verify", "--data-dir", filepath.Join("stage-data", "job")).ends(0)
}

// stored starts a server on the store that a process left behind.
func stored(t *testing.T, dir string) *site {
	t.Helper()
	n := stagetest.OpenNATS(t, dir)
	return &site{t: t, srv: n, nc: n.NC, js: n.JS, logs: &stagetest.Buffer{Shown: true}}
}

// checkCost checks that an outage costs no more than the calls in flight when it began, those by which the stage
// detects it, and probes.
//
// How many calls fail before the outage is detected depends on how long the calls sent before it, which still succeed,
// take: on a busy machine, much longer than usual. It is never more than one per row.
func (o *out) checkCost(revealed int, lasted time.Duration) {
	o.t.Helper()
	const probesAtFirst = 20 // while the waits between them grow
	st, turned := o.llm.Stats(), o.gate.Stats()
	if most := o.rows + o.pool; st.Received > int64(most) {
		o.t.Errorf("the LLM had %d calls for %d rows, want at most %d", st.Received, o.rows, most)
	}
	if revealed > o.rows {
		o.t.Errorf("%d calls hit the outage before it was detected, of %d rows", revealed, o.rows)
	}
	if most := o.pool + probesAtFirst + int(lasted/time.Second); turned.Turned-revealed > most {
		o.t.Errorf("%d calls hit the outage after it was detected, want at most %d", turned.Turned-revealed, most)
	}
	if turned.MostWaiting > 2*o.pool { // the next call may come before the end of the last one is seen
		o.t.Errorf("%d calls waited at a time, the pool has %d", turned.MostWaiting, o.pool)
	}
	o.t.Logf("%d rows, %d calls answered of %d, %d that hit the outage, %d before it was detected", o.rows, st.Answered, st.Received, turned.Turned, revealed)
}

// patienceOf sets how long a call may take, so that an outage without answers outlasts all attempts at a row.
func (o *out) patienceOf(trouble gateway.State) {
	if trouble != gateway.Silent {
		return
	}
	o.environ["STAGE_LLM_TIMEOUT"] = "1s"
	if *outageFull {
		o.environ["STAGE_LLM_TIMEOUT"], o.lasts = "5s", 60*time.Second
	} else {
		o.lasts = 4 * time.Second
	}
}

func TestAnOutageCostsNoRow(t *testing.T) {
	t.Parallel()
	for _, trouble := range gateway.Troubles {
		t.Run(trouble.String(), func(t *testing.T) {
			t.Parallel()
			o := newOut(t, llmtest.Config{}, nil)
			o.patienceOf(trouble)
			p := o.process()
			o.answered(o.rows / 5)
			began := time.Now()
			o.set(trouble)
			eventually(t, "a pause", func() bool { return strings.Contains(p.stderr.String(), `"msg":"paused`) })
			revealed := o.gate.Stats().Turned
			select {
			case <-p.done:
				t.Error("the process ended during the outage")
			case <-time.After(o.lasts - time.Since(began)):
			}
			o.set(gateway.Open)
			lasted := time.Since(began)
			o.complete(p)
			o.checkCost(revealed, lasted)
		})
	}
}

func TestAStageThatIsKilledInAnOutageResumesAfterIt(t *testing.T) {
	t.Parallel()
	for _, trouble := range gateway.Troubles {
		t.Run(trouble.String(), func(t *testing.T) {
			t.Parallel()
			o := newOut(t, llmtest.Config{}, nil)
			o.patienceOf(trouble)
			p := o.process()
			o.answered(o.rows / 5)
			o.set(trouble)
			<-time.After(o.lasts / 2)
			p.kill()
			again := o.process() // which has seen no success
			<-time.After(o.lasts / 2)
			o.set(gateway.Open)
			o.complete(again)
		})
	}
}

// Rows that an outage holds are handed back: a stop does not wait for it to end.
func TestAStopInAnOutageIsClean(t *testing.T) {
	t.Parallel()
	for _, trouble := range gateway.Troubles {
		t.Run(trouble.String(), func(t *testing.T) {
			t.Parallel()
			o := newOut(t, llmtest.Config{}, vars{"STAGE_STOP_TIMEOUT": "1h"})
			o.patienceOf(trouble)
			p := o.process()
			o.answered(o.rows / 5)
			o.set(trouble)
			<-time.After(o.lasts / 2)
			p.signal(syscall.SIGTERM)
			p.ends(130)
			o.verify()
			o.set(gateway.Open)
			o.complete(o.process())
			cut := 0
			if trouble == gateway.Refused {
				cut = o.pool // replies in flight when the connections are cut are lost
			}
			if again := int(o.llm.Stats().Answered) - o.rows; again > cut {
				t.Errorf("%d of %d rows were paid for twice, want at most %d", again, o.rows, cut)
			}
		})
	}
}

// A pool that needs more file descriptors than the process may open is only as large as they allow.
func TestAStageShortOfFilesFailsNoRow(t *testing.T) {
	t.Parallel()
	o := newOut(t, llmtest.Config{}, vars{"STAGE_POOL_SIZE": "200"})
	o.rows = 400
	o.input = writeRows(t, o.rows)
	p := runStageWith(t, o.dir, o.environ, func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"sh", "-c", `ulimit -n 100; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
	}, "process", o.input, "-o", o.results, "--job", "job")
	o.complete(p)
	if log := p.stderr.String(); !strings.Contains(log, "ulimit") {
		t.Errorf("it does not say how to raise the limit of open files: %s", log)
	}
	if st := o.llm.Stats(); st.Received > int64(o.rows) {
		t.Errorf("%d calls for %d rows", st.Received, o.rows)
	}
}

func TestARowThatAlwaysMeetsServerErrorsFailsAlone(t *testing.T) {
	t.Parallel()
	for _, pool := range []string{"16", "1"} {
		t.Run("pool of "+pool, func(t *testing.T) {
			t.Parallel()
			const rows = 60
			poison := []int{7, 30, rows} // the last one: nothing comes after it
			o := newOut(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
				if slices.Contains(poison, promptRow(c.Prompt)) {
					return &llmtest.Step{Status: 500}
				}
				return nil
			}}, vars{"STAGE_POOL_SIZE": pool})
			o.input = writeRows(t, rows)
			o.process().ends(0)
			text := stagetest.Value(os.ReadFile(o.results))(t)
			lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
			if len(lines) != rows {
				t.Fatalf("%d results, want %d", len(lines), rows)
			}
			for i, line := range lines {
				var row struct {
					N      int
					Answer string `json:"llm_response"`
					Fault  *fault `json:"llm_response_error"`
				}
				if err := json.Unmarshal([]byte(line), &row); err != nil || row.N != i+1 {
					t.Fatalf("line %d: %v: %s", i+1, err, line)
				}
				switch f := row.Fault; {
				case !slices.Contains(poison, row.N):
					if f != nil || row.Answer == "" {
						t.Errorf("row %d failed: %s", row.N, line)
					}
				case f == nil || f.Reason != "api_call_failed" || len(f.Errors) != 3:
					t.Errorf("row %d: want a failure after 3 attempts: %s", row.N, line)
				}
			}
			o.verify()
		})
	}
}
