//go:build oldserver

package oldserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// patience is how long a test waits, far longer than a loaded machine needs.
const patience = 2 * time.Minute

// release is a release of nats-server: its module's version, and the checksum by which go.sum would know it.
type release struct{ version, sum string }

// The newest of each minor version.
var (
	v2_10 = release{"v2.10.29", "h1:IJ8TrZaiMZUrPGavMvP7hNAE9lYnHTThuthpwlsdlbc="}
	v2_11 = release{"v2.11.17", "h1:GKEghcFK6A+aFx11Yf1LjgLC3txAwvyhnYzhBIQZA8I="}
	v2_12 = release{"v2.12.15", "h1:ETr9+LamgSyw+70x1iJm4J9m//sN5KSChQWk4uxJJJo="}
)

func TestOlderServersServeAStageOverAKillATakeOverAndARestart(t *testing.T) {
	for _, version := range []release{v2_12, v2_11} {
		t.Run(version.version, func(t *testing.T) {
			s := newSite(t, version)
			const rows, pool = 300, 16
			first := s.start("run")
			eventually(t, "the durable", func() bool {
				_, err := s.js.Consumer(t.Context(), "ROWS", "stage-0")
				return err == nil
			})
			s.load(rows)
			eventually(t, "the first calls", func() bool { return s.llm.Stats().Received > 0 })
			second := s.start("run")
			eventually(t, "a third of the calls", func() bool { return s.llm.Stats().Received >= rows/3 })
			first.kill()
			eventually(t, "half of the calls", func() bool { return s.llm.Stats().Received >= rows/2 })
			s.restartNATS()
			s.start("run")
			eventually(t, "two thirds of the calls", func() bool { return s.llm.Stats().Received >= 2*rows/3 })
			stagetest.Must(t, second.cmd.Process.Signal(os.Interrupt))
			eventually(t, "the last result", func() bool { return s.results() >= rows })
			s.check(rows)
			if calls := s.llm.Stats().Received; calls > rows+4*pool {
				t.Errorf("%d calls for %d rows: more than a kill and a restart may cost", calls, rows)
			} else {
				t.Logf("%d calls for %d rows", calls, rows)
			}
			if verify := s.start("verify"); !verify.ended() || verify.cmd.ProcessState.ExitCode() != 0 {
				t.Errorf("verify: %s", verify.output.String())
			}
		})
	}
}

func TestAServerThatIsTooOldIsRefused(t *testing.T) {
	s := newSite(t, v2_10)
	run := s.start("run")
	if !run.ended() || run.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(run.output.String(), "version 2.10.29 has no pinned consumers: use 2.11 or newer") {
		t.Errorf("%v: %s", run.cmd.ProcessState, run.output.String())
	}
}

// On a work queue a consumer that is deleted and created again would give rows to others, or lose them.
func TestAWorkQueueOnAnOldServerIsRefused(t *testing.T) {
	s := newSite(t, v2_12)
	cfg := jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, Retention: jetstream.WorkQueuePolicy}
	stagetest.Value(s.js.CreateStream(t.Context(), cfg))(t)
	s.load(1)
	run := s.start("run")
	if !run.ended() || run.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(run.output.String(), "can't set a consumer back") {
		t.Errorf("%v: %s", run.cmd.ProcessState, run.output.String())
	}
}

// site is a server, an LLM, and what runs between them.
type site struct {
	t    *testing.T
	dir  string
	nats string // the program
	port int
	srv  *process
	llm  *llmtest.Server
	base string // URL of the LLM
	js   jetstream.JetStream
}

func newSite(t *testing.T, server release) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), port: -1}
	s.nats = filepath.Join(s.dir, "nats-server")
	build(t, server.source(t), s.nats, ".")
	build(t, "../..", filepath.Join(s.dir, "stage"), "./cmd/stage")
	var err error
	if s.llm, err = llmtest.New(llmtest.Config{Latency: 200 * time.Millisecond, LatencySigma: .5}); err != nil {
		t.Fatal(err)
	}
	socket := httptest.NewServer(s.llm)
	t.Cleanup(socket.Close)
	s.base = socket.URL + "/v1"
	s.startNATS()
	nc := stagetest.Value(nats.Connect(s.url(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond)))(t)
	t.Cleanup(nc.Close)
	if got := nc.ConnectedServerVersion(); "v"+got != server.version {
		t.Fatalf("the server is %s, want %s", got, server.version)
	}
	if s.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return s
}

// source returns the directory of the server's source. It is built there as the main module, so the server's own go.mod
// and go.sum pin its dependencies; a module of ours for each version would only repeat them.
func (r release) source(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/nats-io/nats-server/v2@"+r.version)
	out, err := cmd.Output()
	var module struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &module); err != nil || jsonErr != nil {
		t.Fatalf("download nats-server %s: %v %v %s", r.version, err, jsonErr, module.Error)
	}
	if module.Sum != r.sum {
		t.Fatalf("nats-server %s has the checksum %s, want %s", r.version, module.Sum, r.sum)
	}
	return module.Dir
}

func build(t *testing.T, dir, path, pkg string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s in %s: %v\n%s", pkg, dir, err, out)
	}
}

func (s *site) url() string { return "nats://127.0.0.1:" + strconv.Itoa(s.port) }

// startNATS starts the server on any free port, and after that on the same.
func (s *site) startNATS() {
	s.t.Helper()
	s.srv = s.run(nil, s.nats, "-js", "-sd", filepath.Join(s.dir, "store"), "-a", "127.0.0.1", "-p", strconv.Itoa(s.port), "--ports_file_dir", s.dir)
	ports := filepath.Join(s.dir, fmt.Sprintf("nats-server_%d.ports", s.srv.cmd.Process.Pid))
	eventually(s.t, "nats-server", func() bool {
		text, err := os.ReadFile(ports)
		var found struct{ Nats []string }
		if err != nil || json.Unmarshal(text, &found) != nil || len(found.Nats) == 0 {
			return false
		}
		_, port, _ := strings.Cut(strings.TrimPrefix(found.Nats[0], "nats://"), ":")
		s.port, err = strconv.Atoi(port)
		return err == nil
	})
}

func (s *site) restartNATS() {
	s.t.Helper()
	s.srv.kill()
	s.startNATS()
}

// start starts a command of the stage.
func (s *site) start(args ...string) *process {
	s.t.Helper()
	return s.run([]string{
		"STAGE_NATS_URL=" + s.url(), "STAGE_LLM_BASE_URL=" + s.base, "STAGE_LLM_MODEL=m", "STAGE_POOL_SIZE=16",
		"STAGE_TEMPLATE=Row {{ row.n }}", "STAGE_HTTP_ADDR=127.0.0.1:0",
	}, filepath.Join(s.dir, "stage"), args...)
}

func (s *site) load(rows int) {
	s.t.Helper()
	for i := range rows {
		stagetest.Value(s.js.Publish(s.t.Context(), "rows.a", fmt.Appendf(nil, `{"n":%d}`, i+1)))(s.t)
	}
}

const resultSubject = "results.stage.0.rows"

func (s *site) results() uint64 {
	stream, err := s.js.Stream(s.t.Context(), "RESULTS")
	if err != nil {
		return 0
	}
	info, err := stream.Info(s.t.Context(), jetstream.WithSubjectFilter(resultSubject))
	if err != nil {
		return 0
	}
	return info.State.Subjects[resultSubject]
}

// check reads the results: those of rows 1 to n, each once, in order.
func (s *site) check(n int) {
	s.t.Helper()
	c, err := s.js.OrderedConsumer(s.t.Context(), "RESULTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{resultSubject}})
	if err != nil {
		s.t.Fatal(err)
	}
	batch := stagetest.Value(c.Fetch(n+1, jetstream.FetchMaxWait(time.Second)))(s.t)
	i := 0
	for m := range batch.Messages() {
		i++
		var row struct {
			N      int
			Answer string `json:"llm_response"`
		}
		if err := json.Unmarshal(m.Data(), &row); err != nil || row.N != i || row.Answer != llmtest.Answer(fmt.Sprintf("Row %d", i)) {
			s.t.Errorf("result %d: %v: %s", i, err, m.Data())
		}
	}
	if i != n {
		s.t.Errorf("%d results, want %d", i, n)
	}
}

// process is a running program.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	output stagetest.Buffer
	done   chan struct{} // closed when it has ended
}

func (s *site) run(environ []string, path string, args ...string) *process {
	s.t.Helper()
	p := &process{t: s.t, cmd: exec.CommandContext(s.t.Context(), path, args...), done: make(chan struct{})}
	p.cmd.Dir = s.dir
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, environ...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	stagetest.Must(s.t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // see ProcessState
		close(p.done)
	}()
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			s.t.Logf("%s %s: %v\n%s", filepath.Base(path), strings.Join(args, " "), p.cmd.ProcessState, p.output.String())
		}
	})
	return p
}

// kill ends the process as a power cut would, except for the disk.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
	<-p.done
}

// ended waits for the process to end, and reports whether it did.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	case <-time.After(patience):
		return false
	}
}

// eventually waits in real time until a condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !is(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}
