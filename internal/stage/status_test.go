package stage

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd"
	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/cost"
	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/pool"
)

// shownStage returns a stage in the middle of its work, which nothing runs, and a snapshot of it.
func shownStage(t *testing.T) (*Stage, status.Snapshot) {
	t.Helper()
	now := time.Now()
	s := &Stage{view: view{
		Cfg: &config.Config{Name: "reviews", Pool: config.PoolConfig{Throttle: "adaptive"}}, runID: "run1", started: now,
		Usage: cost.NewRecorder(), activity: status.NewActivity(false), history: status.NewHistory(now),
	}}
	s.Cfg.Order = stagetest.Config(t).Order
	cost := 0.25
	for i, status := range []auditlog.CallStatus{auditlog.CallCapacityRetry, auditlog.CallSuccess} {
		c := &auditlog.Call{
			Header: auditlog.Header{Time: now.Add(time.Second), Partition: 0}, CallID: fmt.Sprint("call", i), Sequence: 41, CallIndex: i,
			Provider: "openai", Model: "large", Status: status, StatusCode: 200, Latency: 800 * time.Millisecond, DispatchDelay: 50 * time.Millisecond,
			Request: []byte(`{"prompt":"secret text"}`), Response: []byte(`{"reply":"secret text"}`),
		}
		if status == auditlog.CallSuccess {
			c.Usage = &auditlog.Usage{PromptTokens: 10, CompletionTokens: 20, TotalTokens: 30, CostUSD: &cost}
		} else {
			c.StatusCode, c.ErrorClass, c.RetryAfter = 429, "capacity", 7*time.Second
		}
		s.Usage.Call(c)
		s.activity.Note(auditlog.Event{Call: c})
	}
	s.activity.Note(auditlog.Event{Row: &auditlog.Row{Header: auditlog.Header{Time: now.Add(2 * time.Second)}, Sequence: 40, Status: "error", Reason: "refused"}})
	s.activity.Note(auditlog.Event{Run: &auditlog.Run{Header: auditlog.Header{Time: now, Partition: 0}, Phase: auditlog.PhaseClaim}})
	return s, status.Snapshot{
		Pool: pool.Stats{
			PoolSize: 16, Dispatched: 9, CapacityRetries: 1, Successes: 5, MaxConcurrent: 4, InFlight: 3, Waiting: 2, ThrottleTime: 2 * time.Second,
			ExecTime: 5 * time.Second, PeakDelay: 100 * time.Millisecond, CurrentDelay: 50 * time.Millisecond,
			LawPausedUntil: now.Add(10 * time.Second), LawPauseReason: aimd.PauseRetryAfter,
		},
		Partitions: []consumer.Status{
			{Partition: 0, Role: consumer.Owner, Owner: "run1.term", Window: 12, Buffered: 5, BufferedBytes: 4096, Head: 41, HeadSince: now.Add(time.Second), Pending: 100, HighWaterMark: 40, Emitted: 38, Failed: 1, Skipped: 2},
			{Partition: 1, Role: consumer.Standby},
		},
	}
}

func TestStatusReadsAsDocumented(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) { // whose clock stands still
		s, snap := shownStage(t)
		snap.Collect(s.started)
		r := s.report(snap, s.started.Add(3*time.Second))
		s.history.Take(&r)
		snap.Partitions[0].Emitted += 4
		r = s.report(snap, s.started.Add(4*time.Second))
		s.history.Take(&r)
		r = s.report(snap, s.started.Add(5*time.Second))
		r.Version, r.Host, r.PID = "v1.2.3", "pod-0", 7
		text := stagetest.Value(json.MarshalIndent(&r, "", "  "))(t)
		golden.Check(t, filepath.Join("testdata", "status.json"), string(text)+"\n")

		snap.Pool.LawPausedUntil = time.Time{}
		snap.Collect(s.started)
		if r = s.report(snap, s.started.Add(5*time.Second)); r.State != status.StateWorking || r.Rows.ETAS == nil || *r.Rows.ETAS != 28 {
			t.Errorf("when it has resumed: %s, %v to go, want 28 s", r.State, r.Rows.ETAS)
		}
	})
}

// A key that is a member of the row is shown only where the contents of rows are.
func TestStatusOfRowsInOrderByKey(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		now := time.Now()
		for _, tt := range []struct {
			order, key string
			payloads   bool
			want       string // key of the row that others wait for, as JSON
		}{
			{"key", "subject.2", false, `"north"`},
			{"key", "header.Customer", false, `"north"`},
			{"key", "field.customer", false, `null`},
			{"key", "field.customer", true, `"north"`},
			{"none", "subject", false, `null`},
		} {
			s, snap := shownStage(t)
			s.Cfg.Order, s.activity = stagetest.Config(t, "STAGE_ORDER", tt.order, "STAGE_ORDER_KEY", tt.key).Order, status.NewActivity(tt.payloads)
			p := &snap.Partitions[0]
			p.Ahead, p.SetAside, p.KeysWaiting = 7, 5, 2
			p.WaitedFor, p.WaitedForKey, p.WaitedForSince = 43, "north", now.Add(-90*time.Second)
			r := s.report(snap, now)
			text := stagetest.Value(json.Marshal(&r.Partitions[0]))(t)
			want := fmt.Sprintf(`"high_water_mark":40,"ahead_rows":7,"set_aside_rows":5,"keys_waiting":2,"waited_for_sequence":43,"waited_for_key":%s,`+
				`"waited_for_since":%q,"key_wait_seconds":90,`, tt.want, now.Add(-90*time.Second).UTC().Format(time.RFC3339))
			if !strings.Contains(string(text), want) {
				t.Errorf("%s by %s, payloads %v: got %s\nwant it to contain %s", tt.order, tt.key, tt.payloads, text, want)
			}
			if r.Rows.Open != p.Window+5 {
				t.Errorf("%d rows are open, want %d in the window and 5 set aside", r.Rows.Open, p.Window)
			}
			if wantKey := map[string]string{"key": tt.key}[tt.order]; string(r.Order) != tt.order || r.OrderKey != wantKey {
				t.Errorf("got order %s by %q, want %s by %q", r.Order, r.OrderKey, tt.order, wantKey)
			}
		}
	})
}
