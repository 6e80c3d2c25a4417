//go:build long

package stage_test

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// lastResort is part of what the program prints when the second signal had to end it by force.
const lastResort = "after the second signal, exiting"

// pipe returns the ends of an OS pipe.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.Close()
		_ = w.Close()
	})
	return r, w
}

// The first signal ends commands that wait for a writer or a reader.
func TestOneSignalEndsWaitingForInputAndOutput(t *testing.T) {
	t.Parallel()
	const rows = 600 // whose results fill a pipe
	for _, tt := range []struct {
		name    string
		args    []string
		endless bool // standard input
	}{
		{"process", []string{"process", "-", "--job", "job"}, true},
		{"dry run", []string{"process", "-", "--dry-run"}, true},
		{"load", []string{"load", "-", "--id", "x"}, true},
		{"batch", []string{"batch"}, true},
		{"process into a pipe that nobody reads", []string{"process", "rows.jsonl"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			llm, environ := realLLM(t, llmtest.Config{})
			dir := t.TempDir()
			stagetest.Must(t, os.Rename(writeRows(t, rows), filepath.Join(dir, "rows.jsonl")))
			r, w := pipe(t)
			p := runStageWith(t, dir, environ, func(cmd *exec.Cmd) {
				if tt.endless {
					cmd.Stdin = r
				} else {
					cmd.Stdout = w
				}
			}, tt.args...)
			if tt.endless {
				// More than a pipe holds: once it is written, the program is reading and catches signals.
				if _, err := w.WriteString(strings.Repeat(`{"n":1,"pad":"`+strings.Repeat("x", 10_000)+"\"}\n", 20)); err != nil {
					t.Fatal(err)
				}
			} else {
				eventually(t, "replies", func() bool { return llm.Stats().Answered >= rows })
			}
			select {
			case <-p.done:
				t.Fatal("it ended by itself")
			case <-time.After(time.Second):
			}
			p.signal(syscall.SIGINT)
			p.ends(130)
		})
	}
}

// A page that reads none of its events, and a proxy that never answers, do not keep a stage from stopping.
func TestTheSecondSignalEndsAStageWhosePeersAreSilent(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan net.Conn, 64)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			called <- conn // and sends nothing
		}
	})
	t.Cleanup(func() {
		_ = silent.Close()
		accepting.Wait()
	})
	_, environ := realLLM(t, llmtest.Config{})
	environ["STAGE_LLM_BASE_URL"] = "https://" + silent.Addr().String() + "/v1" // which begins no handshake
	environ["STAGE_NAME"] = "silent"
	p := runStage(t, t.TempDir(), environ, "process", writeRows(t, 20))
	var page net.Conn
	dashboard := regexp.MustCompile(`"dashboard":"(http://[^/]+/)"`)
	eventually(t, "the dashboard", func() bool { return dashboard.MatchString(p.stderr.String()) })
	address, err := url.Parse(dashboard.FindStringSubmatch(p.stderr.String())[1])
	if err == nil {
		page, err = net.Dial("tcp", address.Host) //nolint:noctx // immediate
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = page.Close() })
	stagetest.Value(fmt.Fprintf(page, "GET /api/events HTTP/1.1\r\nHost: %s\r\n\r\n", address.Host))(t)
	eventually(t, "a call", func() bool { return len(called) > 0 })
	twoSignals(t, p)
	p.ends(130)
	if text := p.stderr.String(); strings.Contains(text, lastResort) {
		t.Errorf("it had to be ended by force: %s", text)
	}
}

// twoSignals interrupts a program, and again when that has not ended it.
func twoSignals(t *testing.T, p *program) {
	t.Helper()
	p.signal(syscall.SIGINT)
	select {
	case <-p.done:
		t.Fatal("the first signal ended it")
	case <-time.After(time.Second):
	}
	p.signal(syscall.SIGINT)
}

// The last resort: nobody reads the log, so everything that logs hangs in a system call.
func TestTheSecondSignalEndsAProgramThatHangsInASystemCall(t *testing.T) {
	t.Parallel()
	_, environ := realLLM(t, llmtest.Config{})
	_, full := pipe(t)
	stagetest.Must(t, full.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	if _, err := full.Write(make([]byte, 4<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a pipe takes 4 MiB: %v", err)
	}
	dir := t.TempDir()
	p := runStageWith(t, dir, environ, func(cmd *exec.Cmd) { cmd.Stderr = full }, "process", writeRows(t, 10))
	eventually(t, "the start", func() bool { // signals are caught by then, and the next line of the log hangs
		found, err := filepath.Glob(filepath.Join(dir, "stage-data", "*", "nats.json"))
		return err == nil && len(found) > 0
	})
	twoSignals(t, p)
	select {
	case <-p.done:
	case <-time.After(realPatience):
		t.Fatal("the process did not end")
	}
	// On a busy machine the command may be over by the first signal, and hang in its last words. Then it no longer catches
	// signals, and the second one itself ends it.
	state := p.cmd.ProcessState
	status, ok := state.Sys().(syscall.WaitStatus)
	bySignal := ok && status.Signaled() && status.Signal() == syscall.SIGINT
	if state.ExitCode() != 130 && !bySignal {
		t.Errorf("ended with %v, want exit code 130, or the signal", state)
	}
}
