package stage

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/executor"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// parrot is an LLM that repeats the caller's key wherever it fails: in the message, in the code, in a page that is no
// JSON, in a header, and cut off.
func parrot(c llmtest.Call) *llmtest.Step {
	key := c.Header.Get("X-Api-Key") + strings.TrimPrefix(c.Header.Get("Authorization"), "Bearer ")
	refusal := fmt.Sprintf(`{"error":{"message":"Incorrect API key provided: %s","code":"bad_%s","type":"%s"}}`, key, key, key)
	switch {
	case strings.Contains(c.Prompt, "fine"):
		return nil
	case c.N%5 == 0:
		return &llmtest.Step{Status: 500, Body: refusal, Header: map[string]string{"X-Request": key}}
	case c.N%5 == 1:
		return &llmtest.Step{Body: "<html>" + key + "</html>", Header: map[string]string{"Content-Type": "text/html; k=" + key}}
	case c.N%5 == 2:
		return &llmtest.Step{Body: refusal}
	case c.N%5 == 3:
		return &llmtest.Step{Body: fmt.Sprintf(`{%q:1}`, key)}
	default:
		return &llmtest.Step{Status: 302, Header: map[string]string{"Location": "http://" + key + "@elsewhere.test/?key=" + key}}
	}
}

// TestKeysAreNowhere looks for the keys of both providers in everything that a stage leaves behind: streams, log,
// metrics, pages, errors, the output of stage config, and the files of the store.
func TestKeysAreNowhere(t *testing.T) {
	const first, second = "sk-first-secret", "sk-second-secret"
	vars := map[string]string{
		"STAGE_FALLBACKS": "anthropic:claude", "STAGE_DEDUPE": "stored", "STAGE_ON_FATAL": "fail", "STAGE_JOURNAL_AFTER": "0s",
		"STAGE_LLM_ANTHROPIC_BASE_URL": "http://second.test/v1", "STAGE_LLM_ANTHROPIC_API_KEY": second,
	}
	var places map[string]string // what was left behind, by place
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: 10 * time.Millisecond, Script: parrot}, vars)
		l.serve("second.test", llmtest.Config{Script: parrot})
		for i := range 30 {
			l.load(fmt.Sprintf("question %d", i), fmt.Sprintf("fine %d", i))
		}
		l.publish(&nats.Msg{Data: []byte(`{"q":"fine"}`), Header: nats.Header{streams.HeaderModel: {"../" + "other"}}})
		r := l.work(61, nil)
		l.load("question") // and a pause
		paused := l.start(map[string]string{"STAGE_ON_FATAL": "pause", "STAGE_FALLBACKS": "", "STAGE_LLM_BASE_URL": "http://nowhere.test/v1"}, Options{})
		time.Sleep(time.Minute)
		_, why := paused.ready()
		paused.stop()

		page := r.page()
		status := stagetest.Value(json.Marshal(r.Status()))(t)
		_, usage := config.Source{Environ: map[string]string{"STAGE_LLM_API_KEY": first, "STAGE_LLM_API_KE": first, "STAGE_POOL_SIZE": "x"}}.Load(t.Context(), config.NeedCalls)
		places = map[string]string{
			"log": l.logs.String(), "metrics": page, "status": string(status), "reason of the pause": why, "usage error": fmt.Sprint(usage),
			"dump": fmt.Sprintf("%v %+v %#v", r.Cfg, r.Cfg, r.Cfg) + fmt.Sprintf("%v %+v", r.caller.At(0), r.caller.At(1)),
		}
		names := l.js.StreamNames(t.Context())
		for name := range names.Name() {
			places["stream "+name] = l.dump(name)
		}
		for _, stream := range []string{"RESULTS", "AUDIT", executor.DedupeStream} {
			if len(places["stream "+stream]) < 100 {
				t.Errorf("stream %s is empty", stream)
			}
		}
		if !strings.Contains(places["stream AUDIT"], "[redacted]") || !strings.Contains(places["stream AUDIT"], "anthropic") {
			t.Error("the providers have repeated no key, so this test proves nothing")
		}
		l.readFiles(places)
	})
	for place, text := range places {
		for _, key := range []string{first, second} {
			if i := strings.Index(text, key); i >= 0 {
				t.Errorf("%s holds a key: %.200q", place, text[max(0, i-80):])
			}
		}
	}
}

// dump returns all messages of a stream with their subjects and headers.
func (l *lab) dump(name string) string {
	l.t.Helper()
	stream := stagetest.Value(l.js.Stream(l.t.Context(), name))(l.t)
	var text strings.Builder
	for seq := stream.CachedInfo().State.FirstSeq; seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(l.t.Context(), seq)
		if err != nil {
			continue // deleted
		}
		fmt.Fprintln(&text, m.Subject, m.Header, string(m.Data))
	}
	return text.String()
}

// readFiles adds the files of the store to places.
func (l *lab) readFiles(places map[string]string) {
	l.t.Helper()
	audit := false
	err := filepath.WalkDir(l.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		places["file "+path] = string(text)
		audit = audit || strings.Contains(string(text), "[redacted]")
		return err
	})
	if err != nil || !audit {
		l.t.Errorf("the files of the store: %v, audit among them: %v", err, audit)
	}
}
