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
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
func (l *lab) serveBatches() *running {
	r := l.start(nil, Options{Batches: true})
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

// made is how many calls there were.
func (c *counter) made() (calls int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.calls {
		calls += n
	}
	return calls
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
		const size, parallel = 200, 10
		l.load("a", "b", "c", "d", "e", "f")
		first, second := l.serveBatches(), l.serveBatches()
		id := l.submit(requestOf(size, map[string]any{"max_parallel": parallel}))
		// The client is gone. Both replicas are killed while they work, one after the other.
		atLeast := func(n int) func(batch.Deferred) bool {
			return func(d batch.Deferred) bool { return d.State == batch.StateRunning && d.Done >= n }
		}
		l.awaitBatch(id, atLeast(40))
		first.kill()
		l.awaitBatch(id, atLeast(100))
		second.kill()
		third := l.serveBatches()
		reply := l.awaitBatch(id, func(d batch.Deferred) bool { return d.State.Over() })
		if reply.State != batch.StateDone || reply.Done != size || reply.Total != size || len(reply.Results) != size || !reply.AllSucceeded() {
			t.Fatalf("%s, %d of %d, %d errors; log:\n%s", reply.State, reply.Done, reply.Total, reply.ErrorCount(), l.logs.String())
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

// A batch that is cancelled keeps what it has, begins no further call, and stays as it is until its time is over.
func TestACancelledBatchKeepsItsAnswersForItsTime(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var calls counter
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: calls.script}, map[string]string{"STAGE_BATCH_RPM": "openai=0"})
		l.serveBatches()
		l.serveBatches() // either may be asked
		id := l.submit(requestOf(200, map[string]any{"max_parallel": 4, "keep": "10m", "id": "mine"}))
		if again := l.submit(requestOf(200, map[string]any{"max_parallel": 4, "id": "mine"})); id != "mine" || again != id {
			t.Errorf("submitted as %s, and again as %s", id, again)
		}
		if _, code := l.ask("submit", requestOf(2, map[string]any{"id": "mine"})); code != batch.CodeBadRequest {
			t.Errorf("another batch of the same id: %q", code)
		}
		l.awaitBatch(id, func(d batch.Deferred) bool { return d.Done >= 20 })
		if reply, code := l.ask("cancel", `{"id":"mine"}`); code != "" || reply.State != batch.StateCancelled {
			t.Errorf("%s: %+v", code, reply)
		}
		time.Sleep(time.Minute)
		made := calls.made()
		reply, _ := l.ask("get", `{"id":"mine"}`)
		if reply.State != batch.StateCancelled || reply.Done < 20 || reply.Done >= 200 || len(reply.Successes()) != reply.Done || made != reply.Done {
			t.Errorf("%s, %d of %d, %d answers, %d calls", reply.State, reply.Done, reply.Total, len(reply.Successes()), made)
		}
		if last := reply.Results[199]; last.Reason != llm.ReasonCancelled || last.Error != "not sent: the batch was cancelled" {
			t.Errorf("%+v", last)
		}
		time.Sleep(8 * time.Minute)
		if reply, code := l.ask("cancel", `{"id":"mine"}`); code != "" || reply.State != batch.StateCancelled {
			t.Errorf("before its time is over: %s, %+v", code, reply)
		}
		time.Sleep(2 * time.Minute)
		if _, code := l.ask("get", `{"id":"mine"}`); code != batch.CodeNotFound {
			t.Errorf("after its time: %q", code)
		}
		if n := stagetest.Stored(t, l.js, "BATCHES", "batches.stage.>"); n != 0 || calls.made() != made {
			t.Errorf("%d messages are left, %d calls since the end", n, calls.made()-made)
		}
		if l.submit(requestOf(2, map[string]any{"id": "mine"})); l.awaitBatch(id, func(d batch.Deferred) bool { return d.State.Over() }).Total != 2 {
			t.Error("its id is not free again")
		}
	})
}

// An owner whose connection is gone for a minute is replaced. When it is back it stores nothing of the batch, and makes
// no call.
func TestABatchIsTakenOverFromAnOwnerThatIsOutOfTouch(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var calls counter
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: calls.script}, map[string]string{"STAGE_BATCH_RPM": "openai=0"})
		cable := l.overCable()
		l.serveBatches()
		const parallel = 4
		id := l.submit(requestOf(300, map[string]any{"max_parallel": parallel}))
		l.awaitBatch(id, func(d batch.Deferred) bool { return d.Done >= 20 })
		l.connect = nil
		l.serveBatches()
		cable.Refuse("maximum connections exceeded")
		cable.Fail("Stale Connection")
		time.Sleep(15 * time.Second)
		if reply, _ := l.ask("get", `{"id":"`+id+`"}`); reply.State != batch.StateRunning {
			t.Errorf("15 s after the owner was cut off the batch is %s", reply.State)
		}
		cable.Refuse("")
		reply := l.awaitBatch(id, func(d batch.Deferred) bool { return d.State.Over() })
		if !reply.AllSucceeded() || len(reply.Results) != 300 {
			t.Errorf("%d errors of %d", reply.ErrorCount(), len(reply.Results))
		}
		if n := calls.again(); n > parallel {
			t.Errorf("%d calls made again, %d were in flight", n, parallel)
		}
	})
}

// While the stream is full, new batches are refused by name, and an answer that finds no room waits until there is some:
// no further call is made meanwhile, and none again.
func TestAFullStreamOfBatchesLosesNoAnswer(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var calls counter
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: calls.script}, map[string]string{"STAGE_BATCH_RPM": "openai=0"})
		stream := stagetest.Value(l.js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: "BATCHES", Subjects: []string{"batches.>"}, MaxMsgsPerSubject: 1, MaxBytes: 8000, Discard: jetstream.DiscardNew,
		}))(t)
		l.serveBatches()
		l.serveBatches() // must not take over what waits for room
		id := l.submit(requestOf(50, map[string]any{"max_parallel": 4}))
		time.Sleep(time.Minute)
		made := calls.made()
		time.Sleep(2 * time.Minute)
		if n := calls.made() - made; n > 0 {
			t.Errorf("%d calls while their answers can't be stored", n)
		}
		if reply, _ := l.ask("get", `{"id":"`+id+`"}`); reply.State != batch.StateRunning || reply.Done == 50 {
			t.Errorf("while the stream is full: %+v", reply)
		}
		if _, code := l.ask("submit", requestOf(1, nil)); code != "store_full" {
			t.Errorf("a new batch while the stream is full: %q", code)
		}
		cfg := stream.CachedInfo().Config
		cfg.MaxBytes = -1
		stagetest.Value(l.js.UpdateStream(t.Context(), cfg))(t)
		reply := l.awaitBatch(id, func(d batch.Deferred) bool { return d.State.Over() })
		if !reply.AllSucceeded() || calls.again() > 0 || calls.made() != 50 {
			t.Errorf("%d errors, %d calls, %d of them again", reply.ErrorCount(), calls.made(), calls.again())
		}
	})
}

// A batch that was removed from the stream by hand is forgotten, and what a term has stored of it since is removed.
func TestABatchThatWasRemovedByHandIsForgotten(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var calls counter
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: calls.script}, map[string]string{"STAGE_BATCH_RPM": "openai=0"})
		first := l.serveBatches()
		id := l.submit(requestOf(500, nil))
		l.awaitBatch(id, func(d batch.Deferred) bool { return d.Done >= 4 })
		stagetest.Must(t, streams.Purge(t.Context(), l.nc, "BATCHES", "batches.stage.>"))
		time.Sleep(time.Minute)
		made := calls.made()
		l.serveBatches()
		first.stop()
		time.Sleep(5 * time.Minute)
		if n := stagetest.Stored(t, l.js, "BATCHES", "batches.stage.>"); n != 0 || calls.made() != made {
			t.Errorf("%d messages are left, and %d calls were made since", n, calls.made()-made)
		}
		if _, code := l.ask("get", `{"id":"`+id+`"}`); code != batch.CodeNotFound {
			t.Errorf("%q", code)
		}
	})
}

// An owner that is out of touch begins no call: a prompt whose turn comes meanwhile is called once, by the replica that
// takes the batch over.
func TestAnOwnerThatIsOutOfTouchBeginsNoCall(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var calls counter
		l := newLab(t, llmtest.Config{Latency: time.Second, Script: calls.script}, map[string]string{"STAGE_BATCH_RPM": "openai=6"})
		cable := l.overCable()
		l.serveBatches()
		id := l.submit(requestOf(5, nil))
		l.awaitBatch(id, func(d batch.Deferred) bool { return d.Done == 2 }) // the third goes in seven seconds
		l.connect = nil
		l.serveBatches()
		cable.Refuse("maximum connections exceeded")
		cable.Fail("Stale Connection")
		time.Sleep(time.Minute)
		cable.Refuse("")
		if reply := l.awaitBatch(id, func(d batch.Deferred) bool { return d.State.Over() }); !reply.AllSucceeded() || calls.again() > 0 {
			t.Errorf("%d errors, %d calls made again", reply.ErrorCount(), calls.again())
		}
	})
}

// Another batch under the id of one that was removed has calls of its own in the audit, though the server still remembers
// those of the first.
func TestTheIDOfABatchMayBeUsedAgain(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, map[string]string{"STAGE_BATCH_RPM": "openai=0"})
		r := l.serveBatches()
		const times = 3
		for i := range times {
			l.submit(requestOf(1, map[string]any{"id": "again", "keep": "10s", "model": fmt.Sprint("model", i)}))
			for code := ""; code != batch.CodeNotFound; _, code = l.ask("get", `{"id": "again"}`) {
				time.Sleep(time.Second)
			}
		}
		r.stop()
		if calls := len(l.events(auditlog.KindCall)); calls != times {
			t.Errorf("%d calls in the audit, want %d", calls, times)
		}
	})
}
