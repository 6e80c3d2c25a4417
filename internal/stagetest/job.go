package stagetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
)

// Store stores what a stage would have stored.
func (b *Bench) Store(job *Job) {
	b.T.Helper()
	for i := range job.Steps {
		if !job.Steps[i].Lost {
			b.Publish(job.Steps[i].Message(b.T))
		}
	}
}

// Job is what a stage stores, message by message, for a test to corrupt.
type Job struct {
	Created time.Time // of the input stream
	Now     time.Time
	Steps   []Step
	Calls   int
	order   Order // of results from the last claim on
}

// Step is one message: exactly one of its parts is set.
type Step struct {
	Claim  *stored.Claim
	Call   *auditlog.Call
	Row    *auditlog.Row
	Run    *auditlog.Run
	Batch  *auditlog.Batch
	Result *stored.ResultRow
	Part   int
	// Lost is a result that the others count and that is not stored.
	Lost bool
}

// Job returns an empty job over the input stream.
func (b *Bench) Job() *Job {
	return &Job{Created: b.Stream("ROWS").CachedInfo().Created, Now: time.Now()}
}

func (j *Job) header(run string, p auditlog.Partition) auditlog.Header {
	j.Now = j.Now.Add(time.Millisecond)
	return auditlog.Header{Time: j.Now, RunID: run, Stage: "stage", Partition: p}
}

// Start records the start of a process.
func (j *Job) Start(run string) {
	settings := map[string]string{"STAGE_WINDOW": "64", "STAGE_PARTITIONS": "1", "STAGE_POOL_SIZE": "4"}
	j.Steps = append(j.Steps, Step{Run: &auditlog.Run{Header: j.header(run, auditlog.All), Phase: auditlog.PhaseStart, Settings: settings}})
}

// Claim records that an owner claimed the partition, whose results end with row mark.
func (j *Job) Claim(owner string, mark uint64) {
	j.order = Order{}
	j.Steps = append(j.Steps, Step{Claim: &stored.Claim{Owner: owner, Mark: mark, Version: 1, Input: "ROWS", Created: j.Created}})
}

// Call records one call for a row.
func (j *Job) Call(owner string, seq uint64, index int, status auditlog.CallStatus) {
	j.Calls++
	c := &auditlog.Call{
		Header: j.header(RunOf(owner), 0), StateID: auditlog.StateID("stage", "ROWS", 0, seq), Owner: owner, CallIndex: index, Sequence: seq,
		CallID: strconv.Itoa(j.Calls), Provider: "mock", Model: "small", Status: status,
	}
	if status == auditlog.CallSuccess {
		cost := 0.001
		c.Usage = &auditlog.Usage{PromptTokens: 10, CompletionTokens: int64(seq), TotalTokens: 10 + int64(seq), CostUSD: &cost}
	}
	j.Steps = append(j.Steps, Step{Call: c})
}

// Item records one call for an element of a row.
func (j *Job) Item(owner string, seq uint64, item, index int, status auditlog.CallStatus) {
	j.Call(owner, seq, index, status)
	c := j.Steps[len(j.Steps)-1].Call
	c.StateID, c.Item = auditlog.ItemStateID(c.StateID, item), &item
}

// Row records the row event of a row that was answered by one call after some without
// capacity.
func (j *Job) Row(owner string, seq uint64, retries int, source string) {
	h, cost := j.header(RunOf(owner), 0), 0.001
	j.Steps = append(j.Steps, Step{Row: &auditlog.Row{
		Header: h, StateID: auditlog.StateID("stage", "ROWS", 0, seq), Owner: owner, Sequence: seq, Status: auditlog.RowSuccess,
		Attempts: 1, CapacityRetries: retries, Source: source, QueuedAt: h.Time, StartedAt: h.Time, FinishedAt: h.Time,
		Usage: &auditlog.Usage{PromptTokens: 10, CompletionTokens: int64(seq), TotalTokens: 10 + int64(seq), CostUSD: &cost},
	}})
}

// Result records the result of a row.
func (j *Job) Result(owner string, seq uint64) {
	r := &stored.ResultRow{
		Seq: seq, Owner: owner, Status: auditlog.RowSuccess, StateID: auditlog.StateID("stage", "ROWS", 0, seq), Source: "ROWS",
	}
	j.order.mark(r)
	j.Steps = append(j.Steps, Step{Result: r})
}

// Answer records everything about a row; every third one met no capacity at first.
func (j *Job) Answer(owner string, seq uint64) {
	retries := 0
	if seq%3 == 0 {
		j.Call(owner, seq, 0, auditlog.CallCapacityRetry)
		retries = 1
	}
	j.Call(owner, seq, retries, auditlog.CallSuccess)
	j.Row(owner, seq, retries, auditlog.SourceCall)
	j.Result(owner, seq)
}

// End records the end of a process with the summary of what it did so far.
func (j *Job) End(run string) {
	s := &auditlog.Summary{}
	for _, st := range j.Steps {
		switch {
		case st.Result != nil && RunOf(st.Result.Owner) == run:
			s.RowsSucceeded++
		case st.Call != nil && st.Call.RunID == run:
			s.Total.Calls++
			s.Total.Usage = s.Total.Usage.Plus(st.Call.Usage)
			if st.Call.Status == auditlog.CallCapacityRetry {
				s.CapacityRetries++
			}
		}
	}
	s.Usage = []auditlog.ModelTotals{{Provider: "mock", Model: "small", Totals: s.Total}}
	j.Steps = append(j.Steps, Step{Run: &auditlog.Run{Header: j.header(run, auditlog.All), Phase: auditlog.PhaseEnd, Summary: s}})
}

// Index finds a step.
func (j *Job) Index(match func(Step) bool) int { return slices.IndexFunc(j.Steps, match) }

// ResultOf returns the index of a row's result; -1: there is none.
func (j *Job) ResultOf(seq uint64) int {
	return j.Index(func(s Step) bool { return s.Result != nil && s.Result.Seq == seq })
}

// Row7 finds the row event that most tests tamper with.
func (j *Job) Row7() int {
	return j.Index(func(s Step) bool { return s.Row != nil && s.Row.Sequence == 7 })
}

// CallOf returns the index of a row's first call; -1: there is none.
func (j *Job) CallOf(seq uint64) int {
	return j.Index(func(s Step) bool { return s.Call != nil && s.Call.Sequence == seq })
}

// Remove takes out the step at an index.
func (j *Job) Remove(i int) { j.Steps = slices.Delete(j.Steps, i, i+1) }

// RunOf returns the run that an owner belongs to.
func RunOf(owner string) string { return owner[:len(owner)-2] }

// FinishedJob is a whole job of one process over n rows.
func (b *Bench) FinishedJob(n int) *Job {
	b.T.Helper()
	b.Rows(n, "rows.a")
	j := b.Job()
	j.Start("run1")
	j.Claim("run1.a", 0)
	for seq := range uint64(n) { //nolint:gosec // small
		j.Answer("run1.a", seq+1)
	}
	j.End("run1")
	return j
}

// Message is a step as it goes into its stream.
func (s Step) Message(t *testing.T) *nats.Msg {
	t.Helper()
	return Value(s.message())(t)
}

func (s Step) message() (*nats.Msg, error) {
	log, audit := fmt.Sprintf("results.stage.%d.", s.Part), fmt.Sprintf("audit.stage.%d.", s.Part)
	switch {
	case s.Call != nil:
		return &nats.Msg{Subject: audit + "call", Data: s.Call.AppendJSON(nil, auditlog.PayloadsFull, 0)}, nil
	case s.Row != nil:
		return &nats.Msg{Subject: audit + "row", Data: s.Row.AppendJSON(nil, auditlog.PayloadsFull, 0)}, nil
	case s.Batch != nil:
		return &nats.Msg{Subject: audit + "batch", Data: s.Batch.AppendJSON(nil, auditlog.PayloadsFull, 0)}, nil
	case s.Run != nil:
		return &nats.Msg{Subject: "audit.stage.all.run", Data: s.Run.AppendJSON(nil, auditlog.PayloadsFull, 0)}, nil
	case s.Claim != nil:
		c := s.Claim
		body, err := json.Marshal(streams.Claim{
			Owner: c.Owner, HighWaterMark: c.Mark, Version: c.Version, InputStream: c.Input, InputCreated: c.Created, Order: c.Order, Key: c.Key,
		})
		if err != nil {
			return nil, err
		}
		m := &nats.Msg{Subject: log + "claim", Data: body, Header: nats.Header{
			streams.HeaderOwner: {c.Owner}, streams.HeaderSourceSeq: {strconv.FormatUint(c.Mark, 10)},
		}}
		maps.Copy(m.Header, c.Header)
		setProgress(m.Header, c.Progress)
		return m, nil
	}
	r := s.Result
	body := r.Body
	if body == nil {
		body = []byte(`{}`)
	}
	m := &nats.Msg{Subject: log + "rows", Data: body, Header: nats.Header{
		streams.HeaderSourceStream: {r.Source}, streams.HeaderSourceSeq: {strconv.FormatUint(r.Seq, 10)}, streams.HeaderSourceSubject: {"rows.a"},
		streams.HeaderStatus: {r.Status}, streams.HeaderStateID: {r.StateID}, streams.HeaderOwner: {r.Owner},
	}}
	if r.Replaces != "" {
		m.Header.Set(streams.HeaderReplaces, r.Replaces)
	}
	if r.Subject != "" {
		m.Header.Set(streams.HeaderSourceSubject, r.Subject)
	}
	maps.Copy(m.Header, r.Header)
	setProgress(m.Header, r.Progress)
	if r.Object != nil {
		r.Object.Set(m.Header)
		m.Data = nil
	}
	if r.Key != nil {
		m.Header.Set(streams.HeaderKey, *r.Key)
	}
	return m, nil
}
