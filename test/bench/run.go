package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// site is what the runs share: a server in its own process, and the programs.
type site struct {
	dir, self, stage string
	profile          string // of the stage; empty: the program as it is built for users
	serverProfile    string // of the server, while the stage has its turn; empty: none
	server           *exec.Cmd
	url, pprof       string // of the server; pprof only for a profile
	nc               *nats.Conn
	js               jetstream.JetStream
}

// open builds the programs and starts the server.
func open(ctx context.Context, dir, serverProfile string) (s *site, err error) {
	s = &site{dir: dir, stage: filepath.Join(dir, "stage"), serverProfile: serverProfile}
	if s.self, err = os.Executable(); err != nil {
		return s, err
	}
	natsPath := filepath.Join(dir, "nats-server")
	for path, pack := range map[string]string{natsPath: "github.com/nats-io/nats-server/v2", s.stage: "github.com/llm-stage/stage/cmd/stage"} {
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", path, pack).CombinedOutput(); err != nil {
			return s, fmt.Errorf("go build %s: %w\n%s", pack, err, out)
		}
	}
	config := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:-1\"\nports_file_dir: %q\njetstream { store_dir: %q }\nmax_payload: 8MB\n", dir, filepath.Join(dir, "store"))
	if s.serverProfile != "" {
		text += "prof_port: -1\n"
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return s, err
	}
	s.server = exec.CommandContext(ctx, natsPath, "-c", config)
	s.server.Cancel = func() error { return s.server.Process.Signal(syscall.SIGTERM) }
	s.server.WaitDelay = 10 * time.Second
	if err := s.server.Start(); err != nil {
		return s, err
	}
	for range 200 {
		files, err := filepath.Glob(filepath.Join(dir, "*.ports"))
		if err != nil {
			return s, err
		}
		var ports struct {
			NATS    []string `json:"nats"`
			Profile []string `json:"profile"`
		}
		if len(files) > 0 {
			if raw, err := os.ReadFile(files[0]); err == nil && json.Unmarshal(raw, &ports) == nil && len(ports.NATS) > 0 {
				s.url = ports.NATS[0]
				s.pprof = strings.Join(ports.Profile, "")
				break
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	if s.nc, err = nats.Connect(s.url); err != nil {
		return s, fmt.Errorf("connect to the server at %q: %w", s.url, err)
	}
	s.js, err = jetstream.New(s.nc)
	return s, err
}

func (s *site) close() {
	if s.nc != nil {
		s.nc.Close()
	}
	if s.server != nil && s.server.Process != nil {
		_ = s.server.Process.Signal(syscall.SIGTERM)
		_ = s.server.Wait() // a signal ended it
	}
}

// scenario is a job that several contenders do.
type scenario struct {
	name, about   string
	rows          int
	pool          int
	rowBytes      int
	latency, slow time.Duration
	contenders    []string // the stage first
}

// rowBody is row n: a question of 200 bytes in rowBytes.
func (sc *scenario) row(n int) []byte {
	mark := "-"
	if sc.slow > 0 && n%100 == 50 {
		mark = slowMark
	}
	return fmt.Appendf(nil, `{"n":%d,"q":"%s %s","text":%q}`, n, mark, strings.Repeat("q", 190), strings.Repeat("x", max(0, sc.rowBytes-230)))
}

// lay makes the streams anew and loads rows.
func (s *site) lay(ctx context.Context, sc *scenario, rows int) error {
	for _, name := range []string{"ROWS", "RESULTS", "AUDIT", "JOURNAL"} {
		if err := s.js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
	}
	if err := consumer.EnsureStreams(ctx, s.nc, consumer.Streams{
		Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
		AuditStream: "AUDIT", AuditSubject: "audit", Partitions: 1, Create: true, Replicas: 1, Journal: true, JournalStream: "JOURNAL", JournalMaxBytes: 1 << 30,
	}); err != nil {
		return err
	}
	const group = 500
	for n := 0; n < rows; n += group {
		msgs := make([]*nats.Msg, min(group, rows-n))
		for i := range msgs {
			msgs[i] = &nats.Msg{Subject: "rows.a", Data: sc.row(n + i)}
		}
		if _, err := consumer.Append(ctx, s.nc, msgs); err != nil {
			return err
		}
	}
	return nil
}

// contend lets one contender do the job and measures it.
func (s *site) contend(ctx context.Context, sc *scenario, who string) (figures, error) {
	if err := s.lay(ctx, sc, sc.rows); err != nil {
		return figures{}, err
	}
	ctx, stop := context.WithTimeout(ctx, 10*time.Minute)
	defer stop()
	llm, err := s.startLLM(ctx, sc)
	if err != nil {
		return figures{}, err
	}
	cmd, out := s.contender(ctx, sc, who, llm)
	if err := cmd.Start(); err != nil {
		return figures{}, err
	}
	if who == "h" {
		if err := cmd.Wait(); err != nil {
			return figures{}, fmt.Errorf("%s: %w\n%s", who, err, out)
		}
		var f figures
		return f, json.Unmarshal(out.Bytes(), &f)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	f, err := s.watch(ctx, sc, cmd.Process.Pid, who == "stage" && s.serverProfile != "", ended)
	if err != nil {
		return f, fmt.Errorf("%s: %w\n%s", who, err, out)
	}
	if who == "stage" {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	if err := <-ended; err != nil {
		return f, fmt.Errorf("%s: %w\n%s", who, err, out)
	}
	return f, nil
}

// contender is the command of one.
func (s *site) contender(ctx context.Context, sc *scenario, who, llm string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, s.self, "-role", who, "-url", s.url, "-llm", llm, "-rows", strconv.Itoa(sc.rows), "-pool", strconv.Itoa(sc.pool))
	if who == "stage" {
		cmd = exec.CommandContext(ctx, s.stage, "run")
		if s.profile != "" {
			cmd = exec.CommandContext(ctx, s.self, "-role", who, "-profile", s.profile)
		}
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "STAGE_NATS_URL=" + s.url, "STAGE_LLM_BASE_URL=" + llm, "STAGE_LLM_MODEL=m",
			"STAGE_TEMPLATE={{ row.q }}", "STAGE_POOL_SIZE=" + strconv.Itoa(sc.pool), "STAGE_WINDOW=" + strconv.Itoa(max(4096, 4*sc.pool)),
			"STAGE_HTTP_ADDR=127.0.0.1:0", "STAGE_LOG_LEVEL=warn",
		}
	}
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd, out
}

// startLLM starts the LLM in its own process; it ends with ctx.
func (s *site) startLLM(ctx context.Context, sc *scenario) (url string, err error) {
	cmd := exec.CommandContext(ctx, s.self, "-role", "llm", "-latency", sc.latency.String(), "-slow", sc.slow.String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = cmd.Wait() })
	url, err = bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(url), err
}

// look is how often the results are counted.
const look = 50 * time.Millisecond

// watch counts the results until all are there. The last moment, when there is less and less to do, does not count.
func (s *site) watch(ctx context.Context, sc *scenario, pid int, profile bool, ended <-chan error) (figures, error) {
	results, err := s.js.Stream(ctx, "RESULTS")
	if err != nil {
		return figures{}, err
	}
	var first, warm, last sample
	profiled := make(chan error, 1)
	peak := 0.0
	for tick := time.NewTicker(look); ; <-tick.C {
		info, err := results.Info(ctx)
		if err != nil {
			return figures{}, err
		}
		now := sample{at: time.Now(), rows: int(info.State.Msgs), cpu: cpuOf(pid), server: cpuOf(s.server.Process.Pid)}
		switch {
		case now.rows >= sc.rows:
			if warm.at.IsZero() || last.rows <= warm.rows {
				return figures{}, fmt.Errorf("%d rows were done before the warm-up was over: give more", sc.rows)
			}
			f := between(warm, last)
			f.PeakMiB = peak
			if profile {
				return f, <-profiled
			}
			return f, nil
		case len(ended) > 0:
			return figures{}, fmt.Errorf("ended with %d of %d rows: %w", now.rows, sc.rows, <-ended)
		case now.rows == 0:
		case first.at.IsZero():
			first = now
		case warm.at.IsZero() && (now.at.Sub(first.at) > warmUp || now.rows > sc.rows/3):
			warm = now
			if profile {
				rest := time.Duration(float64(sc.rows-now.rows) / float64(now.rows-first.rows) * float64(now.at.Sub(first.at)))
				go func() { profiled <- s.profileServer(ctx, rest) }()
			}
		}
		last, peak = now, max(peak, peakOf(pid))
	}
}

// profileServer writes the server's CPU profile of the time that is left of a run.
func (s *site) profileServer(ctx context.Context, rest time.Duration) error {
	f, err := os.Create(s.serverProfile)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // what was not written shows when it is read
	url := fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", s.pprof, max(1, int(rest.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	_, err = io.Copy(f, resp.Body)
	return err
}
