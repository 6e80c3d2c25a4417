//go:build long

package stage_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// realPatience bounds what tests with real processes wait for, far above what a loaded machine needs.
const realPatience = time.Minute

// program is a running process.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr stagetest.Buffer
	stdout stagetest.Buffer
	done   chan struct{} // closed when it has ended
}

// runStage starts the program stage in a directory.
func runStage(t *testing.T, dir string, environ vars, args ...string) *program {
	t.Helper()
	return runStageWith(t, dir, environ, nil, args...)
}

// runStageWith is runStage with changes to the command before it starts.
func runStageWith(t *testing.T, dir string, environ vars, adapt func(*exec.Cmd), args ...string) *program {
	t.Helper()
	self := stagetest.Value(os.Executable())(t)
	all := []string{beTheProgram + "=1", "STAGE_HTTP_ADDR=127.0.0.1:0", "GORACE=halt_on_error=1"}
	for _, name := range slices.Sorted(maps.Keys(environ)) {
		all = append(all, name+"="+environ[name])
	}
	return startProgram(t, dir, all, self, adapt, args...)
}

func runProgram(t *testing.T, dir string, environ []string, path string, args ...string) *program {
	t.Helper()
	return startProgram(t, dir, environ, path, nil, args...)
}

func startProgram(t *testing.T, dir string, environ []string, path string, adapt func(*exec.Cmd), args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.CommandContext(t.Context(), path, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = dir, append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, environ...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if adapt != nil {
		adapt(p.cmd)
	}
	stagetest.Must(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // see ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%s %s ended with %v:\n%s%.2000s", filepath.Base(path), strings.Join(args, " "), p.cmd.ProcessState, p.stderr.String(), p.stdout.String())
		}
	})
	return p
}

// ends waits for the end of the process and checks its exit code.
func (p *program) ends(code int) {
	p.t.Helper()
	p.endsWithin(realPatience, code)
}

func (p *program) endsWithin(patience time.Duration, code int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("the process did not end")
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("exit code %d, want %d", got, code)
	}
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
}

// kill ends the process as a power cut would, except for the disk.
func (p *program) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// eventually waits in real time until a condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(realPatience); !is(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s: not within %v", what, realPatience)
		}
	}
}

// realLLM serves a flaky LLM on a socket.
func realLLM(t *testing.T, cfg llmtest.Config) (server *llmtest.Server, environ vars) {
	t.Helper()
	server = stagetest.Value(llmtest.New(cfg))(t)
	socket := httptest.NewServer(server)
	t.Cleanup(socket.Close)
	return server, vars{
		"STAGE_LLM_BASE_URL": socket.URL + "/v1", "STAGE_LLM_MODEL": "m", "STAGE_POOL_SIZE": "16",
		"STAGE_TEMPLATE": "Row {{ row.n }}", "STAGE_THROTTLE": "classic",
	}
}

// writeRows writes a file of rows {"n":1} to {"n":n}.
func writeRows(t *testing.T, n int) string {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "{\"n\":%d}\n", i+1)
	}
	return stagetest.File(t, "rows.jsonl", text.String())
}

// checkRows checks that the lines are the results of rows 1 to n, each once, in order, and all successful.
func checkRows(t *testing.T, text string, n int) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) != n {
		t.Errorf("%d results, want %d", len(lines), n)
	}
	for i, line := range lines {
		var row struct {
			N      int
			Answer string `json:"llm_response"`
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil || row.N != i+1 || row.Answer != llmtest.Answer(fmt.Sprintf("Row %d", i+1)) {
			t.Fatalf("line %d: %v: %s", i+1, err, line)
		}
	}
}
