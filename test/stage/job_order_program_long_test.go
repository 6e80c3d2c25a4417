//go:build long

package stage_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// orders are the values of STAGE_ORDER; what holds for any job is tested with each.
var orders = []string{"stream", "key", "none"}

// rowKeys is how many keys keyedRows have.
const rowKeys = 3

// keyedRows writes a file of rows {"n":1,"k":1} to n, whose key is the member k.
func keyedRows(t *testing.T, n int) string {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "{\"n\":%d,\"k\":%d}\n", i+1, (i+1)%rowKeys)
	}
	return stagetest.File(t, "rows.jsonl", text.String())
}

// ordered sets the order of a job with keyedRows.
func ordered(environ vars, order string) vars {
	environ["STAGE_ORDER"], environ["STAGE_ORDER_KEY"] = order, "field.k"
	return environ
}

// numbers returns the rows of which the lines are results.
func numbers(t *testing.T, text string) (rows []int) {
	t.Helper()
	for line := range strings.Lines(text) {
		var row struct{ N int }
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		rows = append(rows, row.N)
	}
	return rows
}

// checkOrder checks that rows of keyedRows come in that order, none of them twice.
func checkOrder(t *testing.T, order string, rows []int) {
	t.Helper()
	last := make(map[int]int) // by key
	for i, n := range rows {
		key := 0
		switch order {
		case "key":
			key = n % rowKeys
		case "none":
			key = n
		}
		if n <= last[key] {
			t.Fatalf("in order %s row %d comes at %d, after row %d: %v", order, n, i, last[key], rows)
		}
		last[key] = n
	}
}

// checkOrdered checks that the lines are the results of rows 1 to n, each once, in that order, and all successful.
func checkOrdered(t *testing.T, order, text string, n int) {
	t.Helper()
	checkOrder(t, order, numbers(t, text))
	lines := slices.Collect(strings.Lines(text))
	slices.SortFunc(lines, func(a, b string) int { return numbers(t, a)[0] - numbers(t, b)[0] })
	checkRows(t, strings.Join(lines, ""), n)
}

// written returns the whole lines of a file that is being written; none if it does not exist.
func written(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text[:bytes.LastIndexByte(text, '\n')+1])
}

// stalled answers all calls but that for one row, which it never answers while it stalls.
func stalled(row string, stalls *atomic.Bool) llmtest.Config {
	return llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if stalls.Load() && c.Prompt == row {
			return &llmtest.Step{Trouble: llmtest.Stall}
		}
		return nil
	}}
}

// TestTheOrderOfAJobChangesOnceNothingWaits has a job whose first row is not answered, while all others are.
func TestTheOrderOfAJobChangesOnceNothingWaits(t *testing.T) {
	t.Parallel()
	const rows, more = 12, 6
	for _, order := range []string{"key", "none"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			var stalls atomic.Bool
			stalls.Store(true)
			llm, environ := realLLM(t, stalled("Row 1", &stalls))
			dir, out, input := t.TempDir(), filepath.Join(t.TempDir(), "out.jsonl"), keyedRows(t, rows)
			environ["STAGE_LLM_TIMEOUT"] = "1h"
			process := func(more ...string) *program {
				return runStage(t, dir, ordered(environ, order), append([]string{"process", input, "-o", out, "--job", "job"}, more...)...)
			}
			done := rows - 1 // rows that don't wait
			if order == "key" {
				done = rows - rows/rowKeys
			}
			p := process()
			eventually(t, "all other results", func() bool { return strings.Count(written(t, out), "\n") == done })
			p.kill()
			checkOrder(t, order, numbers(t, written(t, out)))

			// Rows wait: refused, and nothing is lost by trying.
			for _, other := range [][]string{{"--order", "stream"}, {"--order", "none", "--order-key", "field.n"}, {"--order", "key", "--order-key", "field.n"}} {
				if order == "none" && other[1] == "none" {
					continue
				}
				before := read(t, out)
				p := process(other...)
				p.ends(2)
				if read(t, out) != before {
					t.Errorf("%v has changed the output", other)
				}
				for _, part := range []string{"may not change from --order " + order, "now: run the same command with --order " + order, "--fresh", "--job"} {
					if text := p.stderr.String(); !strings.Contains(text, part) {
						t.Errorf("%v: it does not say %s: %s", other, part, text)
					}
				}
			}

			// The same command resumes the job, and calls for the missing row alone, and those whose results were not stored.
			stalls.Store(false)
			before := llm.Stats().Received
			process().ends(0)
			checkOrdered(t, order, read(t, out), rows)
			if calls := llm.Stats().Received - before; calls > int64(rows-done) {
				t.Errorf("%d calls for %d rows", calls, rows-done)
			}

			// Nothing waits any more, so any order will do: what is stored stays as it is.
			whole, before := read(t, out), llm.Stats().Received
			for _, other := range orders {
				process("--order", other, "--order-key", "field.n").ends(0)
				if read(t, out) != whole {
					t.Errorf("order %s has changed the results that are stored", other)
				}
			}
			if calls := llm.Stats().Received - before; calls > 0 {
				t.Errorf("%d calls for rows that are done", calls)
			}
			input = keyedRows(t, rows+more)
			process("--order", "stream").ends(0)
			text := read(t, out)
			if !strings.HasPrefix(text, whole) {
				t.Errorf("it does not begin with what was there:\n%s", text)
			}
			checkOrder(t, "stream", numbers(t, strings.TrimPrefix(text, whole)))
			checkOrdered(t, order, text, rows+more)
			runStage(t, dir, nil, "verify", "--data-dir", filepath.Join("stage-data", "job")).ends(0)
		})
	}
}

// TestAJobLeavesStreamOrderAtAnyTime changes the other way: after stream order nothing is above the low-water mark.
func TestAJobLeavesStreamOrderAtAnyTime(t *testing.T) {
	t.Parallel()
	const rows = 60
	for _, order := range []string{"key", "none"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			_, environ := realLLM(t, llmtest.Config{Latency: 50 * time.Millisecond, LatencySigma: 1})
			dir, out, input := t.TempDir(), filepath.Join(t.TempDir(), "out.jsonl"), keyedRows(t, rows)
			command := []string{"process", input, "-o", out, "--job", "job"}
			p := runStage(t, dir, ordered(environ, "stream"), command...)
			eventually(t, "results", func() bool { return strings.Count(written(t, out), "\n") > rows/4 })
			p.kill()
			before := numbers(t, written(t, out))
			runStage(t, dir, ordered(environ, order), command...).ends(0)
			text := read(t, out)
			checkOrdered(t, order, text, rows)
			checkOrder(t, "stream", numbers(t, text)[:len(before)])
			runStage(t, dir, nil, "verify", "--data-dir", filepath.Join("stage-data", "job")).ends(0)
		})
	}
}

// TestAJobThatIsDoneMayChangeItsOrder has rows that were emitted before a kill and don't come again before the last row
// is answered, since the window has room for one.
func TestAJobThatIsDoneMayChangeItsOrder(t *testing.T) {
	t.Parallel()
	const rows = 12
	for _, runs := range []int{1, 2} { // the second finds all results stored
		t.Run(fmt.Sprint(runs), func(t *testing.T) {
			t.Parallel()
			var stalls atomic.Bool
			stalls.Store(true)
			_, environ := realLLM(t, stalled("Row 1", &stalls))
			dir, out, input := t.TempDir(), filepath.Join(t.TempDir(), "out.jsonl"), keyedRows(t, rows)
			environ["STAGE_LLM_TIMEOUT"] = "1h"
			process := func(more ...string) *program {
				return runStage(t, dir, ordered(environ, "none"), append([]string{"process", input, "-o", out, "--job", "job"}, more...)...)
			}
			p := process()
			eventually(t, "all other results", func() bool { return strings.Count(written(t, out), "\n") == rows-1 })
			p.kill()
			stalls.Store(false)
			if p = process("--window", "1", "--order-span", "1"); runs == 1 {
				p.ends(0)
			} else {
				eventually(t, "the last result", func() bool { return strings.Count(written(t, out), "\n") == rows })
				p.kill()
				process().ends(0)
			}
			process("--order", "stream").ends(0)
			checkOrdered(t, "none", read(t, out), rows)
		})
	}
}
