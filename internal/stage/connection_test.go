package stage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stopping"
	"github.com/nats-io/nats.go"
)

// overCable has the lab's stages connect over a cable, and replace a connection that was closed.
func (l *lab) overCable() *stagetest.Cable {
	cable := l.srv.Cable()
	l.connect = func() *natsconn.Conn {
		again := func(context.Context) (*nats.Conn, error) { return cable.Connect() }
		nc := stagetest.Value(again(l.t.Context()))(l.t)
		conn := natsconn.Over(nc, again)
		l.t.Cleanup(stopping.Background(l.t.Context(), func(ctx context.Context) { conn.Keep(ctx, l.logger()) }))
		return conn
	}
	return cable
}

// The client library closes a connection for good at errors of the server that it does not know. Calls are in flight
// then, and nothing may be paid for twice.
func TestAConnectionThatIsClosedForGoodIsReplaced(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: 2 * time.Second}, map[string]string{
			"STAGE_POOL_SIZE": "4", "STAGE_BUDGET": "team", "STAGE_DEDUPE": "stored", "STAGE_CONTROL": "true",
		})
		cable := l.overCable()
		r := l.start(nil, Options{Batches: true})
		rows := 0
		for _, text := range []string{
			"Maximum Payload Violation", "Maximum Control Line Exceeded", "Authorization Violation", "Account Authentication Expired",
			"User Authentication Revoked", "An Error Of The Next Version",
		} {
			for i := range 12 {
				l.load(fmt.Sprint(text, i))
			}
			l.await(rows + 4)
			time.Sleep(time.Second) // four calls are in flight
			cable.Fail(text)
			rows += 12
			l.await(rows)
			m := l.sendBatch(`{"prompts": ["` + text + `"]}`)
			if code := m.Header.Get("Nats-Service-Error-Code"); code != "" {
				t.Errorf("%s: batched request: %s", text, m.Data)
			}
			if whole := r.Whole(t.Context()); len(whole.Replicas) != 1 {
				t.Errorf("%s: %d replicas answer, want this one: %s", text, len(whole.Replicas), whole.Problem)
			}
			time.Sleep(20 * time.Second)
			if ok, why := r.ready(); !ok {
				t.Errorf("%s: not ready: %s", text, why)
			}
		}
		r.stop()
		if got := len(l.events(auditlog.KindCall)); got != rows+rows/12 {
			t.Errorf("%d calls for %d rows and %d prompts", got, rows, rows/12)
		}
		if got := len(l.events(auditlog.KindRow)); got < rows {
			t.Errorf("%d row events of %d rows", got, rows)
		}
	})
}

// While the connection is gone the stage is held, and says since when, whoever asked for its status before.
func TestAStageWithoutAConnectionSaysSinceWhenItIsHeld(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, nil)
		cable := l.overCable()
		l.load("a")
		r := l.start(nil, Options{})
		l.await(1)
		time.Sleep(time.Minute)
		cable.Refuse("Account Authentication Expired")
		lost := time.Now()
		cable.Fail("Account Authentication Expired")
		time.Sleep(time.Minute)
		if s := r.Status(); s.State != status.StateHeld || s.Since == nil || s.Since.Sub(lost) > refusedLook || s.Since.Before(lost) {
			t.Errorf("a minute after %v: %s since %v", lost, s.State, s.Since)
		}
		if h := r.RowHold(t.Context(), 2); h == nil || h.Kind != hold.Connection || h.Scope != hold.Row || h.Do == "" { // whoever has the row
			t.Errorf("a row waits for %+v, want the connection", h)
		}
		cable.Refuse("")
		for range 100 { // it counts as one that lasts after ten seconds
			if time.Sleep(time.Second); r.Conn.Down() == "" {
				break
			}
		}
		time.Sleep(time.Second)
		if s := r.Status(); s.State == status.StateHeld || s.Since != nil {
			t.Errorf("with a connection: %s since %v: %s", s.State, s.Since, s.Why)
		}
		r.stop()
	})
}

// Results, events and entries of the journal that were made under the old limit must not wait for ever.
func TestALowerMaxPayloadCutsWhatIsLarger(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Latency: 2 * time.Second}, map[string]string{"STAGE_POOL_SIZE": "4"})
		cable := l.overCable()
		l.load("small", strings.Repeat("x", 20_000), "small", strings.Repeat("y", 3_000))
		r := l.start(nil, Options{})
		time.Sleep(1500 * time.Millisecond)
		cable.Announce(8 << 10)
		cable.Fail("Maximum Payload Violation")
		l.await(4)
		r.stop()
		for i, got := range l.results() {
			switch {
			case i == 1 && (got.Error == nil || got.Error.Reason != "result_too_large"):
				t.Errorf("row 1: %+v", got.Error)
			case i != 1 && got.Error != nil:
				t.Errorf("row %d: %+v", i, got.Error)
			}
		}
		for _, e := range l.events(auditlog.KindCall) {
			if large := e.Call.Sequence == 2; e.Call.Truncated != large {
				t.Errorf("event of row %d: truncated %v", e.Call.Sequence, e.Call.Truncated)
			}
		}
	})
}

// A max_control_line that is too small for the stage ends each connection at once, until it is raised again.
func TestAStageHoldsWhileTheServerTakesNoConnection(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, nil)
		cable := l.overCable()
		l.load("a")
		r := l.start(nil, Options{})
		l.await(1)
		cable.Refuse("Maximum Control Line Exceeded")
		cable.Fail("Maximum Control Line Exceeded")
		time.Sleep(10 * time.Minute)
		if ok, why := r.ready(); ok || !strings.Contains(why, "max_control_line is too small") {
			t.Errorf("ready: %v, %s", ok, why)
		}
		if n := cable.Made(); n > 140 {
			t.Errorf("%d connections in ten minutes", n)
		}
		if n := strings.Count(l.logs.String(), "level=WARN"); n > 30 {
			t.Errorf("%d warnings in ten minutes:\n%s", n, l.logs.String())
		}
		cable.Refuse("")
		l.load("b")
		l.await(2)
		time.Sleep(20 * time.Second)
		if ok, why := r.ready(); !ok {
			t.Errorf("not ready: %s", why)
		}
		r.stop()
	})
}
