package cli

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

// A real socket: the command prints its base URL, answers both dialects there, and ends
// with 0 when it is interrupted.
func TestMockLLMServesUntilItIsInterrupted(t *testing.T) {
	var signals fakeSignals
	var errs strings.Builder
	out, stdout := io.Pipe()
	env := &Env{Args: []string{"mockllm", "--addr", "127.0.0.1:0", "--rate", "1", "--burst", "2", "--batch-fail", "1"}, Stdout: stdout, Stderr: &errs, Notify: signals.notify}
	ended := make(chan int, 1)
	go func() { ended <- Main(t.Context(), env) }()
	baseURL := stagetest.Value(bufio.NewReader(out).ReadString('\n'))(t)
	baseURL = strings.TrimSpace(baseURL)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	requests := `{"requests":[{"custom_id":"a-1","params":{"model":"mock","max_tokens":10,"messages":[{"role":"user","content":"hello"}]}}]}`
	for _, path := range []string{"/chat/completions", "/messages", "/chat/completions", "/messages/batches"} {
		body := `{"model":"mock","max_tokens":10,"messages":[{"role":"user","content":"hello"}]}`
		if strings.HasSuffix(path, "/batches") {
			body = requests
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, baseURL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Anthropic-Version", "2023-06-01")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close() //nolint:errcheck // not read
	}
	if signals.send(os.Interrupt) != 1 {
		t.Fatal("the command does not wait for a signal")
	}
	if code := <-ended; code != exitDone {
		t.Errorf("got exit code %d: %s", code, errs.String())
	}
	if got, want := errs.String(), "3 calls: 2 answered, 1 rejected for capacity, 0 failed, 0 abandoned; at most 1 at a time\n"+
		"1 batches: 1 completed, 0 expired, 0 cancelled, 0 failed, 0 running; lines: 0 answered, 1 failed, 0 lapsed\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
