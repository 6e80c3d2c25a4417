package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

var virtual = stagetest.Virtual

// process is a provider as one process reaches it, until it is killed.
type process struct {
	*provider
	dead atomic.Bool
}

var errDead = errors.New("the process is dead")

func (p *process) Upload(ctx context.Context, token string, lines batchapi.Lines) (string, error) {
	if p.dead.Load() {
		return "", errDead
	}
	return p.provider.Upload(ctx, token, lines)
}

func (p *process) Create(ctx context.Context, job batchapi.Job) (batchapi.Batch, error) {
	if p.dead.Load() {
		return batchapi.Batch{}, errDead
	}
	return p.provider.Create(context.WithoutCancel(ctx), job) // what is sent arrives
}

func (p *process) Cancel(ctx context.Context, id string) error {
	if p.dead.Load() {
		return errDead
	}
	return p.provider.Cancel(ctx, id)
}

func (p *process) Delete(ctx context.Context, b batchapi.Batch) error {
	if p.dead.Load() {
		return errDead
	}
	return p.provider.Delete(ctx, b)
}

func (p *process) Withdraw(ctx context.Context, token string, since time.Time) (bool, error) {
	if p.dead.Load() {
		return false, errDead
	}
	return p.provider.Withdraw(ctx, token, since)
}

// bench is a lane with a scripted provider, and with a consumer and an executor that do no more than they must.
type bench struct {
	t         *testing.T
	nats      *stagetest.NATS
	api       *provider
	settings  config.LaneConfig
	created   time.Time // of the input
	account   string
	reload    func() error
	step      func(step string)
	late      time.Duration // that the journal takes
	liveTime  time.Duration
	readTime  time.Duration // that the body of a recalled row takes
	model     func(seq uint64) string
	deadline  func(seq uint64) time.Time
	reply     func(seq uint64, e *Errand) bool // whether an answer settles the row; nil: 200 and 4xx but 429
	reserve   func(string, float64) error
	paused    func(error)
	halted    func() error
	reserved  int
	cancels   bool
	forgets   bool
	failFatal bool
	collect   bool
	onEvent   func(e *auditlog.Batch)

	mu       sync.Mutex
	kept     map[uint64]string // how a row was answered
	awaited  int               // rows, and all is closed
	all      chan struct{}
	twice    []uint64
	calls    map[uint64]int // live
	reading  int            // bodies of recalled rows
	readMost int
	events   []*auditlog.Batch
	again    []*auditlog.Batch // those of earlier terms
	hold     func(stored func())
	settled  map[string]float64
	unused   map[uint64]int // replies that no row took, by row
	fenced   error
	lane     *Lane
	proc     *process
	nc       *nats.Conn
	terms    int
	rows     uint64
	notTaken uint64 // rows above do not come in this term; 0: all do
}

func newBench(t *testing.T, api *provider) *bench {
	t.Helper()
	b := &bench{
		t: t, nats: stagetest.StartNATS(t), api: api, created: time.Now(), account: "one", late: 10 * time.Millisecond, liveTime: time.Second,
		kept: map[uint64]string{}, calls: map[uint64]int{}, settled: map[string]float64{}, unused: map[uint64]int{},
	}
	b.settings = config.LaneConfig{Rows: 100, Bytes: 100 << 20, Wait: time.Minute, Open: 10, Poll: 30 * time.Second, AdoptWait: 30 * time.Second, Stream: "LANE"}
	api.init()
	b.makeStream(-1)
	return b
}

// kinds are the kinds of providers: those that take a file first, and those that take the lines with the batch.
var kinds = map[string]func() *provider{"file": fileProvider, "inline": inlineProvider}

func inBothKinds(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	for name, api := range kinds {
		runVirtual(t, name, func(t *testing.T) {
			t.Helper()
			f(t, newBench(t, api()))
		})
	}
}

// withBench runs a test in virtual time, with a provider that takes files.
func withBench(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	virtual(t, func(t *testing.T) { f(t, newBench(t, fileProvider())) })
}

func (b *bench) makeStream(bytes int64) {
	b.t.Helper()
	stagetest.Value(b.nats.JS.CreateOrUpdateStream(b.t.Context(), jetstream.StreamConfig{Name: "LANE", Subjects: []string{"lane.>"}, MaxBytes: bytes, Discard: jetstream.DiscardNew, AllowDirect: true}))(b.t)
}

func logger() *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

// failureOf is what a line with an error status means, as live calls are judged.
func (b *bench) failureOf(line *batchapi.Line) *llm.Error {
	e := &llm.Error{Provider: "mock", Status: line.Status, Class: llm.Transient, Err: errors.New(string(line.Body))}
	switch {
	case line.Status == 401, line.Status == 404:
		e.Class = llm.Fatal
	case line.Status == 429:
		e.Class = llm.Capacity
	case line.Status/100 == 4:
		e.Class, e.Alike = llm.Permanent, strconv.Itoa(line.Status)
	}
	return e
}

// open begins a term in a process of its own, and hands it the rows.
func (b *bench) open() {
	b.t.Helper()
	b.terms++
	b.nc, b.proc = b.nats.Connect(), &process{provider: b.api}
	proc, account := b.proc, b.account
	cfg := Config{
		NC: b.nc, Name: "stage", Settings: b.settings, Provider: "mock", API: proc, ProbeInterval: time.Minute, Logger: logger(), Reserve: b.reserve,
		Account:   func() string { return account },
		Forgets:   b.forgets,
		FailFatal: b.failFatal,
		Collect:   b.collect,
		ReloadKey: b.reload,
		Paused:    b.paused,
		Halted:    b.halted,
		Record: func(e *auditlog.Batch, again bool, stored func()) {
			b.mu.Lock()
			if again {
				b.again = append(b.again, e)
			} else {
				b.events = append(b.events, e)
			}
			if b.hold != nil {
				b.hold(stored)
				stored = func() {}
			}
			b.mu.Unlock()
			if b.onEvent != nil && !again {
				b.onEvent(e)
			}
			stored()
		},
		Settle: func(token string, usd float64) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.settled[token] = usd
		},
		Read: func(_ string, line *batchapi.Line) (*auditlog.Usage, *llm.Error) {
			if line.Status != 200 {
				return nil, b.failureOf(line)
			}
			usd := .01
			return &auditlog.Usage{PromptTokens: 10, CompletionTokens: 5, TotalTokens: 15, CostUSD: &usd}, nil
		},
		Unused: func(u *Unused, stored func()) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.unused[u.Seq]++
			if b.hold != nil {
				b.hold(stored)
				return
			}
			stored()
		},
		CancelOnStop: func() bool { return b.cancels },
		Step:         func(s string) { b.hook(proc, s) },
	}
	l := stagetest.Value(New(cfg))(b.t)
	b.lane = l
	term := consumer.LaneTerm{
		Owner: fmt.Sprintf("run.%d", b.terms), InputCreated: b.created,
		Recall: func(seq uint64, errand any) { go b.recalled(l, proc, seq, errand) },
		Fenced: func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.fenced = err
		},
	}
	stagetest.Must(b.t, l.Open(b.t.Context(), term))
	for seq := uint64(1); seq <= b.rows && (b.notTaken == 0 || seq <= b.notTaken); seq++ {
		b.take(l, proc, seq)
	}
}

// take has a row come in a term.
func (b *bench) take(l *Lane, proc *process, seq uint64) {
	b.mu.Lock()
	_, kept := b.kept[seq]
	b.mu.Unlock()
	if kept {
		l.Kept(seq)
	} else if !l.Holds(&consumer.Row{Seq: seq}) {
		b.execute(l, proc, seq, nil)
	}
}

func (b *bench) hook(proc *process, step string) {
	b.mu.Lock()
	f := b.step
	b.mu.Unlock()
	if f != nil && !proc.dead.Load() {
		f(step)
	}
}

// onStep has f called at each step from now on; nil: nothing is.
func (b *bench) onStep(f func(step string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.step = f
}

// add has new rows come.
func (b *bench) add(n int) {
	for range n {
		b.rows++
		b.take(b.lane, b.proc, b.rows)
	}
}

func (b *bench) request(seq uint64) Request {
	r := Request{Seq: seq, Key: llm.Hash([]byte(strconv.FormatUint(seq, 10))), Tokens: 100, Cost: .01, Prepared: &llm.Prepared{Model: "large", Body: []byte("row " + strconv.FormatUint(seq, 10))}}
	if b.model != nil {
		r.Prepared.Model = b.model(seq)
	}
	if b.deadline != nil {
		r.Deadline = b.deadline(seq)
	}
	return r
}

// recalled reads the body of a row again, and executes it. Rows with an answer have a bound of their own and are not
// counted.
func (b *bench) recalled(l *Lane, proc *process, seq uint64, errand any) {
	if e, _ := errand.(*Errand); e == nil || e.Live {
		b.mu.Lock()
		b.reading++
		b.readMost = max(b.readMost, b.reading)
		b.mu.Unlock()
		time.Sleep(b.readTime)
		b.mu.Lock()
		b.reading--
		b.mu.Unlock()
	}
	b.execute(l, proc, seq, errand)
}

// execute does what the executor and the consumer do with a row.
func (b *bench) execute(l *Lane, proc *process, seq uint64, errand any) {
	e, _ := errand.(*Errand)
	switch {
	case proc.dead.Load():
	case e == nil:
		l.Add(b.request(seq))
	case e.Live:
		time.Sleep(b.liveTime)
		if proc.dead.Load() {
			return
		}
		b.mu.Lock()
		b.calls[seq]++
		b.mu.Unlock()
		b.keep(l, proc, seq, "live")
	case !e.Answers(b.request(seq).Key):
		b.t.Errorf("row %d: the answer is of another request", seq)
	case b.settles(seq, e):
		b.keep(l, proc, seq, strconv.Itoa(e.Line.Status)+" "+string(e.Line.Body))
	default:
		l.Again(seq, e)
	}
}

func (b *bench) settles(seq uint64, e *Errand) bool {
	if b.reply != nil {
		return b.reply(seq, e)
	}
	return e.Line.Status == 200 || e.Line.Status/100 == 4 && e.Line.Status != 429
}

func (b *bench) keep(l *Lane, proc *process, seq uint64, how string) {
	time.Sleep(b.late)
	if proc.dead.Load() {
		return
	}
	b.mu.Lock()
	if _, had := b.kept[seq]; had {
		b.twice = append(b.twice, seq)
	}
	b.kept[seq] = how
	if len(b.kept) == b.awaited {
		close(b.all)
	}
	b.mu.Unlock()
	l.Kept(seq)
}

// addAndAwait has new rows come, and returns at the very moment when the last row is kept.
func (b *bench) addAndAwait(n int) {
	b.awaited, b.all = n, make(chan struct{})
	b.add(n)
	<-b.all
}

// checkTidy looks for records of batches.
func (b *bench) checkTidy() {
	b.t.Helper()
	left := stagetest.Value(Batches(b.t.Context(), b.nats.JS, "LANE", "stage", 1, time.Now()))(b.t)
	for _, one := range left {
		b.t.Errorf("batch %s is recorded as %s", one.Token, one.State)
	}
}

// kill ends the process: nothing more of it reaches anybody.
func (b *bench) kill() {
	b.proc.dead.Store(true)
	b.nc.Close()
	b.lane.abort()
}

// close ends the term.
func (b *bench) close() {
	b.lane.Stop()
	b.lane.Close()
	b.proc.dead.Store(true)
	b.nc.Close()
}

// await waits until all rows are kept.
func (b *bench) await(most time.Duration) {
	b.t.Helper()
	b.until(most, "all rows to be kept", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return uint64(len(b.kept)) == b.rows
	})
}

func (b *bench) until(most time.Duration, what string, f func() bool) {
	b.t.Helper()
	for end := time.Now().Add(most); !f(); time.Sleep(time.Second) {
		if time.Now().After(end) {
			b.t.Fatalf("waited %v for %s: kept %d of %d, status %+v", most, what, len(b.kept), b.rows, b.lane.Status())
		}
	}
}

// finish waits until all rows are kept, ends the term and checks.
func (b *bench) finish(most time.Duration) {
	b.t.Helper()
	b.await(most)
	b.close()
	b.check()
}

// check looks for what must hold at the end.
func (b *bench) check() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for seq := range b.rows {
		if b.kept[seq+1] == "" {
			b.t.Errorf("row %d is lost", seq+1)
		}
	}
	b.api.mu.Lock()
	defer b.api.mu.Unlock()
	for token, n := range b.api.creates {
		if n > 1 {
			b.t.Errorf("batch %s was created %d times", token, n)
		}
	}
	in := map[uint64]string{}
	for _, r := range b.api.batches {
		if r.State == batchapi.Refused || r.State == batchapi.Cancelled || r.State == batchapi.Expired {
			continue
		}
		for _, seq := range r.seqs {
			if in[seq] != "" && b.api.answer == nil && b.reply == nil {
				b.t.Errorf("row %d is in batches %s and %s", seq, in[seq], r.ID)
			}
			in[seq] = r.ID
		}
	}
}

// phases are those of the events, joined.
func (b *bench) phases() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var text []string
	for _, e := range b.events {
		text = append(text, string(e.Phase))
	}
	return strings.Join(text, " ")
}

func runVirtual(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { virtual(t, f) })
}
