package stage

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// TestHeadersAndKeysAreReadAgain rotates both, then leaves an invalid key in the file: the old one stays in use.
func TestHeadersAndKeysAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	key, headers := filepath.Join(dir, "key"), filepath.Join(dir, "headers")
	write := func(path, text string) {
		t.Helper()
		stagetest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	stagetest.Virtual(t, func(t *testing.T) {
		write(key, "sk-rotated-1\n")
		write(headers, `{"x-gateway":"gateway-token-1"}`)
		var seen []string
		l := newLab(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			seen = append(seen, strings.TrimPrefix(c.Header.Get("Authorization"), "Bearer ")+" "+c.Header.Get("X-Gateway"))
			return &llmtest.Step{Body: fmt.Sprintf(`{"choices":[{"message":{"content":"now %s, before sk-rotated-1 gateway-token-1"}}]}`, seen[len(seen)-1])}
		}}, nil)
		cfg := l.config(map[string]string{"STAGE_LLM_API_KEY": "", "STAGE_LLM_API_KEY_FILE": key, "STAGE_LLM_EXTRA_HEADERS_FILE": headers})
		servers, err := call.Open(cfg, l.dial, llmtest.Config{}.Start)
		if err != nil {
			t.Fatal(err)
		}
		defer servers.Close()
		prompt := stagetest.Value(executor.LoadPrompt(cfg))(t)
		call := func() {
			t.Helper()
			prepared := stagetest.Value(servers.At(0).Prepare(&prompt.Base))(t)
			x, err := servers.At(0).Do(t.Context(), prepared)
			if err != nil || strings.Contains(x.Reply.Text, "sk-") || strings.Contains(x.Reply.Text, "token") {
				t.Errorf("got %v %v", x.Reply, err)
			}
		}
		call()
		write(key, "sk-rotated-2\n")
		write(headers, `{"x-gateway":"gateway-token-2"}`)
		stagetest.Must(t, servers.ReloadKey())
		call()
		write(key, "sk-rotated-3\nsk-rotated-4")
		write(headers, `{"x-gateway":3}`)
		err = servers.ReloadKey()
		if want := "STAGE_LLM_API_KEY_FILE: contains a line break; give the key alone, on one line\nSTAGE_LLM_EXTRA_HEADERS_FILE: X-Gateway: the value is not a string"; fmt.Sprint(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
		call()
		if want := []string{"sk-rotated-1 gateway-token-1", "sk-rotated-2 gateway-token-2", "sk-rotated-2 gateway-token-2"}; !slices.Equal(seen, want) {
			t.Errorf("sent %q, want %q", seen, want)
		}
	})
}
