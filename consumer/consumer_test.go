package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) {
	ats.Register() // the server's clock must tick outside the bubbles, or virtual time stands still
	os.Exit(m.Run())
}

// bench is one embedded server and what runs against it.
type bench struct {
	t   *testing.T
	srv *natsd.Server
	js  jetstream.JetStream
	nc  *nats.Conn
	log *slog.Logger
}

func newBench(t *testing.T) *bench {
	t.Helper()
	srv, err := natsd.Start(natsd.Config{Dir: t.TempDir(), NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	b := &bench{t: t, srv: srv, log: slog.New(slog.NewTextHandler(logWriter(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
	b.nc = b.connect()
	if b.js, err = jetstream.New(b.nc); err != nil {
		t.Fatal(err)
	}
	if err := consumer.EnsureStreams(t.Context(), b.nc, streams("stage")); err != nil {
		t.Fatal(err)
	}
	return b
}

// logWriter shows the stage's log with -v.
func logWriter() io.Writer {
	if testing.Verbose() {
		return os.Stderr
	}
	return io.Discard
}

func streams(name string) consumer.Streams {
	return consumer.Streams{
		Name: name, InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
		AuditStream: "AUDIT", AuditSubject: "audit", Partitions: 1, Create: true, Replicas: 1,
	}
}

func (b *bench) connect() *nats.Conn {
	b.t.Helper()
	nc, err := b.srv.Connect()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	return nc
}

func (b *bench) load(n int) {
	b.t.Helper()
	for i := range n {
		if _, err := b.js.Publish(b.t.Context(), "rows.a", []byte(`{"n":`+strconv.Itoa(i)+`}`)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// replica is one process of the stage.
type replica struct {
	*consumer.Consumer
	nc   *nats.Conn
	soft context.CancelFunc
	hard context.CancelFunc
	done chan error
}

func (b *bench) start(run string, exec consumer.Executor, change func(*consumer.Config)) *replica {
	b.t.Helper()
	nc := b.connect()
	rec := consumer.NewRecorder(nc, consumer.RecorderConfig{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: b.log})
	cfg := consumer.Config{
		Name: "stage", RunID: run, InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
		WindowRows: 64, Create: true, Executor: exec, Recorder: rec, Logger: b.log.With(slog.String("run", run)),
	}
	if change != nil {
		change(&cfg)
	}
	c, err := consumer.New(nc, cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	soft, stop := context.WithCancel(b.t.Context())
	hard, kill := context.WithCancel(b.t.Context())
	r := &replica{Consumer: c, nc: nc, soft: stop, hard: kill, done: make(chan error, 1)}
	recording, stopRecording := context.WithCancel(context.WithoutCancel(b.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { _ = rec.Run(recording) })
	go func() {
		err := c.Run(soft, hard)
		stopRecording()
		wg.Wait()
		r.done <- err
	}()
	return r
}

// stop drains the replica.
func (r *replica) stop(t *testing.T) {
	t.Helper()
	r.soft()
	if err := <-r.done; err != nil {
		t.Errorf("run: %v", err)
	}
	r.hard()
}

// kill ends the replica as a crash would: nothing more of it reaches the server.
func (r *replica) kill() {
	r.nc.Close()
	r.hard()
	r.soft()
	<-r.done
}

// sleeper answers each row after a random time.
type sleeper struct {
	low, high time.Duration
	mu        sync.Mutex
	started   map[uint64]int
	wg        sync.WaitGroup
}

func (s *sleeper) Start(row *consumer.Row) {
	s.mu.Lock()
	if s.started == nil {
		s.started = make(map[uint64]int)
	}
	s.started[row.Seq]++
	s.mu.Unlock()
	s.wg.Go(func() {
		time.Sleep(s.low + rand.N(s.high-s.low+1))
		if !row.Wanted() {
			row.Reply(consumer.Reply{HandedBack: true})
			return
		}
		row.RecordCall(&auditlog.Call{Header: auditlog.Header{Time: time.Now()}, Status: auditlog.CallSuccess})
		row.Reply(consumer.Reply{Body: append([]byte("done "), row.Body...), Event: auditlog.Row{FinishedAt: time.Now()}})
	})
}

// results reads the results stream and checks that it holds each of the n rows once, in order, and the audit before it.
func (b *bench) check(n int) {
	b.t.Helper()
	results := b.read("RESULTS", "results.stage.0.rows")
	var last uint64
	for i, m := range results {
		seq, err := strconv.ParseUint(m.Headers().Get(consumer.HeaderSourceSeq), 10, 64)
		if err != nil {
			b.t.Fatal(err)
		}
		if seq <= last {
			b.t.Fatalf("result %d: sequence %d after %d", i, seq, last)
		}
		last = seq
		if got, want := string(m.Data()), fmt.Sprintf(`done {"n":%d}`, i); got != want {
			b.t.Fatalf("result %d: got %s, want %s", i, got, want)
		}
	}
	if len(results) != n {
		b.t.Fatalf("got %d results, want %d", len(results), n)
	}
	events := make(map[string]auditlog.Row)
	for _, m := range b.read("AUDIT", "audit.stage.0.row") {
		var e struct {
			StateID string `json:"state_id"`
			Owner   string `json:"owner"`
		}
		if err := json.Unmarshal(m.Data(), &e); err != nil {
			b.t.Fatal(err)
		}
		events[e.StateID+"|"+e.Owner] = auditlog.Row{}
	}
	for _, m := range results {
		key := m.Headers().Get(consumer.HeaderStateID) + "|" + m.Headers().Get(consumer.HeaderOwner)
		if _, ok := events[key]; !ok {
			b.t.Errorf("result %s has no row event", key)
		}
	}
}

func (b *bench) read(stream, filter string) []jetstream.Msg {
	b.t.Helper()
	c, err := b.js.OrderedConsumer(b.t.Context(), stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		b.t.Fatal(err)
	}
	var all []jetstream.Msg
	for {
		batch, err := c.FetchNoWait(1000)
		if err != nil {
			b.t.Fatal(err)
		}
		n := 0
		for m := range batch.Messages() {
			all = append(all, m)
			n++
		}
		if n == 0 {
			return all
		}
	}
}

// until waits in virtual time until n results are stored.
func (b *bench) until(n int) {
	b.t.Helper()
	for range 100_000 {
		s, err := b.js.Stream(b.t.Context(), "RESULTS")
		if err != nil {
			b.t.Fatal(err)
		}
		info, err := s.Info(b.t.Context(), jetstream.WithSubjectFilter("results.stage.0.rows"))
		if err != nil {
			b.t.Fatal(err)
		}
		if info.State.Subjects["results.stage.0.rows"] >= uint64(n) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.t.Fatalf("no %d results in time", n)
}

func TestResultsComeInStreamOrderWhateverTheLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.load(300)
		r := b.start("run1", &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond}, nil)
		b.until(300)
		r.stop(t)
		b.check(300)
	})
}

func TestARowIsAckedOnlyAfterItsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.load(10)
		r := b.start("run1", &sleeper{low: time.Hour, high: time.Hour}, nil)
		time.Sleep(time.Minute)
		info, err := b.js.Consumer(t.Context(), "ROWS", "stage-0")
		if err != nil {
			t.Fatal(err)
		}
		if got := info.CachedInfo(); got.NumAckPending != 10 || got.AckFloor.Stream != 0 {
			t.Errorf("while rows wait: ack pending %d, floor %d, want 10 and 0", got.NumAckPending, got.AckFloor.Stream)
		}
		b.until(10)
		synctest.Wait()
		if info, err = b.js.Consumer(t.Context(), "ROWS", "stage-0"); err != nil {
			t.Fatal(err)
		}
		if got := info.CachedInfo(); got.NumAckPending != 0 || got.AckFloor.Stream != 10 {
			t.Errorf("after the results: ack pending %d, floor %d, want 0 and 10", got.NumAckPending, got.AckFloor.Stream)
		}
		r.stop(t)
	})
}

func TestAKilledOwnerIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.load(500)
		exec := &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond}
		for i := range 4 {
			r := b.start("run"+strconv.Itoa(i), exec, nil)
			b.until((i + 1) * 90)
			r.kill()
		}
		r := b.start("last", exec, nil)
		b.until(500)
		r.stop(t)
		exec.wg.Wait()
		b.check(500)
	})
}

func TestManyReplicasEmitEachRowOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.load(400)
		exec := &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond}
		var rs []*replica
		for i := range 3 {
			rs = append(rs, b.start("run"+strconv.Itoa(i), exec, nil))
		}
		for i := range 4 {
			b.until(i*90 + 10)
			for _, r := range rs {
				if r.Status().Role == consumer.Owner {
					in, err := b.js.Stream(t.Context(), "ROWS")
					if err != nil {
						t.Fatal(err)
					}
					// The pin is taken from a healthy owner: it must notice and make way, or go on.
					if err := in.UnpinConsumer(t.Context(), "stage-0", "stage"); err != nil {
						t.Logf("unpin: %v", err)
					}
				}
			}
		}
		b.until(400)
		for _, r := range rs {
			r.stop(t)
		}
		exec.wg.Wait()
		b.check(400)
	})
}

func TestACleanStopHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.load(200)
		exec := &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond}
		first := b.start("first", exec, nil)
		second := b.start("second", exec, nil)
		b.until(60)
		owner, standby := first, second
		if second.Status().Role == consumer.Owner {
			owner, standby = second, first
		}
		owner.stop(t)
		time.Sleep(200 * time.Millisecond)
		if got := standby.Status().Role; got != consumer.Owner {
			t.Errorf("200 ms after a clean stop: standby is %s, want %s", got, consumer.Owner)
		}
		b.until(200)
		standby.stop(t)
		b.check(200)
	})
}
