//go:build unix && long

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
)

// demo is a stage demo that runs, in a process of its own.
type demo struct {
	t     *testing.T
	cmd   *exec.Cmd
	temp  string // the directory in which it keeps its store
	lines *bufio.Scanner
	// gone is closed when no process holds the standard error of the demo any more, so when
	// the demo and all that it has started have ended.
	gone chan struct{}
}

// startDemo starts a demo on a free port. It is killed at the end of the test if it still runs.
func startDemo(t *testing.T, args ...string) *demo {
	t.Helper()
	held, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close() //nolint:errcheck // the process has its own
	d := &demo{t: t, temp: t.TempDir(), gone: make(chan struct{})}
	go func() {
		defer close(d.gone)
		_, _ = io.Copy(os.Stderr, held) // what goes wrong there
	}()
	d.cmd = exec.CommandContext(t.Context(), "stage", append([]string{"demo", "--http-addr", "127.0.0.1:0"}, args...)...) //nolint:gosec // the program of this test
	d.cmd.Env, d.cmd.Stderr = append(os.Environ(), "TMPDIR="+d.temp), stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with what it starts
	stdout := stagetest.Value(d.cmd.StdoutPipe())(t)
	stagetest.Must(t, d.cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
		_ = d.cmd.Wait()
		<-d.gone
		_ = held.Close()
	})
	d.lines = bufio.NewScanner(stdout)
	return d
}

// prints waits for a line that matches, and returns it with what its groups match.
func (d *demo) prints(pattern string) []string {
	d.t.Helper()
	for line := regexp.MustCompile(pattern); d.lines.Scan(); {
		d.t.Log(d.lines.Text())
		if found := line.FindStringSubmatch(d.lines.Text()); found != nil {
			return found
		}
		if strings.Contains(d.lines.Text(), "until Ctrl-C") {
			break // it waits
		}
	}
	d.t.Fatalf("the demo has done all without a line that matches %s", pattern)
	return nil
}

// end waits until the demo and all that it has started have ended. It checks the exit code,
// and that nothing is left behind.
func (d *demo) end(code int) {
	d.t.Helper()
	for d.lines.Scan() { // to the end, before Wait closes it
		d.t.Log(d.lines.Text())
	}
	_ = d.cmd.Wait()
	if got := d.cmd.ProcessState.ExitCode(); got != code {
		d.t.Errorf("%v, want exit code %d", d.cmd.ProcessState, code)
	}
	select {
	case <-d.gone:
	case <-time.After(scriptPatience):
		d.t.Fatalf("a process that the demo has started runs %v after its end", scriptPatience)
	}
	if left, err := os.ReadDir(d.temp); code >= 0 && (err != nil || len(left) > 0) { // a killed one can remove nothing
		d.t.Errorf("it has left %v, %v", left, err)
	}
}

// shows waits for three states of the stage on a page, and checks that each is the wanted
// one. An empty want stands for any.
func (d *demo) shows(page, want string) {
	d.t.Helper()
	request := stagetest.Value(http.NewRequestWithContext(d.t.Context(), http.MethodGet, page+"api/events", nil))(d.t)
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		d.t.Fatal(err)
	}
	defer reply.Body.Close() //nolint:errcheck // it was read
	event, looks := "", 0
	events := bufio.NewScanner(reply.Body)
	for events.Buffer(nil, 1<<20); looks < 3 && events.Scan(); {
		if name, ok := strings.CutPrefix(events.Text(), "event: "); ok {
			event = name
		}
		data, ok := strings.CutPrefix(events.Text(), "data: ")
		if !ok || event != "status" {
			continue
		}
		var status struct{ State string }
		if err := json.Unmarshal([]byte(data), &status); err != nil || status.State == "" || want != "" && status.State != want {
			d.t.Fatalf("the page shows %q, %v, want %q", status.State, err, want)
		}
		looks++
	}
	if looks < 3 {
		d.t.Fatalf("the page has ended after %d looks: %v", looks, events.Err())
	}
}

func TestTheDemoHoldsItsPageUntilASignal(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		d := startDemo(t, "--rows", "2", "--hold")
		page := d.prints(`^the dashboard stays at (http://[^ ]+) until Ctrl-C$`)[1]
		d.shows(page, "ended")
		stagetest.Must(t, d.cmd.Process.Signal(signal))
		d.end(0)
	}
}

func TestTheChaosOfTheDemoIsSurvivedAndProven(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--chaos", "--hold", "--rows", "120")
	page := d.prints(`dashboard: (http://[^,]+), of process [0-9]+, which survives$`)[1]
	d.prints(`the LLM goes down`)
	d.prints(`the stage has noticed`)
	d.prints(`the LLM is back`)
	d.prints(`kill -9 of process [0-9]+`)
	d.shows(page, "")
	d.prints(`all 120 rows have their results$`)
	d.prints(`^the outage, .*: [1-9][0-9]* calls without an answer, 0 rows failed`)
	d.prints(`^the kill: partition [01] taken over after `)
	d.prints(`^proven: `)
	d.prints(`^the dashboard stays at ` + regexp.QuoteMeta(page) + ` until Ctrl-C$`)
	d.shows(page, "idle")
	stagetest.Must(t, d.cmd.Process.Signal(syscall.SIGTERM))
	d.end(0)
}

// A Ctrl-C reaches the replicas, too: the terminal signals its whole group of processes. A
// SIGKILL, which a system short of memory sends, leaves the demo no time to end them.
func TestNoProcessOfTheDemoOutlivesIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		signal syscall.Signal
		all    bool // it goes to all processes of the demo
		code   int
	}{{syscall.SIGINT, true, 130}, {syscall.SIGTERM, false, 130}, {syscall.SIGKILL, false, -1}} {
		d := startDemo(t, "--chaos")
		d.prints(`both work`)
		pid := d.cmd.Process.Pid
		if tt.all {
			pid = -pid
		}
		stagetest.Must(t, syscall.Kill(pid, tt.signal))
		d.end(tt.code)
	}
}
