//go:build real

package real

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// jobTimeout bounds one run of the program, setupTimeout the installation of a server.
	jobTimeout   = 5 * time.Minute
	setupTimeout = 5 * time.Minute
	// endTimeout is how long a server has to end by itself.
	endTimeout = 10 * time.Second
)

// program is the path of the binary, built once.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "stage-real-")
	if err == nil {
		program = filepath.Join(dir, "stage")
		build := exec.CommandContext(context.Background(), "go", "build", "-o", program, "github.com/llm-stage/stage/cmd/stage")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
	} else {
		code = m.Run()
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// environment is the complete environment of a process that a test starts: it inherits no variable.
func environment(variables map[string]string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		env = append(env, name+"="+variables[name])
	}
	return env
}

// serve starts a server that ends with the test, or with the test's process if that is killed. It returns what the
// server prints, to be read line by line.
func serve(t *testing.T, variables map[string]string, path string, args ...string) *bufio.Scanner {
	t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...) // the context ends before the clean-up begins
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endTimeout
	cmd.Env = environment(variables)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &said
	stagetest.Must(t, cmd.Start())
	_ = w.Close() // the server has its own copy
	t.Cleanup(func() {
		_ = cmd.Wait() // a signal ended it
		_ = out.Close()
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(path), &said)
		}
	})
	return bufio.NewScanner(out)
}

// mock starts the program's own LLM and returns its address, as host:port.
func mock(t *testing.T, args ...string) string {
	t.Helper()
	lines := serve(t, nil, program, append([]string{"mockllm", "--addr", "127.0.0.1:0"}, args...)...)
	if !lines.Scan() {
		t.Fatal("the mock printed no address")
	}
	var host string
	if _, err := fmt.Sscanf(lines.Text(), "http://%s", &host); err != nil {
		t.Fatalf("the mock printed %q: %v", lines.Text(), err)
	}
	return filepath.Dir(host) // without /v1
}

// run is one job of stage process that has ended.
type run struct {
	results []result
	calls   []auditlog.Call // in the order of the audit
	took    time.Duration
	summary string // the last line of the log
}

type result struct {
	ID       int             `json:"id"`
	Text     string          `json:"text"`
	Response json.RawMessage `json:"llm_response"`
	Error    json.RawMessage `json:"llm_response_error"`
	Usage    json.RawMessage `json:"llm_response_usage"`
}

// text is the text of row i.
func text(i int) string { return fmt.Sprintf("row %04d", i) }

// process takes n rows through stage process and reads what it has left behind.
func process(t *testing.T, n int, variables map[string]string) *run {
	t.Helper()
	dir := t.TempDir()
	var rows bytes.Buffer
	for i := range n {
		fmt.Fprintf(&rows, "{\"id\":%d,\"text\":%q}\n", i, text(i))
	}
	in, out, data := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "out.jsonl"), filepath.Join(dir, "data")
	stagetest.Must(t, os.WriteFile(in, rows.Bytes(), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), jobTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "process", in, "-o", out, "--job", "real")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = endTimeout
	settings := map[string]string{
		"STAGE_DATA_DIR":  data,
		"STAGE_DATA_SYNC": "1s", // the disk is not what is tested
		"STAGE_HTTP_ADDR": "127.0.0.1:0",
		"STAGE_TEMPLATE":  "{{ row.text }}",
	}
	maps.Copy(settings, variables)
	cmd.Env = environment(settings)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	start := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("stage process: %v\n%s", errors.Join(err, context.Cause(ctx)), &log)
	}
	r := &run{took: time.Since(start)}
	lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
	r.summary = string(lines[len(lines)-1])
	if key := settings["STAGE_LLM_API_KEY"]; key != "" {
		holdsNot(t, dir, key)
		if bytes.Contains(log.Bytes(), []byte(key)) {
			t.Error("the key is in the log")
		}
	}
	r.results = readResults(t, out)
	r.calls = readCalls(t, filepath.Join(data, "real"))
	return r
}

// holdsNot looks for a secret in all files below dir.
func holdsNot(t *testing.T, dir, secret string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("the key is in %s", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func readResults(t *testing.T, path string) []result {
	t.Helper()
	f := stagetest.Value(os.Open(path))(t)
	defer f.Close() //nolint:errcheck // read only
	var results []result
	for d := json.NewDecoder(f); ; {
		var r result
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			return results
		} else if err != nil {
			t.Fatalf("result %d: %v", len(results), err)
		}
		results = append(results, r)
	}
}

// readCalls reads the call events from the store that a job has left.
func readCalls(t *testing.T, dir string) []auditlog.Call {
	t.Helper()
	server := stagetest.Value(natsd.Start(natsd.Config{Dir: dir, NoListen: true}))(t)
	defer server.Stop()
	nc := stagetest.Value(server.Connect(nats.Name("test")))(t)
	defer nc.Close()
	js := stagetest.Value(jetstream.New(nc))(t)
	events, err := js.OrderedConsumer(t.Context(), "AUDIT", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"audit.stage.*.call"}})
	if err != nil {
		t.Fatal(err)
	}
	info := stagetest.Value(events.Info(t.Context()))(t)
	calls := make([]auditlog.Call, 0, info.NumPending)
	for range info.NumPending {
		m, err := events.Next(jetstream.FetchMaxWait(endTimeout))
		if err != nil {
			t.Fatalf("call event %d of %d: %v", len(calls), info.NumPending, err)
		}
		event, err := auditlog.Decode(m.Data())
		if err != nil || event.Call == nil {
			t.Fatalf("call event %s: %v", m.Data(), err)
		}
		calls = append(calls, *event.Call)
	}
	return calls
}

// inOrder checks that each of n rows has one result, in order and without an error.
func (r *run) inOrder(t *testing.T, n int) {
	t.Helper()
	if len(r.results) != n {
		t.Errorf("%d results, want %d", len(r.results), n)
	}
	for i, got := range r.results {
		if got.ID != i || got.Text != text(i) || len(got.Response) == 0 || got.Error != nil {
			t.Fatalf("result %d: %+v, error %s", i, got, got.Error)
		}
	}
}

// statuses counts calls by status, as "429 capacity_retry"; a call without a reply counts under 0.
func (r *run) statuses() map[string]int {
	counts := map[string]int{}
	for _, c := range r.calls {
		counts[strconv.Itoa(c.StatusCode)+" "+string(c.Status)]++
	}
	return counts
}
