//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
)

// demo is a stage demo that runs, in a process of its own.
type demo struct {
	t     *testing.T
	cmd   *exec.Cmd
	temp  string // where it keeps its store
	lines *bufio.Scanner
	// all ends when no process holds its standard error any more: the demo and those that it has started.
	all *os.File
}

// startDemo starts a demo on a free port. It is killed at the end of the test if it still runs.
func startDemo(t *testing.T, args ...string) *demo {
	t.Helper()
	all, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close() //nolint:errcheck // the process has its own
	d := &demo{t: t, temp: t.TempDir(), all: all}
	d.cmd = exec.CommandContext(t.Context(), "stage", append([]string{"demo", "--http-addr", "127.0.0.1:0"}, args...)...) //nolint:gosec // the program of this test
	d.cmd.Env, d.cmd.Stderr = append(os.Environ(), "TMPDIR="+d.temp), stderr
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
		_ = all.Close()
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
	}
	d.t.Fatalf("the demo has ended without a line that matches %s", pattern)
	return nil
}

// ends signals the demo, and wants it to end with 0 and to leave nothing behind.
func (d *demo) ends(signal syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(signal); err != nil {
		d.t.Fatal(err)
	}
	for d.lines.Scan() { // to the end, before Wait closes it
		d.t.Log(d.lines.Text())
	}
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("after %v: %v", signal, err)
	}
	if left, err := os.ReadDir(d.temp); err != nil || len(left) > 0 {
		d.t.Errorf("it has left %v, %v", left, err)
	}
}

// state asks a page for the state of its process.
func (d *demo) state(page string) string {
	d.t.Helper()
	request, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, page+"api/status", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		d.t.Fatal(err)
	}
	defer reply.Body.Close() //nolint:errcheck // it was read
	var status struct{ State string }
	if err := json.NewDecoder(reply.Body).Decode(&status); err != nil {
		d.t.Fatal(err)
	}
	return status.State
}

func TestTheDemoHoldsItsPageUntilASignal(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		d := startDemo(t, "--rows", "2", "--hold")
		page := d.prints(`^the dashboard stays at (http://[^ ]+) until Ctrl-C$`)[1]
		if got := d.state(page); got != "ended" {
			t.Errorf("the page shows %q, want ended", got)
		}
		d.ends(signal)
	}
}
