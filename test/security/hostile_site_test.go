package security_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/ops/redrive"
	"github.com/llm-stage/stage/internal/ops/results"
	"github.com/llm-stage/stage/internal/ops/tail"
	"github.com/llm-stage/stage/internal/ops/usage"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// hostilePatience is how long a run may take for its results, and readPatience one command that reads, in virtual time.
	hostilePatience = 10 * time.Minute
	readPatience    = time.Minute
	// faultsMax is how many faults of a run are reported.
	faultsMax = 20
)

// hostileSite is a server with small messages, an LLM, and the processes of one stage.
type hostileSite struct {
	t      *testing.T
	way    string
	broker *stagetest.Broker
	js     jetstream.JetStream
	llm    *llmtest.PipeListener
	cfg    *config.Config
	by     *stranger
	rows   map[uint64]*message // of the input, by sequence
	faults int
	logs   *stagetest.Buffer
	tally
}

// tally is what runs have done.
type tally struct {
	Stages, Takeovers, Stored, Refused, Redriven int
	Kinds                                        map[string]int
}

func (a *tally) add(b tally) {
	a.Stages, a.Takeovers, a.Stored, a.Refused, a.Redriven = a.Stages+b.Stages, a.Takeovers+b.Takeovers, a.Stored+b.Stored, a.Refused+b.Refused, a.Redriven+b.Redriven
	if a.Kinds == nil {
		a.Kinds = make(map[string]int)
	}
	for k, n := range b.Kinds {
		a.Kinds[k] += n
	}
}

func (a tally) String() string {
	return fmt.Sprintf("%d messages stored, %d refused by the server, %d redriven; %d processes, %d take-overs; by kind %v", a.Stored, a.Refused, a.Redriven, a.Stages, a.Takeovers, a.Kinds)
}

// way is how a stage is run.
type way struct {
	name     string
	settings []string // pairs of variable and value
}

// ways are the orders with each place of a key, and what else looks into a row: the batch lane, and errors of an earlier
// stage that are processed.
var ways = []way{
	{"stream", nil},
	{"key", []string{"STAGE_ORDER", "key"}},
	{"none", []string{"STAGE_ORDER", "none"}},
	{"key header.X-Id", []string{"STAGE_ORDER", "key", "STAGE_ORDER_KEY", "header.X-Id"}},
	{"key subject.2", []string{"STAGE_ORDER", "key", "STAGE_ORDER_KEY", "subject.2"}},
	{"key field.n", []string{"STAGE_ORDER", "key", "STAGE_ORDER_KEY", "field.n"}},
	{"stream, upstream errors", []string{"STAGE_ON_UPSTREAM_ERROR", "process", "STAGE_DEDUPE", "inflight", "STAGE_AUDIT_PAYLOADS", "none"}},
	{"stream, lane", []string{"STAGE_LANE", "batch", "STAGE_LANE_WAIT", "1s", "STAGE_LANE_POLL", "1s"}},
	{"key, lane", []string{"STAGE_ORDER", "key", "STAGE_LANE", "batch", "STAGE_LANE_WAIT", "1s", "STAGE_LANE_POLL", "1s"}},
}

func newHostileSite(t *testing.T, w way) *hostileSite {
	t.Helper()
	s := &hostileSite{t: t, way: w.name, rows: make(map[uint64]*message), logs: &stagetest.Buffer{Shown: true}, tally: tally{Kinds: make(map[string]int)}}
	s.broker = stagetest.NewBrokerFor(t, payloadMax)
	var err error
	if s.js, err = jetstream.New(s.broker.Connect(s.broker)); err != nil {
		t.Fatal(err)
	}
	stagetest.Value(s.js.AccountInfo(t.Context()))(t)
	s.create(jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}})
	s.create(jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead.>"}})
	llm, err := llmtest.New(llmtest.Config{Script: answer, Batches: batches.Config{Delay: 5 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	var stop func()
	s.llm, stop = llm.Pipe()
	t.Cleanup(stop)
	s.cfg = stagetest.ConfigOfCalls(t, append([]string{
		"STAGE_LLM_PROVIDER", "openai", "STAGE_LLM_BASE_URL", s.llm.URL(), "STAGE_LLM_API_KEY", "sk-key", "STAGE_LLM_MODEL", "small",
		"STAGE_TEMPLATE", "Row {{ row.n }}", "STAGE_POOL_SIZE", "8", "STAGE_WINDOW", "64", "STAGE_STREAM_STORAGE", "memory", "STAGE_DEAD_LETTER_SUBJECT", "dead.rows",
		"STAGE_DASHBOARD_PAYLOADS", "true", "STAGE_RETRY_BASE_DELAY", "100ms",
	}, w.settings...)...)
	s.by = &stranger{t: t, dial: s.broker.InProcessConn}
	t.Cleanup(s.by.close)
	return s
}

func (s *hostileSite) create(cfg jetstream.StreamConfig) {
	s.t.Helper()
	cfg.Storage = jetstream.MemoryStorage
	stagetest.Value(s.js.CreateStream(s.t.Context(), cfg))(s.t)
}

// slowRow is the number of a row whose first calls take longer than a run waits before it kills the first process: the
// results of others are ahead of it when the second one takes over.
const slowRow = 4

// answer takes a time that depends on the row.
func answer(c llmtest.Call) *llmtest.Step {
	n, err := strconv.Atoi(strings.TrimPrefix(c.Prompt, "Row "))
	if err == nil && n%32 == slowRow {
		return &llmtest.Step{Delay: 12 * time.Second}
	}
	return &llmtest.Step{Delay: time.Duration(20+(n&0xff)*7%300) * time.Millisecond}
}

// hostileProcess is one process of the stage.
type hostileProcess struct {
	s          *hostileSite
	wire       *stagetest.Wire
	soft, hard context.CancelFunc
	done       chan struct{}
	err        error
	client     *http.Client
}

func (s *hostileSite) start() *hostileProcess {
	s.t.Helper()
	p := &hostileProcess{s: s, done: make(chan struct{})}
	p.wire = &stagetest.Wire{Broker: s.broker, Sees: func([]byte) int { return -1 }, Dies: func() {}}
	nc := s.broker.Connect(p.wire)
	pages := llmtest.NewPipeListener()
	p.client = &http.Client{Transport: &http.Transport{DialContext: pages.DialContext, DisableKeepAlives: true}}
	soft, stop := context.WithCancel(s.t.Context())
	hard, kill := context.WithCancel(context.WithoutCancel(s.t.Context()))
	p.soft, p.hard = stop, kill
	s.Stages++
	logger := slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelInfo})).With(slog.Int("process", s.Stages))
	go func() {
		defer close(p.done)
		p.err = stage.Run(soft, hard, s.cfg, stage.Deps{
			MockLLM: llmtest.Config{}.Start,
			NATS:    func() (*nats.Conn, error) { return nc, nil }, DialLLM: s.llm.DialContext, Listener: pages, Logger: logger,
		})
	}()
	s.t.Cleanup(func() {
		kill()
		stop()
		<-p.done
	})
	return p
}

// kill ends the process as a crash does: nothing more of it arrives.
func (p *hostileProcess) kill() {
	p.wire.Die()
	p.hard()
	p.soft()
}

// stop ends the process as a person does.
func (p *hostileProcess) stop() {
	p.s.t.Helper()
	p.soft()
	select {
	case <-p.done:
		if p.err != nil {
			p.s.fault("the stage ended with %v", p.err)
		}
	case <-time.After(hostilePatience):
		p.s.fault("the stage does not stop")
	}
}

func (s *hostileSite) fault(format string, args ...any) {
	s.t.Helper()
	if s.faults++; s.faults <= faultsMax {
		s.t.Errorf("%s: %s", s.way, fmt.Sprintf(format, args...))
	}
}

// publish sends a message as it is.
func (s *hostileSite) publish(m *message) {
	s.t.Helper()
	seq, refused := s.by.publish(m)
	if refused != "" {
		s.Refused++
		return
	}
	s.Stored++
	s.Kinds[m.kind]++
	s.rows[seq] = m
}

// load publishes some rows of a file, and the same file again.
func (s *hostileSite) load() {
	s.t.Helper()
	const rows = 3
	for _, before := range []int64{0, rows} {
		s.command("load", func(ctx context.Context) error {
			l, loaded, err := load.New(ctx, s.js.Conn(), s.cfg, "file", "")
			if err != nil || loaded != before {
				return fmt.Errorf("%d rows are loaded, want %d: %w", loaded, before, err)
			}
			n := loaded
			return l.Run(ctx, loaded, func() (*nats.Msg, error) {
				if n++; n > rows {
					return nil, io.EOF
				}
				return &nats.Msg{Data: fmt.Appendf(nil, `{"n":%d}`, n)}, nil
			}, func(int64) {})
		})
	}
	info := stagetest.Value(s.js.Stream(s.t.Context(), "ROWS"))(s.t)
	for last := info.CachedInfo().State.LastSeq; last > 0 && s.rows[last] == nil; last-- {
		s.rows[last] = &message{kind: ordinaryKind, subject: "rows.file"}
	}
}

// answered returns how many results each row has.
func (s *hostileSite) answered() map[uint64]int {
	s.t.Helper()
	n := make(map[uint64]int)
	for _, m := range s.readAll("RESULTS", "results.stage.0.rows") {
		seq, err := strconv.ParseUint(m.Header.Get("Stage-Source-Seq"), 10, 64)
		if err != nil {
			s.fault("result %d names no row: %v", m.Sequence, m.Header)
		}
		n[seq]++
	}
	return n
}

// readAll reads a stream message by message, by the API that is sure to return what is stored.
func (s *hostileSite) readAll(stream, subject string) (all []*jetstream.RawStreamMsg) {
	s.t.Helper()
	handle := stagetest.Value(s.js.Stream(s.t.Context(), stream))(s.t)
	for seq := uint64(1); ; {
		m, err := handle.GetMsg(s.t.Context(), seq, jetstream.WithGetMsgSubject(subject))
		if err != nil {
			return all
		}
		all = append(all, m)
		seq = m.Sequence + 1
	}
}

// await waits until each row has its result, and names those that have none when the time is up.
func (s *hostileSite) await(what string, want int) bool {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < hostilePatience; time.Sleep(time.Second) {
		if stagetest.Stored(s.t, s.js, "RESULTS", "results.stage.0.rows") >= want {
			return true
		}
	}
	have := s.answered()
	for seq := uint64(1); seq <= uint64(len(s.rows)+s.Redriven+1); seq++ { //nolint:gosec // few
		if m := s.rows[seq]; m != nil && have[seq] == 0 {
			s.fault("%s: row %d has no result after %v: %v", what, seq, hostilePatience, m)
		}
	}
	if s.faults == 0 {
		s.fault("%s: %d results, want %d", what, len(have), want)
	}
	s.t.Logf("the log ends with\n%s", tailOf(s.logs.String(), 3000))
	return false
}

func tailOf(text string, n int) string { return text[max(0, len(text)-n):] }

// reads runs everything that reads the streams, and reports what fails or does not end.
func (s *hostileSite) reads(p *hostileProcess) {
	s.t.Helper()
	s.command("verify", func(ctx context.Context) error {
		report, err := verify.Run(ctx, s.js, s.cfg, io.Discard)
		if err != nil {
			return err
		}
		if report.Verdict != verify.VerdictProven {
			var text strings.Builder
			report.WriteText(&text)
			return fmt.Errorf("%w\n%s%s", report.Err(), text.String(), s.named(text.String()))
		}
		return nil
	})
	for _, o := range []results.Options{{Partition: results.AllPartitions, Last: results.All}, {Partition: 0, Last: 5, Merged: true, WithMeta: true}, {Partition: results.AllPartitions, Last: results.All, Failed: true, WithMeta: true}} {
		s.command("results", func(ctx context.Context) error {
			var text bytes.Buffer
			out := bufio.NewWriter(&text)
			if err := results.NewPrinter(s.cfg, out, o).Print(ctx, s.js); err != nil || !o.WithMeta {
				return err
			}
			return areJSON(out, &text)
		})
	}
	s.command("results count", func(ctx context.Context) error {
		_, err := results.Count(ctx, s.js, s.cfg)
		return err
	})
	for _, o := range []tail.Options{{}, {JSON: true}, {Failed: true}} {
		s.command("tail", func(ctx context.Context) error {
			var text bytes.Buffer
			out := bufio.NewWriter(&text)
			if err := tail.Print(ctx, s.js, s.cfg, out, o); err != nil || !o.JSON {
				return err
			}
			return areJSON(out, &text)
		})
	}
	s.command("usage", func(ctx context.Context) error {
		r := usage.NewReader(s.cfg, usage.NewBook(usage.Dimensions), usage.Options{Stages: []string{s.cfg.Name}})
		if err := r.Read(ctx, s.js); err != nil {
			return err
		}
		return r.Report().Write(io.Discard, usage.Table)
	})
	s.command("failures", func(ctx context.Context) error {
		_, err := tail.ListFailures(ctx, s.js, s.cfg, tail.FailuresOptions{Limit: 200, Payloads: true})
		return err
	})
	for _, path := range []string{"/", "/api/status", "/api/stage", "/api/failures", "/metrics"} {
		s.command(path, func(ctx context.Context) error { return p.get(ctx, path) })
	}
}

// areJSON reports the first line of a text that is not JSON.
func areJSON(out *bufio.Writer, text *bytes.Buffer) error {
	if err := out.Flush(); err != nil {
		return err
	}
	for line := range bytes.Lines(text.Bytes()) {
		if !json.Valid(line) {
			return fmt.Errorf("the line %q is not JSON", line)
		}
	}
	return nil
}

// readsRows asks for the history of each nasty row.
func (s *hostileSite) readsRows(p *hostileProcess) {
	s.t.Helper()
	for seq, m := range s.rows {
		if m.kind == ordinaryKind {
			continue
		}
		s.command(fmt.Sprintf("tail --row %d (%v)", seq, m), func(ctx context.Context) error {
			return tail.History(ctx, s.js, s.cfg, bufio.NewWriter(io.Discard), tail.Options{Row: seq})
		})
		s.command(fmt.Sprintf("/api/row %d (%v)", seq, m), func(ctx context.Context) error { return p.get(ctx, fmt.Sprintf("/api/row?sequence=%d", seq)) })
	}
}

var rowInText = regexp.MustCompile(`\brow (\d+)`)

// named returns the nasty messages of the rows that a text names.
func (s *hostileSite) named(text string) string {
	var b strings.Builder
	for _, found := range rowInText.FindAllStringSubmatch(text, faultsMax) {
		seq, _ := strconv.ParseUint(found[1], 10, 64)
		if m := s.rows[seq]; m != nil {
			fmt.Fprintf(&b, "row %d is %v\n", seq, m)
		}
	}
	return b.String()
}

// get reads a page of the process.
func (p *hostileProcess) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	return err
}

// command runs one command that reads.
func (s *hostileSite) command(name string, run func(context.Context) error) {
	s.t.Helper()
	if s.faults >= faultsMax {
		return
	}
	ctx, cancel := context.WithTimeoutCause(s.t.Context(), readPatience, fmt.Errorf("it has not ended after %v", readPatience))
	defer cancel()
	if err := run(ctx); err != nil {
		s.fault("%s: %v", name, err)
	}
}

// runHostile is a whole stage with a take-over in the middle: the first process is killed while rows are open, with a
// second one standing by or started afterwards.
func runHostile(t *testing.T, w way, messages []*message, rng *rand.Rand) tally {
	t.Helper()
	s := newHostileSite(t, w)
	first := s.start()
	half := len(messages) / 2
	for _, m := range messages[:half] {
		s.publish(m)
	}
	var second *hostileProcess
	if standby := rng.IntN(2) == 0; standby {
		second = s.start()
	}
	time.Sleep(time.Duration(1+rng.IntN(9000)) * time.Millisecond)
	for _, m := range messages[half:] {
		s.publish(m)
	}
	s.load()
	time.Sleep(time.Duration(1+rng.IntN(1000)) * time.Millisecond)
	first.kill()
	s.Takeovers++
	if second == nil {
		second = s.start()
	}
	if len(s.rows) == 0 || !s.await("after the take-over", len(s.rows)) {
		return s.tally
	}
	s.reads(second)
	s.command("redrive --dry-run", func(ctx context.Context) error {
		_, err := redrive.Run(ctx, s.js, s.cfg, redrive.Options{DryRun: true}, io.Discard)
		return err
	})
	s.command("redrive", func(ctx context.Context) error {
		report, err := redrive.Run(ctx, s.js, s.cfg, redrive.Options{}, io.Discard)
		if report != nil {
			s.Redriven = report.Published
		}
		return err
	})
	if s.faults == 0 && s.await("after the redrive", len(s.rows)+s.Redriven) {
		s.reads(second)
		s.readsRows(second)
	}
	second.stop()
	s.check()
	return s.tally
}

// check reads the results themselves: each row has one.
func (s *hostileSite) check() {
	s.t.Helper()
	have := s.answered()
	for _, seq := range slices.Sorted(func(yield func(uint64) bool) {
		for seq := range s.rows {
			if !yield(seq) {
				return
			}
		}
	}) {
		if have[seq] != 1 {
			s.fault("row %d has %d results: %v", seq, have[seq], s.rows[seq])
		}
	}
}
