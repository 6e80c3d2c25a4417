package dashboard

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/status"
)

// serveReport serves a report on an address until the test ends, and returns the port.
func serveReport(t *testing.T, addr string) (port string) {
	t.Helper()
	listener, err := Listen(t.Context(), addr, false, "STAGE_HTTP_ADDR")
	if err != nil {
		t.Fatal(err)
	}
	handlers := testHandlers()
	handlers.Status = func() any {
		return map[string]any{"stage": "reviews", "state": status.StateWorking, "of_a_later_version": 1}
	}
	server := NewServer(listener, config.HTTPConfig{Addr: addr}, handlers, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if _, port, err = net.SplitHostPort(listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	return port
}

// The same setting says where a stage listens and where it is asked, also if that is all
// interfaces.
func TestAStageIsAskedAtTheAddressOfItsSetting(t *testing.T) {
	for addr, asked := range map[string]string{"127.0.0.1:0": "127.0.0.1:", ":0": ":", "0.0.0.0:0": "0.0.0.0:", "localhost:0": "localhost:"} {
		reports, body, err := Ask(t.Context(), asked+serveReport(t, addr))
		if err != nil {
			t.Errorf("%s: %v", asked, err)
			continue
		}
		report := reports[0]
		if len(reports) != 1 || report.Stage != "reviews" || report.State != status.StateWorking || !strings.Contains(string(body), `"of_a_later_version":1`) {
			t.Errorf("%s: got %+v of %s", asked, report, body)
		}
	}
}

func TestAnAddressWithoutAStageSaysWhatToDo(t *testing.T) {
	long := `{"stage":"s","state":"idle","why":"` + strings.Repeat("x", statusMaxSize) + `"}`
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		want   string
	}{
		{"another server", http.NotFound, "what listens there is no stage: it answers with status 404: give with --http-addr the address"},
		{"a page", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, "what listens there is no stage: give"},          //nolint:errcheck // the client has gone
		{"other JSON", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"state":3}`) }, "what listens there is no stage: give"}, //nolint:errcheck // as above
		{"a list of something", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"stages":[{"stage":"a","state":"idle"},{}]}`) //nolint:errcheck // as above
		}, "what listens there is no stage: give"},
		{"null", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "null") }, "what listens there is no stage: give"},      //nolint:errcheck // as above
		{"without end", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long) }, "what listens there is no stage: give"}, //nolint:errcheck // as above
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, "it answers with status 302"},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "9") }, "unexpected EOF"},
		{"another name", func(w http.ResponseWriter, r *http.Request) {
			r.Host = "stage.example.com:9464"
			onLoopback.guard(http.NotFoundHandler()).ServeHTTP(w, r)
		}, "it does not answer to this name: use localhost or an IP address, or add the name to its STAGE_HTTP_HOSTS"},
	} {
		server := httptest.NewServer(tt.answer)
		addr := server.Listener.Addr().String()
		_, _, err := Ask(t.Context(), addr)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), addr+" (STAGE_HTTP_ADDR)") {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
		server.Close()
		if _, _, err = Ask(t.Context(), addr); err == nil || !strings.HasPrefix(err.Error(), "no stage listens on "+addr+" (STAGE_HTTP_ADDR): start one with stage run") {
			t.Errorf("%s, ended: got %v", tt.name, err)
		}
	}
	if _, _, err := Ask(t.Context(), "127.0.0.1:0"); !errors.Is(err, ErrAnyPort) {
		t.Errorf("any port: got %v", err)
	}
}

// A process listens before its stage has started: the connection is there, and nobody answers.
func TestAStageThatDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go io.Copy(io.Discard, there) //nolint:errcheck // ends with the connection
			return here, nil
		}
		began := time.Now()
		_, _, err := ask(t.Context(), "127.0.0.1:9464", silent)
		if took := time.Since(began); took != askTimeout || err == nil || !strings.Contains(err.Error(), "no reply within 5s: it has not started yet") {
			t.Errorf("got %v after %v", err, took)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("interrupted"))
		if _, _, err = ask(ctx, "127.0.0.1:9464", silent); err == nil || !strings.HasSuffix(err.Error(), "interrupted") {
			t.Errorf("interrupted: got %v", err)
		}
	})
}
