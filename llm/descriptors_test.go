//go:build unix

package llm_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
)

// TestNoDescriptorIsOfTheHost runs itself again, to use up the descriptors of a separate process.
func TestNoDescriptorIsOfTheHost(t *testing.T) {
	const variable = "LLM_TEST_DESCRIPTORS"
	if address := os.Getenv(variable); address != "" {
		withoutDescriptors(t, address)
		return
	}
	self := must.Value(os.Executable())(t)
	address := server(t, reply("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"))
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestNoDescriptorIsOfTheHost$")
	cmd.Env = append(os.Environ(), variable+"="+address, "GODEBUG=netdns=go", "HTTP_PROXY=", "http_proxy=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func withoutDescriptors(t *testing.T, address string) {
	t.Helper()
	urls := []string{"http://" + address, "http://llm.invalid"} // the second needs the resolver, which cannot ask anybody
	clients := make([]*llm.Client, len(urls))
	for i, url := range urls {
		client := newClient(t, llm.Mock, llm.ProviderConfig{BaseURL: url})
		clients[i] = client
	}
	// Package net polls for events with a descriptor that is opened by the first socket.
	if _, e := ask(t.Context(), t, clients[0], llm.Request{Prompt: "hello"}); e == nil || e.Status != 500 {
		t.Fatalf("with descriptors: got %v, want status 500", e)
	}
	clients[0].Close()
	limit := syscall.Rlimit{}
	must.Do(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	limit.Cur = min(limit.Cur, 128)
	must.Do(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	var files []io.Closer
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	for i, client := range clients {
		x, e := ask(t.Context(), t, client, llm.Request{Prompt: "hello"})
		if e == nil || e.Class != llm.Transient || e.Origin != llm.OfHost || x.Sent || !strings.Contains(e.Error(), "ulimit -n") {
			t.Errorf("%s: got %+v", urls[i], e)
		}
	}
	for _, f := range files {
		_ = f.Close()
	}
	if _, e := ask(t.Context(), t, clients[0], llm.Request{Prompt: "hello"}); e == nil || e.Status != 500 {
		t.Errorf("with descriptors again: got %v, want status 500", e)
	}
}
