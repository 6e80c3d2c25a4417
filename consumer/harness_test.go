package consumer_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/recorder"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var virtual = stagetest.Virtual

// testbed is one embedded server and what runs against it. The server may be stopped and started again on its store.
type testbed struct {
	t   *testing.T
	dir string
	// options changes those of the server; nil: none.
	options func(*server.Options)
	// login is how connections authenticate.
	login nats.Option
	// partitions of the input, where it has some.
	partitions int
	srv        *server.Server
	mu         sync.Mutex // srv
	nc         *nats.Conn
	js         jetstream.JetStream
	log        *slog.Logger
}

// bare returns a testbed without streams.
func bare(t *testing.T) *testbed {
	t.Helper()
	return bareWith(t, nil, nil)
}

func bareWith(t *testing.T, options func(*server.Options), login nats.Option) *testbed {
	t.Helper()
	b := &testbed{t: t, dir: stagetest.Dir(t), options: options, login: login, log: slog.New(slog.NewTextHandler(logWriter(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
	b.startServer()
	t.Cleanup(b.stopServer)
	b.nc = b.connect()
	b.js = stagetest.Value(jetstream.New(b.nc))(t)
	return b
}

// onTestbed runs a test in virtual time, on a testbed with the streams of a stage.
func onTestbed(t *testing.T, f func(t *testing.T, b *testbed)) {
	t.Helper()
	virtual(t, func(t *testing.T) { f(t, newTestbed(t)) })
}

// runOnTestbed is [onTestbed] for a case of a test, and runVirtual where it needs another testbed.
func runOnTestbed(t *testing.T, name string, f func(t *testing.T, b *testbed)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { onTestbed(t, f) })
}

func runVirtual(t *testing.T, name string, f func(t *testing.T)) bool {
	t.Helper()
	return t.Run(name, func(t *testing.T) { virtual(t, f) })
}

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	b := bare(t)
	stagetest.Must(t, streams.Ensure(t.Context(), b.nc, stageStreams()))
	return b
}

func (b *testbed) startServer() {
	b.t.Helper()
	srv := stagetest.Value(server.NewServer(b.serverOptions()))(b.t)
	srv.Start()
	if !srv.ReadyForConnections(time.Minute) {
		b.t.Fatal("server not ready")
	}
	b.mu.Lock()
	b.srv = srv
	b.mu.Unlock()
	if b.nc != nil {
		time.Sleep(time.Second) // until the test's own client has reconnected: a request made before may be lost
	}
}

func (b *testbed) serverOptions() *server.Options {
	opts := &server.Options{ServerName: "test", DontListen: true, JetStream: true, StoreDir: b.dir, NoSigs: true, NoLog: true}
	if b.options != nil {
		b.options(opts)
	}
	return opts
}

func (b *testbed) stopServer() {
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
}

// InProcessConn connects to the server that runs at the moment, so that a client's reconnect finds the next one.
func (b *testbed) InProcessConn() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.srv.InProcessConn()
}

func (b *testbed) connect() *nats.Conn {
	b.t.Helper()
	opts := []nats.Option{
		nats.InProcessServer(b), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.log.Debug("async", slog.Any("error", err)) }),
	}
	if b.login != nil {
		opts = append(opts, b.login)
	}
	nc := stagetest.Value(nats.Connect("", opts...))(b.t)
	b.t.Cleanup(nc.Close)
	return nc
}

// logWriter shows the stage's log with -v.
func logWriter() io.Writer {
	if testing.Verbose() {
		return os.Stderr
	}
	return io.Discard
}

func stageStreams() streams.Config {
	return streams.Config{
		Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
		AuditStream: "AUDIT", AuditSubject: "audit", Partitions: 1, Create: true, Replicas: 1,
		Journal: true, JournalStream: "JOURNAL", JournalMaxBytes: 64 << 20,
	}
}

func (b *testbed) load(n int) {
	b.t.Helper()
	b.loadFrom(0, n)
}

func (b *testbed) loadFrom(first, n int) {
	b.t.Helper()
	for i := first; i < first+n; i++ {
		stagetest.Value(b.js.Publish(b.t.Context(), "rows.a", []byte(`{"n":`+strconv.Itoa(i)+`}`)))(b.t)
	}
}

// answered publishes a row with each of the headers, has a replica answer them, and returns their results.
func (b *testbed) answered(cfg consumer.Config, headers ...nats.Header) []jetstream.Msg {
	b.t.Helper()
	for _, h := range headers {
		stagetest.Value(b.js.PublishMsg(b.t.Context(), &nats.Msg{Subject: "rows.a", Data: []byte("{}"), Header: h}))(b.t)
	}
	b.startWith(cfg).stopAfter(b, len(headers))
	return b.read("RESULTS", resultRows)
}

// replica is one process of the stage.
type replica struct {
	*consumer.Consumer
	nc   *nats.Conn
	rec  *recorder.Recorder
	soft context.CancelFunc
	hard context.CancelFunc
	done chan error
	// ended is closed when Run has returned.
	ended chan struct{}
}

func (b *testbed) config(run string, exec consumer.Executor) consumer.Config {
	return consumer.Config{
		DurableConfig: durableConfig(), RunID: run, ResultSubject: "results",
		Journal: true, JournalStream: "JOURNAL", JournalAfter: 50 * time.Millisecond, Executor: exec, Logger: b.log.With(slog.String("run", run)),
	}
}

func (b *testbed) start(run string, exec consumer.Executor) *replica {
	b.t.Helper()
	return b.startWith(b.config(run, exec))
}

func (b *testbed) startWith(cfg consumer.Config) *replica {
	b.t.Helper()
	if s, ok := cfg.Executor.(*sleeper); ok && s.over == nil {
		s.over = b.t.Context().Done()
	}
	return b.startOn(b.connect(), cfg)
}

func (b *testbed) startOn(nc *nats.Conn, cfg consumer.Config) *replica {
	b.t.Helper()
	rec := recorder.New(nc, recorder.Config{Stream: "AUDIT", Subject: "audit", Name: cfg.Name, Logger: cfg.Logger})
	cfg.Recorder = rec
	c := stagetest.Value(consumer.New(nc, cfg))(b.t)
	soft, stop := context.WithCancel(b.t.Context())
	hard, kill := context.WithCancel(b.t.Context())
	r := &replica{Consumer: c, nc: nc, rec: rec, soft: stop, hard: kill, done: make(chan error, 1), ended: make(chan struct{})}
	recording, stopRecording := context.WithCancel(context.WithoutCancel(b.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { _ = rec.Run(recording) })
	go func() {
		err := c.Run(soft, hard)
		stopRecording()
		wg.Wait()
		r.done <- err
		close(r.ended)
	}()
	return r
}

// finish waits until n rows have results, stops the replica and checks the streams.
func (b *testbed) finish(r *replica, n int) {
	b.t.Helper()
	r.stopAfter(b, n)
	b.check(n)
}

// stopAfter waits until n rows have results, and stops the replica.
func (r *replica) stopAfter(b *testbed, n int) {
	b.t.Helper()
	b.until(n)
	r.stop(b.t)
}

func (r *replica) awaitOwner(b *testbed) {
	b.t.Helper()
	b.await("an owner", func() bool { return r.Status().Role == consumer.Owner })
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
	<-r.ended
}

// sleeper answers each row after a random time, or after its own.
type sleeper struct {
	low, high time.Duration
	latency   func(seq uint64) time.Duration // nil: between low and high
	drain     chan struct{}                  // closed: rows that no call is made for are handed back

	body []byte // of each reply; nil: made of the row's

	over <-chan struct{} // closed with the test

	mu    sync.Mutex
	calls map[uint64]int // calls made, by row
	kept  int            // rows answered from the journal
	wg    sync.WaitGroup
}

// unhurried returns a sleeper that answers after a time as an LLM's.
func unhurried() *sleeper { return &sleeper{low: 50 * time.Millisecond, high: 400 * time.Millisecond} }

// slowRow answers one row after a time of its own, and every other one after another.
func slowRow(row uint64, takes, others time.Duration) *sleeper {
	return &sleeper{latency: func(seq uint64) time.Duration {
		if seq == row {
			return takes
		}
		return others
	}}
}

func (s *sleeper) Start(row *consumer.Row) {
	s.wg.Go(func() {
		if k := row.Kept; k != nil && k.RequestHash == requestHash(row) {
			s.mu.Lock()
			s.kept++
			s.mu.Unlock()
			reply := k.Reply
			reply.Event.Source = auditlog.SourceJournal
			row.Reply(reply)
			return
		}
		if !row.Wanted() {
			row.Reply(consumer.Reply{HandedBack: true})
			return
		}
		s.called(row.Seq)
		latency := s.low + rand.N(s.high-s.low+1)
		if s.latency != nil {
			latency = s.latency(row.Seq)
		}
		select {
		case <-time.After(latency):
		case <-s.drain:
			row.Reply(consumer.Reply{HandedBack: true})
			return
		case <-s.over:
			return
		}
		row.RecordCall(&auditlog.Call{Header: auditlog.Header{Time: time.Now()}, Status: auditlog.CallSuccess})
		body := s.body
		if body == nil {
			body = append([]byte("done "), row.Body...)
		}
		row.Reply(consumer.Reply{
			Body: body, RequestHash: requestHash(row),
			Event: auditlog.Row{FinishedAt: time.Now(), Source: auditlog.SourceCall, Attempts: 1},
		})
	})
}

// checkOnce checks that each row was called once.
func (s *sleeper) checkOnce(t *testing.T) {
	t.Helper()
	for seq, calls := range s.calls {
		if calls != 1 {
			t.Errorf("row %d called %d times", seq, calls)
		}
	}
}

func requestHash(row *consumer.Row) string { return "hash of " + string(row.Body) }

func (s *sleeper) called(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = make(map[uint64]int)
	}
	s.calls[seq]++
}

// check reads the streams: each of the n rows has one result, in order, and its audit is complete.
func (b *testbed) check(n int) {
	b.t.Helper()
	results := b.read("RESULTS", "results.stage.0.rows")
	var last uint64
	for i, m := range results {
		seq := stagetest.Value(strconv.ParseUint(m.Headers().Get(streams.HeaderSourceSeq), 10, 64))(b.t)
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
	b.checkAudit(results, nil)
}

// checkAudit looks for the row event of each result, and for a call event of its row, or of each of its elements; elements
// is nil where rows have none.
func (b *testbed) checkAudit(results []jetstream.Msg, elements func(seq uint64) int) {
	b.t.Helper()
	rows, calls, ids := make(map[string]bool), make(map[string]int), make(map[string]bool)
	for _, m := range b.read("AUDIT", "audit.stage.*.*") {
		if id := m.Headers().Get(nats.MsgIdHdr); ids[id] {
			b.t.Errorf("event %s is stored twice", id)
		} else {
			ids[id] = true
		}
		e := stagetest.Value(auditlog.Decode(m.Data()))(b.t)
		switch e.Kind {
		case auditlog.KindRow:
			rows[e.Row.StateID+"|"+e.Row.Owner] = true
		case auditlog.KindCall:
			calls[e.Call.StateID]++
		case auditlog.KindRun, auditlog.KindBatch:
		}
	}
	for _, m := range results {
		id := m.Headers().Get(streams.HeaderStateID)
		if !rows[id+"|"+m.Headers().Get(streams.HeaderOwner)] {
			b.t.Errorf("result %s has no row event of its owner", id)
		}
		if elements == nil && calls[id] == 0 {
			b.t.Errorf("result %s has no call event", id)
		}
		for i := 0; elements != nil && i < elements(sourceSeq(b, m)); i++ {
			if calls[auditlog.ItemStateID(id, i)] == 0 {
				b.t.Errorf("result %s has no call event of its element %d", id, i)
			}
		}
	}
}

func (b *testbed) read(stream, filter string) []jetstream.Msg {
	b.t.Helper()
	c := stagetest.Value(b.js.OrderedConsumer(b.t.Context(), stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}}))(b.t)
	var all []jetstream.Msg
	for {
		batch := stagetest.Value(c.FetchNoWait(1000))(b.t)
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

// stored returns the number of messages that a stream has on a subject.
func (b *testbed) stored(stream, subject string) int {
	b.t.Helper()
	return stagetest.Stored(b.t, b.js, stream, subject)
}

func (b *testbed) results() int { b.t.Helper(); return b.stored("RESULTS", resultRows) }

// until waits in virtual time until n results are stored.
func (b *testbed) until(n int) {
	b.t.Helper()
	b.await(fmt.Sprintf("%d results", n), func() bool { return b.results() >= n })
}

// await waits in virtual time for a condition, which may take hours: it looks ten times a second at first, and more seldom
// the longer it takes.
func (b *testbed) await(what string, ok func() bool) {
	b.t.Helper()
	for began := time.Now(); time.Since(began) < 24*time.Hour; {
		if ok() {
			return
		}
		time.Sleep(max(100*time.Millisecond, min(time.Since(began)/20, time.Minute)))
	}
	b.t.Fatalf("waited in vain for %s", what)
}

// durable returns the state of the stage's consumer.
func (b *testbed) durable() *jetstream.ConsumerInfo {
	b.t.Helper()
	c := stagetest.Value(b.js.Consumer(b.t.Context(), "ROWS", "stage-0"))(b.t)
	return c.CachedInfo()
}

// createDurable does what an operator does for a stage that must not.
func (b *testbed) createDurable() {
	b.t.Helper()
	stagetest.Value(streams.OpenDurable(b.t.Context(), b.nc, durableConfig()))(b.t)
}

func durableConfig() streams.DurableConfig {
	return streams.DurableConfig{Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", WindowRows: 64, Create: true}
}
