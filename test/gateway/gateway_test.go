package gateway_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/llm-stage/stage/test/gateway"
)

func TestAGatewayKeepsItsPort(t *testing.T) {
	g, err := gateway.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/slow" {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, "reply")
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	get := func(ctx context.Context, path string) (int, string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	set := func(to gateway.State) {
		t.Helper()
		if err := g.Set(to); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if status, body, err := get(t.Context(), "/"); status != 200 || body != "reply" || err != nil {
			t.Fatalf("open: %d %q %v", status, body, err)
		}
		cut := make(chan error)
		go func() {
			_, _, err := get(t.Context(), "/slow")
			cut <- err
		}()
		set(gateway.Refused)
		if err := <-cut; err == nil {
			t.Error("a call in flight outlived the server")
		}
		if _, _, err := get(t.Context(), "/"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("refused: %v", err)
		}
		set(gateway.BadGateway)
		if status, _, err := get(t.Context(), "/"); status != http.StatusBadGateway || err != nil {
			t.Errorf("bad gateway: %d %v", status, err)
		}
		set(gateway.Silent)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, _, err := get(ctx, "/"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("silent: %v", err)
		}
		cancel()
		set(gateway.Open)
	}
	if st := g.Stats(); st.Turned < 3 || st.Turned > 6 { // a call may be given up before it has arrived
		t.Errorf("statistics %+v, want 3 to 6 calls turned away", st)
	}
}
