package stage_test

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// endsWithin is how soon a process ends after the second signal, or after the time for a stop, whatever is stuck.
const endsWithin = 5 * time.Second

// obstacle is something that a stage hangs on.
type obstacle struct {
	name string
	rows int
	vars vars
	llm  llmtest.Config
	// set puts the obstacle there before the stage starts; free takes it away.
	set func(s *site, d *deps) (free func())
	// stuck reports that the stage is about to hang; nil: it is at once.
	stuck func(s *site, r *replica) bool
	// says is what the log must contain at the end.
	says string
	// loses: call events may be lost with the process. unsent: calls never reach the LLM.
	loses, unsent bool
}

var obstacles = []obstacle{
	{
		name: "audit, while rows are called", rows: 20, vars: vars{"STAGE_POOL_SIZE": "10"},
		set: fullStream("AUDIT", "audit.>", 4), stuck: warned, says: "events not stored", loses: true,
	},
	{name: "audit, at the end", rows: 3, set: fullStream("AUDIT", "audit.>", 8), stuck: allStored, says: "audit: 1 events not stored", loses: true},
	{name: "results", rows: 20, set: fullStream("RESULTS", "results.>", 4), stuck: warned},
	{
		name: "journal", rows: 20, set: fullStream("JOURNAL", "journal.>", 1),
		llm: llmtest.Config{Script: firstRow(llmtest.Step{Trouble: llmtest.Stall})},
	},
	{name: "store of replies", rows: 20, vars: vars{"STAGE_DEDUPE": "stored"}, set: fullStream("DEDUPE", "dedupe.>", 1)},
	{name: "provider without a reply", rows: 20, llm: llmtest.Config{Script: firstRow(llmtest.Step{Trouble: llmtest.Stall})}},
	{name: "provider in the middle of a reply", rows: 20, llm: llmtest.Config{Script: firstRow(llmtest.Step{Trouble: llmtest.Hang})}},
	{name: "name resolution", rows: 20, unsent: true, set: func(_ *site, d *deps) func() {
		released := make(chan struct{})
		d.DialLLM = func(context.Context, string, string) (net.Conn, error) { // like the C library's resolver, it ignores the context
			<-released
			return nil, net.ErrClosed
		}
		return func() { close(released) }
	}},
	{name: "TLS handshake", rows: 20, unsent: true, vars: vars{"STAGE_LLM_BASE_URL": "https://llm.test/v1"}, set: func(_ *site, d *deps) func() {
		d.DialLLM = func(context.Context, string, string) (net.Conn, error) {
			_, mute := net.Pipe()
			return mute, nil
		}
		return func() {}
	}},
	{name: "page that does not read", rows: 3, set: mutePage("/api/events"), stuck: allStored},
	{name: "scraper that does not read", rows: 3, set: mutePage("/metrics"), stuck: allStored},
	{name: "receiver of traces", rows: 3, set: func(s *site, d *deps) func() {
		s.trace(&receiver{delay: time.Hour})(d)
		return func() {}
	}, stuck: allStored},
}

// fullStream creates a stream that refuses more than most messages.
func fullStream(name, subject string, most int64) func(*site, *deps) func() {
	return func(s *site, _ *deps) func() {
		cfg := jetstream.StreamConfig{Name: name, Subjects: []string{subject}, MaxMsgs: most, Discard: jetstream.DiscardNew, AllowDirect: true}
		s.configured(cfg)
		return func() {
			cfg.MaxMsgs, cfg.Storage = -1, jetstream.MemoryStorage
			stagetest.Value(s.js.UpdateStream(s.t.Context(), cfg))(s.t)
		}
	}
}

// firstRow answers the first row's first calls with step, and all others as usual.
func firstRow(step llmtest.Step) func(llmtest.Call) *llmtest.Step {
	return func(c llmtest.Call) *llmtest.Step {
		if promptRow(c.Prompt) == 1 && c.N < 20 {
			return &step
		}
		return nil
	}
}

// mutePage requests a page and reads nothing of it.
func mutePage(path string) func(*site, *deps) func() {
	return func(s *site, d *deps) func() {
		pages := d.Listener.(*llmtest.PipeListener)
		var conn net.Conn
		done := make(chan struct{})
		go func() {
			defer close(done)
			var err error
			if conn, err = pages.DialContext(s.t.Context(), "tcp", "stage.test"); err == nil {
				_, err = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: stage.test\r\n\r\n")
			}
			if err != nil {
				s.t.Error(err)
			}
		}()
		return func() {
			<-done
			_ = conn.Close()
		}
	}
}

// warned waits until the stage reports why it is not ready.
func warned(_ *site, r *replica) bool {
	status, _ := r.get("/readyz")
	return status == http.StatusServiceUnavailable
}

// allStored is for obstacles of three rows.
func allStored(s *site, _ *replica) bool { return s.stored() >= 3 }

// Whatever is stuck, a stage ends within a few seconds of the time for a stop, and of the second signal. What it leaves
// behind is processed after a restart: nothing is lost or duplicated. A short run ends every other obstacle in one of the
// two ways, and the others in the other.
func TestAStopEndsWhateverIsStuck(t *testing.T) {
	for i, o := range obstacles {
		for way := i % stagetest.Stride(2); way < 2; way += stagetest.Stride(2) {
			t.Run(o.name+[]string{"/stop timeout", "/second signal"}[way], func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { o.stop(t, way == 1) })
			})
		}
	}
}

// stop stops a stage that hangs on the obstacle, and has another one process the rest.
func (o *obstacle) stop(t *testing.T, secondSignal bool) {
	t.Helper()
	s := loaded(t, o.rows, o.llm)
	free := func() {}
	changes := vars{"STAGE_LLM_TIMEOUT": "4s"} // the time for a stop is a quarter longer
	maps.Copy(changes, o.vars)
	r := s.startWith(changes, func(d *deps) {
		if o.set != nil {
			free = o.set(s, d)
		}
	})
	if o.stuck != nil {
		s.until("the obstacle", func() bool { return o.stuck(s, r) })
	}
	time.Sleep(2 * time.Second)
	r.soft()
	limit := 5*time.Second + endsWithin
	if secondSignal {
		time.Sleep(time.Second)
		limit = endsWithin
		r.hard()
	}
	select {
	case <-r.done:
	case <-time.After(limit):
		t.Errorf("it has not ended after %v", limit)
	}
	free()
	_ = r.wait() // other tests check what it ends with
	if !strings.Contains(s.logs.String(), o.says) {
		t.Errorf("the log does not say %q", o.says)
	}
	s.crashed = o.loses
	again := s.start(nil)
	s.await(o.rows)
	again.stop()
	if s.verifyResults(o.rows); !o.unsent {
		s.verify()
	}
}
