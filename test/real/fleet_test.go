//go:build real

package real

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsServer builds the nats-server that go.mod names, once. TestMain removes it.
var natsServer = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(program), "nats-server")
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build nats-server: %w\n%s", err, out)
	}
	return path, nil
})

// child is a program that a test starts, signals and starts again. It is killed at the end of the test, or when the
// test's process ends.
type child struct {
	t    *testing.T
	log  string // file that all its starts write to
	env  map[string]string
	path string
	args []string

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

func newChild(t *testing.T, name string, env map[string]string, path string, args ...string) *child {
	t.Helper()
	c := &child{t: t, log: filepath.Join(t.TempDir(), name+".log"), env: env, path: path, args: args}
	c.start()
	t.Cleanup(func() {
		c.kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, lastLines(c.said(), 30))
		}
	})
	return c
}

func (c *child) start() {
	c.t.Helper()
	log := stagetest.Value(os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(c.t)
	defer log.Close() //nolint:errcheck // the process has its own handle
	cmd := exec.CommandContext(context.WithoutCancel(c.t.Context()), c.path, c.args...)
	cmd.Env = environment(c.env)
	cmd.Dir = filepath.Dir(c.log)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stagetest.Must(c.t, cmd.Start())
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // stop looks at the exit code
		close(done)
	}()
	c.cmd, c.done = cmd, done
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Errorf("%s: %v", s, err)
	}
}

// kill ends the process at once and waits for its end.
func (c *child) kill() {
	c.t.Helper()
	c.signal(syscall.SIGKILL)
	<-c.done
}

// stop ends the process as a supervisor would. It must exit with 0.
func (c *child) stop() {
	c.t.Helper()
	c.signal(syscall.SIGTERM)
	select {
	case <-c.done:
		if code := c.cmd.ProcessState.ExitCode(); code != 0 {
			c.t.Errorf("%s ended with %d after SIGTERM", filepath.Base(c.log), code)
		}
	case <-time.After(endTimeout):
		c.t.Errorf("%s has not ended %v after SIGTERM", filepath.Base(c.log), endTimeout)
		c.kill()
	}
}

func (c *child) said() string {
	text, err := os.ReadFile(c.log)
	if err != nil {
		c.t.Error(err)
	}
	return string(text)
}

func lastLines(text string, n int) string {
	lines := strings.SplitAfter(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// fleet is some stages of different names on one nats-server.
type fleet struct {
	t       *testing.T
	nats    *child
	natsAt  string // host:port, the same after each start
	members []*member
	nc      *nats.Conn
	js      jetstream.JetStream
}

// member is a stage with an input stream of its own. The other streams it shares with the others.
type member struct {
	*child
	name string
	user string // that it logs in as, with the same password; empty: without a login
	http string // host:port of its metrics
	rows int
}

// newFleet starts nats-server, with more arguments, and stores rows for n stages. Where the server wants a login the
// test's is test.
func newFleet(t *testing.T, n, rows int, args ...string) *fleet {
	t.Helper()
	path, err := natsServer()
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, natsAt: freeAddress(t)}
	host, port, _ := strings.Cut(f.natsAt, ":")
	f.nats = newChild(t, "nats", nil, path, append([]string{"-js", "-sd", t.TempDir(), "-a", host, "-p", port}, args...)...)
	answers(t, f.natsAt)
	f.nc, err = nats.Connect("nats://"+f.natsAt, nats.Name("test"), nats.UserInfo("test", "test"), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.nc.Close)
	if f.js, err = jetstream.New(f.nc); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		f.members = append(f.members, &member{name: fmt.Sprintf("s%d", i+1), rows: rows})
		f.fill(f.members[i])
	}
	return f
}

// fill stores the rows of a stage.
func (f *fleet) fill(m *member) {
	f.t.Helper()
	subject := "rows." + m.name
	if _, err := f.js.CreateStream(f.t.Context(), jetstream.StreamConfig{Name: "ROWS-" + m.name, Subjects: []string{subject + ".>"}}); err != nil {
		f.t.Fatal(err)
	}
	for i := range m.rows {
		if _, err := f.js.PublishAsync(subject+".a", fmt.Appendf(nil, `{"id":%d,"text":%q}`, i, m.name+" "+text(i))); err != nil {
			f.t.Fatal(err)
		}
	}
	select {
	case <-f.js.PublishAsyncComplete():
	case <-time.After(setupTimeout):
		f.t.Fatal("nats-server does not store the rows")
	}
}

// run starts the stages, with these settings beside their own, and returns when all of them work.
func (f *fleet) run(settings map[string]string) {
	f.t.Helper()
	for _, m := range f.members {
		m.http = freeAddress(f.t)
		env := map[string]string{
			"STAGE_NATS_URL": "nats://" + f.natsAt, "STAGE_NATS_USER": m.user, "STAGE_NATS_PASSWORD": m.user, "STAGE_NAME": m.name,
			"STAGE_INPUT_STREAM": "ROWS-" + m.name, "STAGE_INPUT_SUBJECT": "rows." + m.name + ".>",
			"STAGE_LLM_PROVIDER": "mock", "STAGE_LLM_EXTRA_HEADERS": `{"X-Stage":"` + m.name + `"}`,
			"STAGE_TEMPLATE": "{{ row.text }}", "STAGE_POOL_SIZE": "32", "STAGE_AUDIT_PAYLOADS": "hash", "STAGE_HTTP_ADDR": m.http,
		}
		maps.Copy(env, settings)
		m.child = newChild(f.t, m.name, env, program, "run")
	}
	for _, m := range f.members {
		answers(f.t, m.http)
	}
}

// running checks that no stage has ended by itself.
func (f *fleet) running() {
	f.t.Helper()
	for _, m := range f.members {
		select {
		case <-m.done:
			f.t.Fatalf("%s has ended by itself", m.name)
		default:
		}
	}
}

// done waits until all rows have results, ends the stages, and has each checked by stage verify.
func (f *fleet) done(within time.Duration) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), within)
	defer cancel()
	want := 0
	for _, m := range f.members {
		want += m.rows
	}
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		f.running()
		results := f.results(ctx)
		if results >= want {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.t.Fatalf("%d results of %d rows after %v", results, want, within)
		}
	}
	var all sync.WaitGroup
	for _, m := range f.members {
		all.Go(m.stop)
	}
	all.Wait()
	for _, m := range f.members {
		f.verify(m)
	}
}

// results is how many rows have one.
func (f *fleet) results(ctx context.Context) (n int) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := f.js.Stream(ctx, "RESULTS")
	if err != nil {
		return 0
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("results.*.*.rows"))
	if err != nil {
		return 0
	}
	for _, count := range info.State.Subjects {
		n += int(count)
	}
	return n
}

// verify has stage verify prove the results of a stage, and compares their number.
func (f *fleet) verify(m *member) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "verify", "--json")
	cmd.Env = environment(m.env)
	out, err := cmd.Output()
	if err != nil {
		f.t.Errorf("stage verify of %s: %v\n%s", m.name, err, out)
		return
	}
	var report struct {
		Partitions []struct{ Results, Succeeded int }
	}
	if err := json.Unmarshal(out, &report); err != nil || len(report.Partitions) != 1 {
		f.t.Fatalf("stage verify of %s: %v\n%s", m.name, err, out)
	}
	if p := report.Partitions[0]; p.Results != m.rows || p.Succeeded != m.rows {
		f.t.Errorf("%s has %d results of %d rows, %d of them succeeded", m.name, p.Results, m.rows, p.Succeeded)
	}
}

var modeLine = regexp.MustCompile(`(?m)^llm_stage_budget_mode\{.*mode="([a-z]+)".*\} 1$`)

// mode is what the stage's metrics say of its budget: leader, member or alone; empty: nothing.
func (m *member) mode(ctx context.Context) string {
	metrics, err := m.metrics(ctx)
	if err != nil {
		return ""
	}
	found := modeLine.FindSubmatch(metrics)
	if found == nil {
		return ""
	}
	return string(found[1])
}

func (m *member) metrics(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.http+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // read only
	return io.ReadAll(response.Body)
}

// modes counts the stages by mode.
func (f *fleet) modes() map[string]int {
	counts := make(map[string]int)
	for _, m := range f.members {
		counts[m.mode(f.t.Context())]++
	}
	return counts
}

// leader is the stage that leads; nil: none does.
func (f *fleet) leader() *member {
	for _, m := range f.members {
		if m.mode(f.t.Context()) == "leader" {
			return m
		}
	}
	return nil
}

// warnings are the lines of a stage's log that warn, or report an error, and contain text.
func (m *member) warnings(text string) (lines []string) {
	for line := range strings.Lines(m.said()) {
		if !strings.Contains(line, `"level":"INFO"`) && strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}
