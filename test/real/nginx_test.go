//go:build real

package real

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"text/template"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// nginxConfig is a complete configuration: nothing of the machine's own is read.
var nginxConfig = template.Must(template.New("nginx.conf").Parse(`
daemon off;
master_process off;
pid {{.Dir}}/nginx.pid;
error_log stderr warn;
events { worker_connections 512; }
http {
	log_format calls '$msec $request_time $status $http_x_stage';
	access_log {{.Dir}}/access.log calls;
	client_body_temp_path {{.Dir}}/body;
	proxy_temp_path {{.Dir}}/proxy;
	fastcgi_temp_path {{.Dir}}/fastcgi;
	uwsgi_temp_path {{.Dir}}/uwsgi;
	scgi_temp_path {{.Dir}}/scgi;
	limit_req_zone $server_name zone=calls:1m rate={{.Rate}}r/s;
	limit_conn_zone $server_name zone=conns:1m;
	limit_req_log_level info;
	limit_conn_log_level info;
	upstream mock { server {{.Mock}}; keepalive 64; }
	server {
		listen {{.Listen}};
		server_name llm; # the key of the limits; an empty one would not be limited
		{{.Limits}}
		location / {
			proxy_pass http://mock;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`))

// logged is one line of the access log.
type logged struct {
	start, end float64 // Unix time in seconds
	status     int
	stage      string // the header X-Stage; "-": none
}

func TestRowsComeThroughTheLimitsOfNginxInOrder(t *testing.T) {
	t.Parallel()
	nginx := nginxPath(t)
	const latency = 0.2 // seconds a call
	upstream := mock(t, "--latency", "200ms", "--latency-sigma", "0.2")
	tests := []struct {
		name   string
		limits string
		rows   int
		rate   int // of the limit on the rate, a second; 0: no such limit
		conns  int // of the limit on calls at a time; 0: no such limit
		status int
	}{
		{"limit_req", "limit_req zone=calls burst=5 nodelay;", 500, 50, 0, 503},
		{"limit_req 429", "limit_req zone=calls burst=5 nodelay; limit_req_status 429;", 500, 50, 0, 429},
		{"limit_req that queues", "limit_req zone=calls burst=20 delay=5;", 500, 50, 0, 503},
		{"limit_conn", "limit_conn conns 8;", 400, 0, 8, 503},
		{"both", "limit_req zone=calls burst=5 nodelay; limit_conn conns 12; limit_conn_status 429;", 500, 50, 12, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addr, log := startNginx(t, nginx, upstream, tt.limits, max(tt.rate, 1))
			r := process(t, tt.rows, map[string]string{
				"STAGE_LLM_PROVIDER": "mock", "STAGE_LLM_BASE_URL": "http://" + addr + "/v1", "STAGE_POOL_SIZE": "32",
			})
			r.inOrder(t, tt.rows)
			for i, got := range r.results {
				var answer string
				if err := json.Unmarshal(got.Response, &answer); err != nil || answer != llmtest.Answer(text(i)) {
					t.Fatalf("row %d is answered %s, %v", i, got.Response, err)
				}
			}
			calls := readLog(t, log)
			capacity := float64(tt.rate)
			if tt.conns > 0 && (capacity == 0 || float64(tt.conns)/latency < capacity) {
				capacity = float64(tt.conns) / latency
			}
			first, last, rejected := calls[0].start, 0.0, 0
			for _, c := range calls {
				first, last = min(first, c.start), max(last, c.start)
				switch {
				case c.status == 200:
				case c.status != 503 && c.status != 429 || tt.status != 0 && c.status != tt.status:
					t.Fatalf("nginx answered %d", c.status)
				default:
					rejected++
				}
			}
			waste := float64(rejected) / float64(len(calls))
			t.Logf("%d rows in %.1fs: %.0f%% of the capacity of %.0f calls/s used, %d of %d calls rejected (%.1f%%)\n%s",
				tt.rows, last-first, 100*float64(tt.rows)/(last-first)/capacity, capacity, rejected, len(calls), 100*waste, r.summary)
			// A pool that did not slow down would have most of its calls rejected; how many it takes to find the limit
			// weighs more in so short a run than in a day's.
			if rejected == 0 {
				t.Error("no call was rejected: the limits of nginx are not at work")
			}
			if waste > 0.25 {
				t.Errorf("%d of %d calls were rejected: the throttle does not find the limit", rejected, len(calls))
			}
			if len(r.calls) != len(calls) {
				t.Errorf("the audit has %d calls %v, nginx has logged %d", len(r.calls), r.statuses(), len(calls))
			}
		})
	}
}

// installing has the tests, which run in parallel, install one after the other: apt-get does not wait for its own lock.
var installing sync.Mutex

// nginxPath returns the path of nginx, and installs its Debian package first if it is missing and we may.
func nginxPath(t *testing.T) string {
	t.Helper()
	const name, pack = "nginx", "nginx-light"
	installing.Lock()
	defer installing.Unlock()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if os.Getuid() != 0 {
		t.Fatalf("%v: run apt-get install %s", err, pack)
	}
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	for _, args := range [][]string{{"update", "-q"}, {"install", "-q", "-y", "--no-install-recommends", pack}} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("apt-get %v: %v\n%s", args, err, out)
		}
	}
	if path, err = exec.LookPath(name); err != nil {
		t.Fatal(err)
	}
	return path
}

// startNginx starts an nginx that passes calls on to upstream within the limits.
func startNginx(t *testing.T, path, upstream, limits string, rate int) (addr, log string) {
	t.Helper()
	dir := t.TempDir()
	addr = freeAddress(t)
	var config bytes.Buffer
	if err := nginxConfig.Execute(&config, map[string]any{
		"Dir": dir, "Rate": rate, "Mock": upstream, "Listen": addr, "Limits": limits,
	}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "nginx.conf")
	stagetest.Must(t, os.WriteFile(file, config.Bytes(), 0o600))
	serve(t, nil, path, "-p", dir, "-c", file, "-e", "stderr")
	answers(t, addr)
	return addr, filepath.Join(dir, "access.log")
}

// freeAddress returns a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(stagetest.FreePort(t)))
}

// answers waits until somebody listens on addr.
func answers(t *testing.T, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), endTimeout)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = conn.Close() // it was only to see
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("nobody listens on %s: %v", addr, err)
		}
	}
}

func readLog(t *testing.T, path string) []logged {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var calls []logged
	for line := range bytes.Lines(raw) {
		var c logged
		var took float64
		var status string
		if _, err := fmt.Sscan(string(line), &c.end, &took, &status, &c.stage); err != nil {
			t.Fatalf("access log: %q: %v", line, err)
		}
		c.start = c.end - took
		if c.status, err = strconv.Atoi(status); err != nil {
			t.Fatalf("access log: %q: %v", line, err)
		}
		calls = append(calls, c)
	}
	return calls
}
