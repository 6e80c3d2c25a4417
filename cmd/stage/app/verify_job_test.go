package app

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/stored"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// verifyBench is a server with streams that take whatever a test plants.
type verifyBench struct {
	t   *testing.T
	js  jetstream.JetStream
	nc  *nats.Conn
	cfg *config.Config
}

// newVerifyBench creates the streams; change may alter their configurations: input, results, audit.
func newVerifyBench(t *testing.T, change func(streams []jetstream.StreamConfig)) *verifyBench {
	t.Helper()
	srv, err := natsd.Start(natsd.Config{Dir: t.TempDir(), NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	b := &verifyBench{t: t}
	if b.nc, err = srv.Connect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.nc.Close)
	if b.js, err = jetstream.New(b.nc); err != nil {
		t.Fatal(err)
	}
	if b.cfg, err = loadConfig(t, config.NeedNothing); err != nil {
		t.Fatal(err)
	}
	streams := []jetstream.StreamConfig{
		{Name: "ROWS", Subjects: []string{"rows.>", "other.>"}},
		{Name: "RESULTS", Subjects: []string{"results.>"}},
		{Name: "AUDIT", Subjects: []string{"audit.>"}},
	}
	if change != nil {
		change(streams)
	}
	for _, s := range streams {
		s.Storage = jetstream.MemoryStorage
		if _, err := b.js.CreateStream(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	// After the deletion of its last stream with a file the server removes the directory of the account some time later,
	// also from under a stream created meanwhile.
	if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KEEP", Subjects: []string{"keep"}}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *verifyBench) stream(name string) jetstream.Stream {
	b.t.Helper()
	s, err := b.js.Stream(b.t.Context(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *verifyBench) publish(m *nats.Msg) uint64 {
	b.t.Helper()
	ack, err := b.js.PublishMsg(b.t.Context(), m)
	if err != nil {
		b.t.Fatal(err)
	}
	return ack.Sequence
}

// rows publishes n rows on a subject.
func (b *verifyBench) rows(n int, subject string) {
	b.t.Helper()
	for i := range n {
		b.publish(&nats.Msg{Subject: subject, Data: fmt.Appendf(nil, `{"n":%d}`, i+1)})
	}
}

// store stores what a stage would have stored.
func (b *verifyBench) store(job *verifyJob) {
	b.t.Helper()
	for i := range job.steps {
		b.publish(job.steps[i].message(b.t))
	}
}

// verify checks the streams and returns the report, what people see of it, and the exit code.
func (b *verifyBench) verify() (report *verifyReport, text string, code int) {
	b.t.Helper()
	var out stagetest.Buffer
	report, err := verify(b.t.Context(), b.js, b.cfg, &out)
	if err != nil {
		b.t.Fatal(err)
	}
	report.writeText(&out)
	err = report.err()
	if err != nil {
		printError(&out, err)
	}
	return report, out.String(), exitCode(err)
}

// verifyJob is what a stage stores, message by message, for a test to plant its faults in.
type verifyJob struct {
	created time.Time // of the input stream
	now     time.Time
	steps   []verifyStep
	calls   int
}

// verifyStep is one message: exactly one of its parts is set.
type verifyStep struct {
	claim  *stored.Claim
	call   *auditlog.Call
	row    *auditlog.Row
	run    *auditlog.Run
	result *stored.ResultRow
	part   int
}

func (b *verifyBench) job() *verifyJob {
	return &verifyJob{created: b.stream("ROWS").CachedInfo().Created, now: time.Now()}
}

func (j *verifyJob) header(run string, p auditlog.Partition) auditlog.Header {
	j.now = j.now.Add(time.Millisecond)
	return auditlog.Header{Time: j.now, RunID: run, Stage: "stage", Partition: p}
}

// start records the start of a process.
func (j *verifyJob) start(run string) {
	settings := map[string]string{"STAGE_WINDOW": "64", "STAGE_PARTITIONS": "1", "STAGE_POOL_SIZE": "4"}
	j.steps = append(j.steps, verifyStep{run: &auditlog.Run{Header: j.header(run, auditlog.All), Phase: auditlog.PhaseStart, Settings: settings}})
}

func (j *verifyJob) claim(owner string, mark uint64) {
	j.steps = append(j.steps, verifyStep{claim: &stored.Claim{Owner: owner, Mark: mark, Version: 1, Input: "ROWS", Created: j.created}})
}

// call records one call for a row.
func (j *verifyJob) call(owner string, seq uint64, index int, status auditlog.CallStatus) {
	j.calls++
	c := &auditlog.Call{
		Header: j.header(runOf(owner), 0), StateID: auditlog.StateID("stage", "ROWS", 0, seq), Owner: owner, CallIndex: index, Sequence: seq,
		CallID: strconv.Itoa(j.calls), Provider: "mock", Model: "small", Status: status,
	}
	if status == auditlog.CallSuccess {
		cost := 0.001
		c.Usage = &auditlog.Usage{PromptTokens: 10, CompletionTokens: int64(seq), TotalTokens: 10 + int64(seq), CostUSD: &cost}
	}
	j.steps = append(j.steps, verifyStep{call: c})
}

// row records the row event of a row that was answered by one call after some without capacity.
func (j *verifyJob) row(owner string, seq uint64, retries int, source string) {
	h, cost := j.header(runOf(owner), 0), 0.001
	j.steps = append(j.steps, verifyStep{row: &auditlog.Row{
		Header: h, StateID: auditlog.StateID("stage", "ROWS", 0, seq), Owner: owner, Sequence: seq, Status: auditlog.RowSuccess,
		Attempts: 1, CapacityRetries: retries, Source: source, QueuedAt: h.Time, StartedAt: h.Time, FinishedAt: h.Time,
		Usage: &auditlog.Usage{PromptTokens: 10, CompletionTokens: int64(seq), TotalTokens: 10 + int64(seq), CostUSD: &cost},
	}})
}

func (j *verifyJob) result(owner string, seq uint64) {
	j.steps = append(j.steps, verifyStep{result: &stored.ResultRow{
		Seq: seq, Owner: owner, Status: auditlog.RowSuccess, StateID: auditlog.StateID("stage", "ROWS", 0, seq), Source: "ROWS",
	}})
}

// answer records all of a row: each third one met no capacity at first.
func (j *verifyJob) answer(owner string, seq uint64) {
	retries := 0
	if seq%3 == 0 {
		j.call(owner, seq, 0, auditlog.CallCapacityRetry)
		retries = 1
	}
	j.call(owner, seq, retries, auditlog.CallSuccess)
	j.row(owner, seq, retries, auditlog.SourceCall)
	j.result(owner, seq)
}

// end records the end of a process with the summary of what it did so far.
func (j *verifyJob) end(run string) {
	s := &auditlog.Summary{}
	for _, st := range j.steps {
		switch {
		case st.result != nil && runOf(st.result.Owner) == run:
			s.RowsSucceeded++
		case st.call != nil && st.call.RunID == run:
			s.Total.Calls++
			s.Total.Usage = s.Total.Usage.Plus(st.call.Usage)
			if st.call.Status == auditlog.CallCapacityRetry {
				s.CapacityRetries++
			}
		}
	}
	s.Usage = []auditlog.ModelTotals{{Provider: "mock", Model: "small", Totals: s.Total}}
	j.steps = append(j.steps, verifyStep{run: &auditlog.Run{Header: j.header(run, auditlog.All), Phase: auditlog.PhaseEnd, Summary: s}})
}

// index finds a step.
func (j *verifyJob) index(match func(verifyStep) bool) int { return slices.IndexFunc(j.steps, match) }

func (j *verifyJob) resultOf(seq uint64) int {
	return j.index(func(s verifyStep) bool { return s.result != nil && s.result.Seq == seq })
}

// row7 finds the row event that most tests meddle with.
func (j *verifyJob) row7() int {
	return j.index(func(s verifyStep) bool { return s.row != nil && s.row.Sequence == 7 })
}

func (j *verifyJob) callOf(seq uint64) int {
	return j.index(func(s verifyStep) bool { return s.call != nil && s.call.Sequence == seq })
}

func (j *verifyJob) remove(i int) { j.steps = slices.Delete(j.steps, i, i+1) }

func runOf(owner string) string { return owner[:len(owner)-2] }

// finishedJob is a whole job of one process over n rows.
func (b *verifyBench) finishedJob(n int) *verifyJob {
	b.t.Helper()
	b.rows(n, "rows.a")
	j := b.job()
	j.start("run1")
	j.claim("run1.a", 0)
	for seq := range uint64(n) { //nolint:gosec // small
		j.answer("run1.a", seq+1)
	}
	j.end("run1")
	return j
}

// message is a step as it goes into its stream.
func (s verifyStep) message(t *testing.T) *nats.Msg {
	t.Helper()
	log, audit := fmt.Sprintf("results.stage.%d.", s.part), fmt.Sprintf("audit.stage.%d.", s.part)
	switch {
	case s.call != nil:
		return &nats.Msg{Subject: audit + "call", Data: s.call.AppendJSON(nil, auditlog.PayloadsFull, 0)}
	case s.row != nil:
		return &nats.Msg{Subject: audit + "row", Data: s.row.AppendJSON(nil, auditlog.PayloadsFull, 0)}
	case s.run != nil:
		return &nats.Msg{Subject: "audit.stage.all.run", Data: s.run.AppendJSON(nil, auditlog.PayloadsFull, 0)}
	case s.claim != nil:
		c := s.claim
		body, err := json.Marshal(map[string]any{
			"owner": c.Owner, "high_water_mark": c.Mark, "version": c.Version, "input_stream": c.Input, "input_created": c.Created,
		})
		if err != nil {
			t.Fatal(err)
		}
		return &nats.Msg{Subject: log + "claim", Data: body, Header: nats.Header{
			consumer.HeaderOwner: {c.Owner}, consumer.HeaderSourceSeq: {strconv.FormatUint(c.Mark, 10)},
		}}
	}
	r := s.result
	return &nats.Msg{Subject: log + "rows", Data: []byte(`{}`), Header: nats.Header{
		consumer.HeaderSourceStream: {r.Source}, consumer.HeaderSourceSeq: {strconv.FormatUint(r.Seq, 10)}, consumer.HeaderSourceSubject: {"rows.a"},
		consumer.HeaderStatus: {r.Status}, consumer.HeaderStateID: {r.StateID}, consumer.HeaderOwner: {r.Owner},
	}}
}
