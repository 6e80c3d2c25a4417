//go:build long

package stage_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// TestAJobIsRepairedWhateverIsKilled takes a job through random runs, of which some are killed, and checks what each
// complete one wrote.
func TestAJobIsRepairedWhateverIsKilled(t *testing.T) {
	t.Parallel()
	for i := range 2 * len(orders) {
		seed, order := rand.Uint64(), orders[i/2]
		if s := os.Getenv("REPAIR_SEED"); s != "" {
			seed, _ = strconv.ParseUint(s, 10, 64) // 0: a seed too
		}
		t.Run(fmt.Sprintf("%s/REPAIR_SEED=%d", order, seed), func(t *testing.T) {
			t.Parallel()
			newRepair(t, order, seed).run()
		})
	}
}

// repair is a job with an LLM that refuses some of its rows for a while.
type repair struct {
	t       *testing.T
	order   string
	random  *rand.Rand
	dir     string
	out     string
	input   string
	rows    int      // of the input, which grows
	all     []string // its lines, in the end
	environ vars

	mu      sync.Mutex
	refuses map[string]int // by prompt: how many of its next calls are refused
}

const repairRows = 30

func newRepair(t *testing.T, order string, seed uint64) *repair {
	t.Helper()
	r := &repair{
		t: t, order: order, random: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), out: filepath.Join(t.TempDir(), "out.jsonl"),
		input: keyedRows(t, repairRows), refuses: make(map[string]int),
	}
	r.grow(1 + r.random.IntN(repairRows))
	for n := 2; n <= repairRows; n++ {
		if n%4 != 1 && r.random.IntN(3) == 0 { // five refused in a row look like wrong settings after a restart
			r.refuses[fmt.Sprintf("Row %d", n)] = 1 + r.random.IntN(3)
		}
	}
	_, r.environ = realLLM(t, llmtest.Config{Latency: 10 * time.Millisecond, LatencySigma: 1, Script: r.script})
	r.environ["STAGE_POOL_SIZE"] = "4"
	ordered(r.environ, order)
	return r
}

// grow has the input hold the first rows. The last line may lack its end.
func (r *repair) grow(rows int) {
	r.t.Helper()
	switch {
	case r.rows == repairRows:
		return
	case r.all == nil:
		r.all = strings.SplitAfter(read(r.t, r.input), "\n")
	}
	r.rows = min(rows, repairRows)
	text := strings.Join(r.all[:r.rows], "")
	if r.random.IntN(2) == 0 {
		text = strings.TrimSuffix(text, "\n")
	}
	stagetest.Must(r.t, os.WriteFile(r.input, []byte(text), 0o600))
}

// script refuses a call whose row is not to succeed yet.
func (r *repair) script(c llmtest.Call) *llmtest.Step {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuses[c.Prompt] == 0 {
		return nil
	}
	r.refuses[c.Prompt]--
	return &llmtest.Step{Status: http.StatusBadRequest}
}

// run draws what happens to the job, and then repairs what is left.
func (r *repair) run() {
	for range 14 {
		switch r.random.IntN(8) {
		case 7:
			r.grow(r.rows + 1 + r.random.IntN(6))
		case 0:
			r.process(1 + r.random.IntN(repairRows+3))
		case 1, 2:
			r.process(0)
		case 3:
			r.redrive(false)
		case 4:
			r.redriveMeanwhile()
		case 5:
			r.process(0, "--retry-failed")
		default:
			r.process(1+r.random.IntN(repairRows), "--retry-failed=api_call_failed,refused")
		}
	}
	r.grow(repairRows)
	for range 10 {
		r.complete(r.start(0, r.out, "--retry-failed"), 0, r.out)
		if results, _ := r.results(); len(r.successes(results)) == repairRows {
			r.checkEnd(results)
			return
		}
	}
	r.t.Errorf("rows still fail:\n%s", read(r.t, r.out))
}

// start starts process. out is a file, or empty for standard output; limit 0: all rows.
func (r *repair) start(limit int, out string, more ...string) *program {
	args := append([]string{"process", r.input, "--job", "job"}, more...)
	if out != "" {
		args = append(args, "-o", out)
	}
	if limit > 0 {
		args = append(args, "--limit", strconv.Itoa(limit))
	}
	return runStage(r.t, r.dir, r.environ, args...)
}

// process runs process to its end, or kills it.
func (r *repair) process(limit int, more ...string) {
	out := r.out
	if r.random.IntN(3) == 0 {
		out = ""
	}
	p := r.start(limit, out, more...)
	if r.killed(p) {
		return
	}
	r.complete(p, limit, out)
}

// killed kills a program in one of two cases, at any moment. It reports whether it tried.
func (r *repair) killed(p *program) bool {
	if r.random.IntN(2) == 0 {
		return false
	}
	select {
	case <-p.done:
	case <-time.After(time.Duration(r.random.IntN(500)) * time.Millisecond):
		p.kill()
	}
	return true
}

// redrive publishes failed rows again, or is killed meanwhile. With leaving, its server may stop meanwhile, too.
func (r *repair) redrive(leaving bool) {
	if _, err := os.Stat(filepath.Join(r.dir, r.store())); err != nil {
		return // the job has never begun
	}
	p := runStage(r.t, r.dir, nil, "redrive", "--data-dir", r.store())
	if r.killed(p) {
		return
	}
	<-p.done
	none := strings.Contains(p.stderr.String(), "does not exist") || strings.Contains(p.stderr.String(), "there is no store") // the first run was killed before
	if code := p.cmd.ProcessState.ExitCode(); code != 0 && !leaving && !none {
		r.t.Errorf("redrive ended with %d", code)
	}
}

// redriveMeanwhile redrives while process runs, which need not wait for what is published after its start.
func (r *repair) redriveMeanwhile() {
	p := r.start(0, r.out)
	eventually(r.t, "the job's server", func() bool {
		select {
		case <-p.done:
			return true
		default:
		}
		_, err := os.Stat(filepath.Join(r.dir, r.store(), "nats.json"))
		return err == nil
	})
	time.Sleep(time.Duration(r.random.IntN(100)) * time.Millisecond)
	r.redrive(true)
	p.ends(0)
	rows, _ := byRow(r.t, read(r.t, r.out))
	results, _ := r.results()
	for n := 1; n <= r.rows; n++ {
		if len(rows[n]) != 1 || !slices.ContainsFunc(results[n], func(body []byte) bool { return bytes.Equal(body, rows[n][0]) }) {
			r.t.Fatalf("row %d is there as\n%s\nof these results:\n%s", n, bytes.Join(rows[n], []byte("\n")), bytes.Join(results[n], []byte("\n")))
		}
	}
}

func (r *repair) store() string { return filepath.Join("stage-data", "job") }

// results returns all that is stored, in the order of the log, by row, and the rows in the order of their first results.
func (r *repair) results() (results map[int][][]byte, rows []int) {
	r.t.Helper()
	p := runStage(r.t, r.dir, nil, "results", "--data-dir", r.store())
	p.ends(0)
	return byRow(r.t, p.stdout.String())
}

// complete checks what a run that came to its end has written: of each row the newest of its results that are stored, in
// the order of the first ones.
func (r *repair) complete(p *program, limit int, out string) {
	r.t.Helper()
	p.ends(0)
	text := p.stdout.String()
	if out != "" {
		text = read(r.t, out)
	}
	want := r.rows
	if limit > 0 {
		want = min(limit, want)
	}
	lines := strings.SplitAfter(text, "\n")
	if lines = lines[:len(lines)-1]; len(lines) != want {
		r.t.Fatalf("%d lines, want %d:\n%s", len(lines), want, text)
	}
	results, rows := r.results()
	checkOrder(r.t, r.order, rows)
	rows = slices.DeleteFunc(rows, func(n int) bool { return n > want })
	for i, line := range lines {
		if i == len(rows) {
			r.t.Fatalf("%d lines, but results of %v", len(lines), rows)
		}
		all := results[rows[i]]
		if line != string(all[len(all)-1])+"\n" {
			r.t.Fatalf("line %d is\n%s\nof row %d, which has these results:\n%s", i+1, line, rows[i], bytes.Join(all, []byte("\n")))
		}
	}
}

// successes returns the rows whose newest result is a success.
func (r *repair) successes(results map[int][][]byte) (rows []int) {
	for row, all := range results {
		if !failedResult(all[len(all)-1]) {
			rows = append(rows, row)
		}
	}
	return rows
}

// checkEnd checks the repaired job: a failed result was published again once, so a row has one success, the last of its
// results.
func (r *repair) checkEnd(results map[int][][]byte) {
	r.t.Helper()
	checkOrdered(r.t, r.order, read(r.t, r.out), repairRows)
	for row, all := range results {
		if i := slices.IndexFunc(all, func(body []byte) bool { return !failedResult(body) }); i != len(all)-1 {
			r.t.Errorf("row %d was published again although it had not failed:\n%s", row, bytes.Join(all, []byte("\n")))
		}
	}
	p := runStage(r.t, r.dir, nil, "verify", "--data-dir", r.store())
	p.ends(0)
	if text := p.stdout.String(); !strings.Contains(text, " 0 rows pending\n") || !strings.Contains(text, "in place of a failed one") {
		r.t.Errorf("verify printed:\n%s", text)
	}
}

// byRow sorts results by their row, and returns the rows as they first appear.
func byRow(t *testing.T, text string) (results map[int][][]byte, rows []int) {
	t.Helper()
	results = make(map[int][][]byte)
	for line := range strings.Lines(text) {
		body := []byte(strings.TrimSuffix(line, "\n"))
		var row struct{ N int }
		if err := json.Unmarshal(body, &row); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if results[row.N] == nil {
			rows = append(rows, row.N)
		}
		results[row.N] = append(results[row.N], body)
	}
	return results, rows
}

func failedResult(body []byte) bool { return bytes.Contains(body, []byte(`"llm_response_error":`)) }

func read(t *testing.T, path string) string {
	t.Helper()
	text := stagetest.Value(os.ReadFile(path))(t)
	return string(text)
}
