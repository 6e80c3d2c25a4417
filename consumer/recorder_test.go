package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestRecorderReportsEachEventAsItComes(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		var seen []auditlog.Event
		rec := recorder.New(b.connect(), recorder.Config{
			Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: slog.New(slog.DiscardHandler),
			Recorded: func(e auditlog.Event) { seen = append(seen, e) },
		})
		run := &auditlog.Run{Header: auditlog.Header{RunID: "r1"}, Phase: auditlog.PhaseStart}
		call := &auditlog.Call{Header: auditlog.Header{RunID: "r1"}, CallID: "c1"}
		rec.RecordRun(run)
		batch := &auditlog.Batch{Header: auditlog.Header{RunID: "r1"}, Token: "t1", Phase: auditlog.BatchIntent}
		rec.RecordCall(call, nil) // and nothing runs that could store them
		rec.RecordBatch(batch, nil)
		if len(seen) != 3 || seen[2].Batch != batch || seen[2].Kind != auditlog.KindBatch || seen[0].Run != run || seen[0].Kind != auditlog.KindRun || seen[1].Call != call || seen[1].RunID != "r1" {
			t.Errorf("recorded %+v", seen)
		}
	})
}

// A lane that repeats what it may have recorded before a crash makes one event of it, whoever owns the partition.
func TestAPhaseOfABatchIsStoredOnce(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		stored := 0
		for _, owner := range []string{"first", "second"} {
			r := b.record(b.connect(), 0, nil)
			for _, phase := range []auditlog.BatchPhase{auditlog.BatchIntent, auditlog.BatchEnded} {
				head := auditlog.Header{RunID: owner, Stage: "stage", Partition: 3}
				r.RecordBatch(&auditlog.Batch{Header: head, Owner: owner, Token: "t1", Phase: phase}, func() { stored++ })
			}
			r.check(t)
			r.end()
		}
		events := b.read("AUDIT", "audit.stage.3.batch")
		if len(events) != 2 || stored != 4 {
			t.Errorf("%d events, reported as stored %d times, want 2 and 4", len(events), stored)
		}
	})
}

// The first event of a run comes while Run begins. Sent before the subscription, it is stored and its answer dropped.
func TestNoEventIsSentBeforeItsAnswerCanArrive(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		rec := recorder.New(b.connect(), recorder.Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: b.log})
		rec.RecordRun(&auditlog.Run{Header: auditlog.Header{RunID: "r1"}, Phase: auditlog.PhaseStart})
		synctest.Wait() // whatever was sent is stored and answered
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- rec.Run(ctx) }()
		time.Sleep(100 * time.Millisecond)
		if n := rec.Pending(); n != 0 {
			t.Errorf("%d events wait for an answer after 100 ms, want none", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// recording is a running Recorder, and what it has reported.
type recording struct {
	*recorder.Recorder
	b      *testbed
	stored []atomic.Int32 // how often each event was reported as stored
	next   int
	end    func()
}

func (b *testbed) record(nc *nats.Conn, events int, change func(*recorder.Config)) *recording {
	b.t.Helper()
	cfg := recorder.Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: b.log}
	if change != nil {
		change(&cfg)
	}
	r := &recording{Recorder: recorder.New(nc, cfg), b: b, stored: make([]atomic.Int32, events)}
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.Run(ctx); err != nil {
			b.t.Error(err)
		}
	}()
	r.end = func() { cancel(); <-ended }
	synctest.Wait() // it knows what the stream accepts
	return r
}

// events records the next n.
func (r *recording) events(n int) {
	for range n {
		i := r.next
		r.next++
		r.RecordCall(callNumber(i), func() { r.stored[i].Add(1) })
	}
}

func callNumber(i int) *auditlog.Call {
	return &auditlog.Call{StateID: "s", Owner: "o", CallIndex: i, CallID: fmt.Sprint(i)}
}

// check waits until all are stored, and checks that each is in the stream once and was reported once.
func (r *recording) check(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Flush(ctx); err != nil {
		t.Error(err)
	}
	synctest.Wait()
	r.end()
	times := make(map[string]int)
	for _, m := range r.b.read("AUDIT", "audit.>") {
		times[m.Headers().Get("Nats-Msg-Id")]++
	}
	for i := range r.next {
		id := auditlog.MsgID("s", "o", auditlog.KindCall, i)
		if reports := r.stored[i].Load(); times[id] != 1 || reports != 1 {
			t.Errorf("event %d is stored %d times and was reported %d times", i, times[id], reports)
		}
	}
	if problem := r.Problem(); problem != "" {
		t.Errorf("still a problem: %s", problem)
	}
}

// answers counts the responses to all clients until the returned function is called.
func (b *testbed) answers() func() int {
	b.t.Helper()
	var n atomic.Int32
	sub := stagetest.Value(b.nc.Subscribe("_INBOX.>", func(*nats.Msg) { n.Add(1) }))(b.t)
	synctest.Wait()
	return func() int {
		synctest.Wait()
		_ = sub.Unsubscribe()
		return int(n.Load())
	}
}

func allow(atomic bool) func(*testbed) {
	return func(b *testbed) {
		b.t.Helper()
		cfg := jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"audit.>"}, DenyDelete: true, AllowDirect: true, AllowAtomicPublish: atomic}
		_ = b.js.DeleteStream(b.t.Context(), "AUDIT")
		if _, err := b.js.CreateStream(b.t.Context(), cfg); err != nil { // which knows no fast batches
			b.t.Fatal(err)
		}
	}
}

func TestEveryEventIsStoredOnceWhateverTheStreamAccepts(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*testbed)
		most  int // answers to 3,000 events
	}{
		{"fast batches", func(*testbed) {}, 300},
		{"atomic batches", allow(true), 3000},
		{"single messages", allow(false), 3000},
	} {
		runOnTestbed(t, c.name, func(t *testing.T, b *testbed) {
			c.setup(b)
			r := b.record(b.connect(), 3000, nil)
			count := b.answers()
			for range 30 {
				r.events(100)
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
			if got := count(); got > c.most {
				t.Errorf("%d answers, want at most %d", got, c.most)
			}
			r.check(t)
		})
	}
}

// A row's result waits for its events, so those of a single row must not wait for a full group.
func TestFewEventsAreSentAtOnce(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		r := b.record(b.connect(), 50, nil)
		for row := range 50 {
			begin := time.Now()
			r.events(1)
			r.RecordRow(&auditlog.Row{StateID: fmt.Sprint(row)}, nil)
			synctest.Wait()
			if r.Pending() > 0 || time.Since(begin) > 0 {
				t.Errorf("row %d: %d events wait after %v", row, r.Pending(), time.Since(begin))
			}
			time.Sleep(time.Millisecond)
		}
		r.check(t)
	})
}

func TestCallsWaitWhileTooManyEventsDo(t *testing.T) {
	bytes := len(callNumber(49).AppendJSON(nil, auditlog.PayloadsFull, 0))
	for name, c := range map[string]struct {
		limit func(*recorder.Config)
		want  int
	}{
		"events":                         {func(cfg *recorder.Config) { cfg.MaxPending = 20 }, 20},
		"bytes":                          {func(cfg *recorder.Config) { cfg.MaxPendingBytes = 20 * bytes }, 20},
		"fewer bytes than one event has": {func(cfg *recorder.Config) { cfg.MaxPendingBytes = 1 }, 1},
	} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			full("AUDIT")(b)
			r := b.record(b.connect(), 50, c.limit)
			done := make(chan struct{})
			go func() { defer close(done); r.events(50) }()
			time.Sleep(3 * time.Second)
			if got := r.Pending(); got != c.want {
				t.Errorf("%d events wait, want %d", got, c.want)
			}
			if r.Problem() == "" {
				t.Error("no problem is reported")
			}
			unlimited("AUDIT")(b)
			<-done
			r.check(t)
		})
	}
}

// A process that must end does not wait for room: events that find none are dropped and counted, those that wait for the
// server are still stored.
func TestCallsWaitForNoRoomOnceTheProcessMustEnd(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		full("AUDIT")(b)
		r := b.record(b.connect(), 51, func(cfg *recorder.Config) { cfg.MaxPending = 20 })
		done := make(chan struct{})
		go func() { defer close(done); r.events(50) }()
		time.Sleep(3 * time.Second)
		r.Hurry()
		synctest.Wait()
		select {
		case <-done:
		default:
			t.Fatal("a call still waits for room")
		}
		flush := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return r.Flush(ctx)
		}
		if err := flush(); err == nil || !strings.Contains(err.Error(), "audit: 50 events not stored, of them 30 dropped") {
			t.Errorf("flushed a full audit: %v", err)
		}
		unlimited("AUDIT")(b)
		if err := flush(); err == nil || err.Error() != "audit: 30 events dropped for want of room" {
			t.Errorf("flushed: %v", err)
		}
		r.events(1) // there is room again
		_ = flush()
		synctest.Wait()
		r.end()
		for i := range r.stored {
			want := int32(1)
			if i >= 20 && i < 50 {
				want = 0
			}
			if reports := r.stored[i].Load(); reports != want {
				t.Errorf("event %d was reported as stored %d times, want %d", i, reports, want)
			}
		}
	})
}

// Whatever happens to the groups, every event ends up in the stream, once.
func TestEventsOutliveTheirGroups(t *testing.T) {
	for _, c := range []struct {
		name         string
		options      func(*server.Options)
		breakIt, fix func(*testbed)
	}{
		{"no groups any more", nil, func(b *testbed) { full("AUDIT")(b); unlimited("AUDIT")(b) }, func(*testbed) {}},
		{"full, then freed", nil, full("AUDIT"), unlimited("AUDIT")},
		{"gone, then back", nil, drop("AUDIT"), func(b *testbed) { ensure(b) }},
		{"server restarted", nil, (*testbed).stopServer, (*testbed).startServer},
		{"too many at a time", func(o *server.Options) { o.JetStreamLimits.MaxBatchInflightPerStream = 1 }, func(b *testbed) {
			// A batch of another client, which never ends it.
			stagetest.Must(b.t, b.nc.PublishRequest("audit.other", "_INBOX.other.b1.10.fail.1.0.$FI", []byte("x")))
		}, func(*testbed) {}},
	} {
		runVirtual(t, c.name, func(t *testing.T) {
			b := bareWith(t, c.options, nil)
			ensure(b)
			r := b.record(b.connect(), 900, nil)
			c.breakIt(b)
			for range 9 {
				r.events(100)
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
			c.fix(b)
			time.Sleep(time.Minute)
			r.check(t)
		})
	}
}

// connectBy connects over a link that the test can break.
func (b *testbed) connectBy(l *link) *nats.Conn {
	b.t.Helper()
	nc := stagetest.Value(nats.Connect("", nats.InProcessServer(l), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond)))(b.t)
	b.t.Cleanup(func() {
		nc.Close()
		time.Sleep(time.Second) // what was in flight arrives, and the link's goroutines end
	})
	return nc
}

// The answers to all that is in flight are lost with the connection. Later events wait for them.
func TestLostAnswersAreNotWaitedForAfterAReconnect(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*testbed)
	}{{"fast batches", func(*testbed) {}}, {"atomic batches", allow(true)}, {"single messages", allow(false)}} {
		runOnTestbed(t, c.name, func(t *testing.T, b *testbed) {
			c.setup(b)
			l := newLink(b.InProcessConn, time.Millisecond)
			r := b.record(b.connectBy(l), 60, nil)
			time.Sleep(time.Second)
			l.set(func() { l.deaf = true })
			r.events(30)
			time.Sleep(50 * time.Millisecond) // they are stored
			l.set(func() { l.lose(); l.deaf = false })
			time.Sleep(100 * time.Millisecond) // connected again
			r.events(30)
			time.Sleep(time.Second)
			if n := r.Pending(); n != 0 {
				t.Errorf("%d events are not stored 1 s after the reconnect", n)
			}
			if problem := r.Problem(); problem != "" {
				t.Errorf("a reconnect is reported as a problem: %s", problem)
			}
			r.check(t)
		})
	}
}

// The connection breaks in the middle of groups and loses the messages in flight, or only answers are lost.
func TestEventsOutliveTheirConnection(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(*link)
	}{
		{"broken", (*link).drop},
		{"deaf", func(l *link) {
			l.set(func() { l.deaf = true })
			time.AfterFunc(5*time.Millisecond, func() { l.set(func() { l.deaf = false }) })
		}},
	} {
		runOnTestbed(t, c.name, func(t *testing.T, b *testbed) {
			l := newLink(b.InProcessConn, time.Millisecond)
			r := b.record(b.connectBy(l), 10_000, nil)
			time.Sleep(time.Second)
			rng := rand.New(rand.NewPCG(1, 2))
			for range 20 {
				for range 40 {
					r.events(1 + rng.IntN(10))
					time.Sleep(time.Millisecond)
				}
				c.fault(l)
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			}
			time.Sleep(30 * time.Second)
			r.check(t)
		})
	}
}

func TestAnAuditStreamIsCreatedWithFastBatchesWhichCanBeSwitched(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		if !b.takesFastBatches() {
			t.Error("the audit stream takes no fast batches")
		}
		allow(true)(b)
		ensure(b)
		if b.takesFastBatches() {
			t.Error("the setting of a stream that was there has changed")
		}
		// As docs/operations.md describes it.
		for _, on := range []bool{true, false} {
			config := b.auditConfig()
			config["allow_batched"] = on
			b.ask("$JS.API.STREAM.UPDATE.AUDIT", config)
			if got := b.takesFastBatches(); got != on {
				t.Errorf("takes fast batches: %v, want %v", got, on)
			}
		}
	})
}

// ask makes a request of JetStream and returns the answer.
func (b *testbed) ask(subject string, question any) map[string]any {
	b.t.Helper()
	body := stagetest.Value(json.Marshal(question))(b.t)
	m := stagetest.Value(b.nc.Request(subject, body, time.Minute))(b.t)
	var answer map[string]any
	if err := json.Unmarshal(m.Data, &answer); err != nil || answer["error"] != nil {
		b.t.Fatalf("%s: %v, %s", subject, err, m.Data)
	}
	return answer
}

func (b *testbed) auditConfig() map[string]any {
	b.t.Helper()
	config, _ := b.ask("$JS.API.STREAM.INFO.AUDIT", nil)["config"].(map[string]any)
	return config
}

func (b *testbed) takesFastBatches() bool {
	b.t.Helper()
	on, _ := b.auditConfig()["allow_batched"].(bool)
	return on
}
