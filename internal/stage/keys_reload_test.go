package stage

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
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
		stagetest.Value(servers.ReloadKey())(t)
		call()
		write(key, "sk-rotated-3\nsk-rotated-4")
		write(headers, `{"x-gateway":3}`)
		_, err = servers.ReloadKey()
		if want := "STAGE_LLM_API_KEY_FILE: contains a line break; give the key alone, on one line\nSTAGE_LLM_EXTRA_HEADERS_FILE: X-Gateway: the value is not a string"; fmt.Sprint(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
		call()
		if want := []string{"sk-rotated-1 gateway-token-1", "sk-rotated-2 gateway-token-2", "sk-rotated-2 gateway-token-2"}; !slices.Equal(seen, want) {
			t.Errorf("sent %q, want %q", seen, want)
		}
	})
}

// TestAKeyIsRotatedUnderLoad replaces the key of a stage that works, twice. The old key ends with the change
// of the file, or ten seconds later: rows fail in neither case, not even those that may be called once, and nothing
// pauses.
func TestAKeyIsRotatedUnderLoad(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	stagetest.Virtual(t, func(t *testing.T) {
		var valid, next atomic.Pointer[string]
		rotate := func(to string, grace time.Duration) { // the old key is valid for so long beside the new one
			next.Store(&to)
			stagetest.Must(t, os.WriteFile(key, []byte(to), 0o600))
			time.Sleep(grace)
			valid.Store(&to)
		}
		rotate("sk-first", 0)
		var refused atomic.Int32
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: func(c llmtest.Call) *llmtest.Step {
			sent := strings.TrimPrefix(c.Header.Get("Authorization"), "Bearer ")
			if sent == *valid.Load() || sent == *next.Load() {
				return nil
			}
			refused.Add(1)
			return &llmtest.Step{Status: http.StatusUnauthorized, Delay: 100 * time.Millisecond}
		}}, map[string]string{"STAGE_RETRY_MAX_ATTEMPTS": "1", "STAGE_LLM_API_KEY": "", "STAGE_LLM_API_KEY_FILE": key})
		l.load(questions(250)...)
		r := l.start(nil, Options{})
		l.await(25)
		rotate("sk-second", 0)
		l.await(100)
		atOnce := refused.Load()
		rotate("sk-third", 10*time.Second)
		l.await(250)
		r.stop()
		if atOnce == 0 || refused.Load() != atOnce {
			t.Errorf("%d calls were refused at once, and %d where the old key was valid for 10 s more", atOnce, refused.Load()-atOnce)
		}
		l.noneFailed()
		if pauses := l.runEvents(auditlog.PhasePause); pauses != nil {
			t.Errorf("paused: %q", pauses)
		}
	})
}

// TestANewKeyEndsThePauseOfTheOldOne corrects the key of a paused stage, whose next probe is a minute away.
func TestANewKeyEndsThePauseOfTheOldOne(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	stagetest.Virtual(t, func(t *testing.T) {
		stagetest.Must(t, os.WriteFile(key, []byte("sk-wrong-1"), 0o600))
		l := newLab(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if c.Header.Get("Authorization") == "Bearer sk-right-1" {
				return nil
			}
			return &llmtest.Step{Status: http.StatusUnauthorized}
		}}, map[string]string{"STAGE_LLM_API_KEY": "", "STAGE_LLM_API_KEY_FILE": key})
		l.load(questions(1)...)
		r := l.start(nil, Options{})
		time.Sleep(20 * time.Second)
		if pauses := l.runEvents(auditlog.PhasePause); len(pauses) != 1 {
			t.Fatalf("paused: %q", pauses)
		}
		stagetest.Must(t, os.WriteFile(key, []byte("sk-right-1"), 0o600))
		corrected := time.Now()
		l.await(1)
		if took := time.Since(corrected); took > 10*time.Second {
			t.Errorf("the row was answered %v after the key was corrected", took)
		}
		r.stop()
		l.noneFailed()
	})
}
