//go:build long

package stage_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

func TestAJobKilledAtAnyMomentIsDoneOnceAndInOrder(t *testing.T) {
	t.Parallel()
	for _, order := range orders {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			killJobAtAnyMoment(t, order)
		})
	}
}

func killJobAtAnyMoment(t *testing.T, order string) {
	t.Helper()
	const rows, kills, pool = 240, 6, 16
	llm, environ := realLLM(t, llmtest.Config{Latency: 250 * time.Millisecond, LatencySigma: .7})
	ordered(environ, order)
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out.jsonl")
	command := []string{"process", keyedRows(t, rows), "-o", out, "--job", "job"}
	for range kills {
		p := runStage(t, dir, environ, command...)
		before := llm.Stats().Received
		more := rand.Int64N(rows / kills) // 0: while it starts
		eventually(t, "the next calls", func() bool { return llm.Stats().Received >= before+more })
		p.kill()
	}
	p := runStage(t, dir, environ, command...)
	p.ends(0)
	text := stagetest.Value(os.ReadFile(out))(t)
	checkOrdered(t, order, string(text), rows)
	// A kill costs the calls in flight, and replies that had not waited long enough to go into the journal.
	if calls := llm.Stats().Received; calls > rows+kills*3*pool {
		t.Errorf("%d calls for %d rows and %d kills", calls, rows, kills)
	} else {
		t.Logf("%d calls for %d rows and %d kills", calls, rows, kills)
	}
	runStage(t, dir, nil, "verify", "--data-dir", filepath.Join("stage-data", "job")).ends(0)
}

// lateWriter is the end of a pipe that is read late, so that the results fill it.
type lateWriter struct {
	to    io.Writer
	after time.Duration
}

func (w *lateWriter) Write(p []byte) (int, error) {
	<-time.After(w.after)
	w.after = 0
	return w.to.Write(p)
}

func TestALimitThatIsReachedMakesNoCall(t *testing.T) {
	t.Parallel()
	const rows, limit = 200, 20
	llm, environ := realLLM(t, llmtest.Config{Latency: 100 * time.Millisecond})
	var text strings.Builder
	for n := range rows {
		fmt.Fprintf(&text, "{\"n\":%d,\"text\":%q}\n", n+1, strings.Repeat("x", 10<<10))
	}
	dir, input := t.TempDir(), stagetest.File(t, "rows.jsonl", text.String())
	p := runStage(t, dir, environ, "process", input)
	eventually(t, "results", func() bool { return strings.Count(p.stdout.String(), "\n") > limit })
	p.kill()
	before := llm.Stats().Received
	again := runStageWith(t, dir, environ, func(cmd *exec.Cmd) { cmd.Stdout = &lateWriter{to: cmd.Stdout, after: time.Second} },
		"process", input, "--limit", strconv.Itoa(limit))
	again.ends(0)
	checkRows(t, again.stdout.String(), limit)
	if calls := llm.Stats().Received - before; calls > 0 {
		t.Errorf("%d calls for rows behind the limit", calls)
	}
	last := runStage(t, dir, environ, "process", input)
	last.ends(0)
	checkRows(t, last.stdout.String(), rows)
}

func TestAnInterruptedJobEndsWith130AndResumes(t *testing.T) {
	t.Parallel()
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			const rows = 120
			llm, environ := realLLM(t, llmtest.Config{Latency: 200 * time.Millisecond, LatencySigma: .5})
			dir, input := t.TempDir(), writeRows(t, rows)
			p := runStage(t, dir, environ, "process", input)
			eventually(t, "answers", func() bool { return llm.Stats().Answered >= rows/4 })
			p.signal(s)
			p.ends(130)
			if text := p.stderr.String(); !strings.Contains(text, "before the end: the same command resumes where it was") {
				t.Errorf("it said %s", text)
			}
			again := runStage(t, dir, environ, "process", input)
			again.ends(0)
			checkRows(t, again.stdout.String(), rows)
			if st := llm.Stats(); st.Received != rows || st.Abandoned != 0 {
				t.Errorf("%d calls, %d of them cut off, for %d rows: the drain did not finish them", st.Received, st.Abandoned, rows)
			}
		})
	}
}

func TestASecondInterruptStopsAtOnce(t *testing.T) {
	t.Parallel()
	llm, environ := realLLM(t, llmtest.Config{Latency: time.Hour})
	environ["STAGE_LLM_TIMEOUT"] = "2h"
	p := runStage(t, t.TempDir(), environ, "process", writeRows(t, 20))
	eventually(t, "a call", func() bool { return llm.Stats().InFlight > 0 })
	p.signal(syscall.SIGINT)
	select {
	case <-p.done:
		t.Fatal("it did not wait for the call in flight")
	case <-time.After(time.Second):
	}
	p.signal(syscall.SIGINT)
	p.ends(130)
	eventually(t, "the end of the calls", func() bool { return llm.Stats().InFlight == 0 })
}
