package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// ask sends a request about deferred batches as soon as a stage answers, and returns the reply or the code of its
// refusal.
func (l *lab) ask(request, body string) (reply batch.Deferred, code string) {
	l.t.Helper()
	for range 1000 {
		m, err := l.nc.Request("stage.llm_batch."+request, []byte(body), 11*time.Minute)
		code = ""
		if err == nil {
			code = m.Header.Get(micro.ErrorCodeHeader)
		}
		if errors.Is(err, nats.ErrNoResponders) || code == batch.CodeUnavailable {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			l.t.Fatalf("%s: %v", request, err)
		}
		if code == "" {
			stagetest.Must(l.t, json.Unmarshal(m.Data, &reply))
		} else {
			l.t.Logf("%s: %s", request, m.Data)
		}
		return reply, code
	}
	l.t.Fatalf("%s: no stage has answered; log:\n%s", request, l.logs.String())
	return reply, ""
}

// submit submits a batch and returns its id.
func (l *lab) submit(body string) string {
	l.t.Helper()
	reply, code := l.ask("submit", body)
	if code != "" || reply.ID == "" {
		l.t.Fatalf("%s: %+v", code, reply)
	}
	return reply.ID
}

// awaitBatch waits until ok says so of a batch.
func (l *lab) awaitBatch(id string, ok func(batch.Deferred) bool) batch.Deferred {
	l.t.Helper()
	for range 10_000 {
		reply, code := l.ask("get", `{"id":"`+id+`"}`)
		if code != "" {
			l.t.Fatal(code)
		}
		if ok(reply) {
			return reply
		}
		time.Sleep(time.Second)
	}
	l.t.Fatalf("batch %s never was as wanted; log:\n%s", id, l.logs.String())
	return batch.Deferred{}
}

// requestOf is a request with so many prompts, and these further members.
func requestOf(n int, more map[string]any) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("question %d", i)
	}
	request := map[string]any{"prompts": list}
	maps.Copy(request, more)
	text, err := json.Marshal(request)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// serveBatches starts a replica.
func (l *lab) serveBatches(changes map[string]string) *running {
	r := l.start(changes, Options{Batches: true})
	r.Conn.External = true
	return r
}

// counter counts the calls by prompt, and leaves them to the rest of the configuration.
type counter struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *counter) script(call llmtest.Call) *llmtest.Step {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = make(map[string]int)
	}
	c.calls[call.Prompt]++
	return nil
}

// again is how many calls were made for prompts that had one before.
func (c *counter) again() (calls int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.calls {
		calls += n - 1
	}
	return calls
}

func TestABatchOutlivesItsClientAndItsReplicas(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var calls counter
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: calls.script}, map[string]string{"STAGE_BATCH_RPM": "openai=0"})
		const size, parallel = 1000, 20
		l.load("a", "b", "c", "d", "e", "f")
		first, second := l.serveBatches(nil), l.serveBatches(nil)
		id := l.submit(requestOf(size, map[string]any{"max_parallel": parallel}))
		// The client is gone. Both replicas are killed while they work, one after the other.
		half := func(n int) func(batch.Deferred) bool {
			return func(d batch.Deferred) bool { return d.State == batch.StateRunning && d.Done >= n }
		}
		l.awaitBatch(id, half(100))
		first.kill()
		l.awaitBatch(id, half(400))
		second.kill()
		third := l.serveBatches(nil)
		time.Sleep(time.Hour)
		reply, code := l.ask("get", `{"id":"`+id+`"}`)
		if code != "" || reply.State != batch.StateDone || reply.Done != size || reply.Total != size || len(reply.Results) != size || !reply.AllSucceeded() {
			t.Fatalf("%s: %s, %d of %d, %d errors; log:\n%s", code, reply.State, reply.Done, reply.Total, reply.ErrorCount(), l.logs.String())
		}
		if n := calls.again(); n > 2*parallel {
			t.Errorf("%d calls made again, and at most %d were in flight at the kills", n, 2*parallel)
		}
		third.stop()
		report := stagetest.Value(verify.Run(t.Context(), l.js, l.config(nil), &l.logs))(t)
		batched := 0
		for _, e := range l.events(auditlog.KindCall) {
			if e.Call.BatchID == id {
				batched++
			}
		}
		if report.Verdict != verify.VerdictProven || report.Audit.Batched != uint64(batched) || batched < size || batched > size+2*parallel {
			t.Errorf("%d calls of the batch in the audit, verify has %d", batched, report.Audit.Batched)
		}
	})
}
