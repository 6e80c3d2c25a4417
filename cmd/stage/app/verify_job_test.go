package app

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stored"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats.go"
)

// store stores what a stage would have stored.
func (b *verifyBench) store(job *verifyJob) {
	b.t.Helper()
	for i := range job.steps {
		b.publish(job.steps[i].message(b.t))
	}
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
