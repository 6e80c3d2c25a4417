package stage_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/llm/llmtest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsServer builds the server from the module that this one names.
var natsServer = sync.OnceValues(func() (string, error) {
	path := filepath.Join(shared, "nats-server")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build nats-server: %w\n%s", err, out)
	}
	return path, nil
})

// startNATS starts a server in a directory, on a port or, with port -1, any free one, and returns its address.
func startNATS(t *testing.T, dir string, port int, args ...string) (server *program, address string) {
	t.Helper()
	path, err := natsServer()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-js", "-sd", filepath.Join(dir, "store"), "-a", "127.0.0.1", "-p", strconv.Itoa(port), "--ports_file_dir", dir}, args...)
	server = runProgram(t, dir, nil, path, args...)
	ports := filepath.Join(dir, fmt.Sprintf("nats-server_%d.ports", server.cmd.Process.Pid))
	eventually(t, "nats-server", func() bool {
		text, err := os.ReadFile(ports)
		var found struct{ Nats []string }
		if err != nil || json.Unmarshal(text, &found) != nil || len(found.Nats) == 0 {
			return false
		}
		address = found.Nats[0]
		return true
	})
	return server, address
}

func TestRunServesThroughKillsOfStageAndServer(t *testing.T) {
	t.Parallel()
	const rows = 240
	_, environ := realLLM(t, llmtest.Config{Latency: 300 * time.Millisecond, LatencySigma: .5})
	dir := t.TempDir()
	server, address := startNATS(t, dir, -1)
	environ["STAGE_NATS_URL"] = address
	nc, err := nats.Connect(address, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stored := func() int {
		s, err := js.Stream(t.Context(), "RESULTS")
		if err != nil {
			return 0
		}
		info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("results.stage.0.rows"))
		if err != nil {
			return 0
		}
		return int(info.State.Subjects["results.stage.0.rows"])
	}

	input := writeRows(t, rows)
	load := runStage(t, dir, environ, "load", input)
	load.ends(0)
	if text := load.stderr.String(); !strings.Contains(text, "240 rows loaded") {
		t.Errorf("load said %s", text)
	}
	replicas := []*program{runStage(t, dir, environ, "run"), runStage(t, dir, environ, "run")}
	for i, n := range []int{40, 80} { // each replica is killed once, and with that each owner
		eventually(t, fmt.Sprintf("%d results", n), func() bool { return stored() >= n })
		replicas[i].kill()
		replicas[i] = runStage(t, dir, environ, "run")
	}
	eventually(t, "120 results", func() bool { return stored() >= 120 })
	server.kill()
	where, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(where.Port())
	if err != nil {
		t.Fatal(err)
	}
	startNATS(t, dir, port)
	eventually(t, "all results", func() bool { return stored() >= rows })
	for _, r := range replicas {
		r.signal(syscall.SIGTERM)
	}
	for _, r := range replicas {
		r.ends(0)
	}

	results := runStage(t, dir, environ, "results")
	results.ends(0)
	checkRows(t, results.stdout.String(), rows)
	again := runStage(t, dir, environ, "load", input)
	again.ends(0)
	if text := again.stderr.String(); !strings.Contains(text, "0 rows loaded") || !strings.Contains(text, "240 were there before") {
		t.Errorf("load said %s", text)
	}
	runStage(t, dir, environ, "verify").ends(0)
}

func TestAMissingPermissionIsNamed(t *testing.T) {
	t.Parallel()
	_, environ := realLLM(t, llmtest.Config{})
	dir := t.TempDir()
	config := file(t, "nats.conf", `authorization { users = [{user: poor, password: p, permissions: {publish: ["rows.>"], subscribe: [">"]}}] }`)
	_, address := startNATS(t, dir, -1, "-c", config)
	environ["STAGE_NATS_URL"], environ["STAGE_NATS_USER"] = address, "poor"
	environ["STAGE_NATS_PASSWORD"] = "wrong"
	wrong := runStage(t, dir, environ, "run")
	wrong.ends(1)
	if text := wrong.stderr.String(); !strings.Contains(text, "Authorization Violation: check STAGE_NATS_CREDS") || strings.Contains(text, "wrong") {
		t.Errorf("a wrong password: %s", text)
	}
	environ["STAGE_NATS_PASSWORD"] = "p"
	denied := runStage(t, dir, environ, "run")
	denied.ends(1)
	if text := denied.stderr.String(); !strings.Contains(text, "STAGE_INPUT_STREAM: ") || !strings.Contains(text, `Permissions Violation for Publish to "$JS.API.STREAM.INFO.ROWS"`) {
		t.Errorf("a missing permission: %s", text)
	}
}
