//go:build long

package stage_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
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
	path := stagetest.Value(natsServer())(t)
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

func TestAMissingPermissionIsNamed(t *testing.T) {
	t.Parallel()
	_, environ := realLLM(t, llmtest.Config{})
	dir := t.TempDir()
	config := stagetest.File(t, "nats.conf", `authorization { users = [{user: poor, password: p, permissions: {publish: ["rows.>"], subscribe: [">"]}}] }`)
	_, address := startNATS(t, dir, -1, "-c", config)
	environ["STAGE_NATS_URL"], environ["STAGE_NATS_USER"] = address, "poor"
	environ["STAGE_NATS_PASSWORD"] = "wrong"
	wrong := runStage(t, dir, environ, "run")
	wrong.ends(1)
	if text := wrong.stderr.String(); !strings.Contains(text, "Authorization Violation: check STAGE_NATS_USER and STAGE_NATS_PASSWORD") || strings.Contains(text, "wrong") {
		t.Errorf("a wrong password: %s", text)
	}
	environ["STAGE_NATS_PASSWORD"] = "p"
	denied := runStage(t, dir, environ, "run")
	denied.ends(1)
	if text := denied.stderr.String(); !strings.Contains(text, "STAGE_INPUT_STREAM: ") || !strings.Contains(text, `Permissions Violation for Publish to "$JS.API.STREAM.INFO.ROWS"`) {
		t.Errorf("a missing permission: %s", text)
	}
}

func TestAStopBeforeTheConnectionIsMadeIsClean(t *testing.T) {
	t.Parallel()
	silent := stagetest.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	soft, stop := context.WithCancelCause(t.Context())
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		if conn, err := silent.Accept(); err == nil { // sends nothing, like a server behind a broken network
			stop(&stopping.InterruptError{Signal: syscall.SIGTERM})
			<-t.Context().Done()
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = silent.Close()
		<-accepting
	})
	_, environ := realLLM(t, llmtest.Config{})
	environ["STAGE_NATS_URL"], environ["STAGE_HTTP_ADDR"] = "nats://"+silent.Addr().String(), "127.0.0.1:0"
	cfg := stagetest.Value(stagetest.Source(environ).Load(t.Context(), config.NeedCalls))(t)
	if err := stage.Run(soft, t.Context(), cfg, stage.Deps{MockLLM: llmtest.Config{}.Start, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Errorf("run: %v, want none", err)
	}
}
