package stage

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
)

// panics authorises calls, and panics at those for a bad text.
type panics struct{}

func (panics) Authorize(_ context.Context, _ *http.Request, body []byte) (int, error) {
	if strings.Contains(string(body), "bad") {
		panic("no mercy for bad texts")
	}
	return 1, nil
}
func (panics) Outdated(int) bool { return false }
func (panics) Account() string   { return "" }

// A panic in a call fails its row, and the call has its event: the audit proves the row's number of calls. Rows that
// share the call have their vectors.
func TestACallThatPanicsHasItsEvent(t *testing.T) {
	for _, task := range []string{llm.TaskChat, llm.TaskEmbed} {
		t.Run(task, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, llmtest.Config{Latency: time.Second}, map[string]string{"STAGE_TASK": task})
				for i := range 9 {
					l.load(fmt.Sprint("q", i+1))
				}
				l.load("bad")
				l.prepare = func(s *Stage) {
					cfg := llm.ProviderConfig{BaseURL: "http://first.test/v1", Model: "large", Task: task, Auth: panics{}, DialContext: l.dial}
					s.caller.At(0).Client = stagetest.Value(llm.NewProvider("openai", cfg))(t)
				}
				l.work(10, nil)
				unknown := 0
				for _, e := range l.events(auditlog.KindCall) {
					if e.Call.Status == auditlog.CallUnknown && strings.Contains(e.Call.Error, "call panicked: no mercy for bad texts") {
						unknown++
					}
				}
				bad := l.bodies()[9]
				if unknown == 0 || l.failedRows() != 1 || !strings.Contains(bad, `"reason":"internal_error","error":"call panicked: no mercy`) {
					t.Errorf("%d calls panicked, %d rows failed, the last is %s", unknown, l.failedRows(), bad)
				}
				if !strings.Contains(l.logs.String(), "a call panicked: this is a bug") {
					t.Error("the log has no word of it")
				}
				l.proven()
			})
		})
	}
}

// panicLog panics where a row starts.
type panicLog struct{ slog.Handler }

func (h panicLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "row started" {
		panic("no log")
	}
	return h.Handler.Handle(ctx, r)
}

func (h panicLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return panicLog{h.Handler.WithAttrs(attrs)}
}

// An attempt that panics before its call is none.
func TestAnAttemptThatPanicsBeforeItsCallIsNotCounted(t *testing.T) {
	for _, task := range []string{llm.TaskChat, llm.TaskEmbed} {
		t.Run(task, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, llmtest.Config{Latency: time.Second}, map[string]string{"STAGE_TASK": task, "STAGE_LOG_LEVEL": "debug"})
				l.log = slog.New(panicLog{slog.NewTextHandler(&l.logs, &slog.HandlerOptions{Level: slog.LevelDebug})})
				l.load("a", "b")
				l.work(2, nil)
				for _, e := range l.events(auditlog.KindRow) {
					if e.Row.Reason != string(llm.ReasonInternalError) || e.Row.Attempts != 0 || e.Row.Source != "" {
						t.Errorf("%+v", e.Row)
					}
				}
				l.proven()
			})
		})
	}
}
