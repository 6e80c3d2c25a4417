package chain_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/ops/verify/chain"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var rows = flag.Int("rows", 10_000, "rows of the chain that is verified")

// BenchmarkAChain verifies a finished chain of two stages, whose streams are files of a
// server in the same process: rows of 200 bytes, one call each. peak-MiB is the largest
// heap that was seen above the one before, with that of the server.
func BenchmarkAChain(b *testing.B) {
	srv := stagetest.Value(natsd.Start(natsd.Config{Dir: b.TempDir(), NoListen: true}))(b)
	b.Cleanup(srv.Stop)
	nc := stagetest.Value(srv.Connect())(b)
	b.Cleanup(nc.Close)
	js := stagetest.Value(jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(2000)))(b)
	for name, subject := range map[string]string{"ROWS": "rows.>", "RESULTS": "results.>", "AUDIT": "audit.>"} {
		if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
			b.Fatal(err)
		}
	}
	s := store{b: b, js: js}
	s.chain(*rows)
	for b.Loop() {
		before := heap()
		peak, stop, done := before, make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			tick := time.NewTicker(250 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					peak = max(peak, heap())
				case <-stop:
					return
				}
			}
		}()
		report, err := chain.Run(b.Context(), js, stagetest.Config(b), []string{"map", "reduce"}, io.Discard)
		close(stop)
		<-done
		if err != nil || report.Verdict != verify.VerdictProven || report.Links[0].Linked != *rows {
			b.Fatalf("%v, %+v", err, report)
		}
		b.ReportMetric(float64(peak-before)/(1<<20), "peak-MiB")
	}
	b.ReportMetric(float64(b.N)*float64(*rows)/b.Elapsed().Seconds(), "rows/s")
}

// heap is what is in use, garbage included.
func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// store stores what the stages of a chain would have stored.
type store struct {
	b       *testing.B
	js      jetstream.JetStream
	pending []jetstream.PubAckFuture
}

func (s *store) publish(subject string, header nats.Header, body []byte) {
	f := stagetest.Value(s.js.PublishMsgAsync(&nats.Msg{Subject: subject, Header: header, Data: body}))(s.b)
	if s.pending = append(s.pending, f); len(s.pending) == 1000 {
		s.flush()
	}
}

func (s *store) flush() {
	for _, f := range s.pending {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			s.b.Fatal(err)
		}
	}
	s.pending = s.pending[:0]
}

func (s *store) chain(n int) {
	format := stagetest.Value(row.NewFormat("llm_response", row.Provenance{TemplateHash: llm.Hash(nil)}))(s.b)
	made := s.stage("map", "ROWS", "rows.a", "", nil, n, format)
	s.stage("reduce", "RESULTS", "results.map.0.rows", "map", made, n, format)
}

// stage stores the rows of a stage, unless they are there, its results and its audit. It
// returns the sequence of the first result, or nil if there is none yet.
func (s *store) stage(name, stream, subject, before string, first *uint64, n int, format *row.Format) *uint64 {
	now := time.Now()
	head := func(p auditlog.Partition) auditlog.Header {
		return auditlog.Header{Time: now, RunID: name, Stage: name, Partition: p}
	}
	owner := name + ".1"
	start := &auditlog.Run{Header: head(auditlog.All), Phase: auditlog.PhaseStart, Settings: map[string]string{
		"STAGE_INPUT_STREAM": stream, "STAGE_INPUT_SUBJECT": subject, "STAGE_RESULT_STREAM": "RESULTS", "STAGE_RESULT_SUBJECT": "results",
		"STAGE_PARTITIONS": "1", "STAGE_WINDOW": "1024",
	}}
	s.publish("audit."+name+".all.run", nil, start.AppendJSON(nil, auditlog.PayloadsFull, 0))
	info := stagetest.Value(s.js.Stream(s.b.Context(), stream))(s.b)
	claim, err := json.Marshal(streams.Claim{Owner: owner, Version: 1, InputStream: stream, InputCreated: info.CachedInfo().Created})
	if err != nil {
		s.b.Fatal(err)
	}
	s.publish("results."+name+".0.claim", nats.Header{streams.HeaderOwner: {owner}, streams.HeaderSourceSeq: {"0"}}, claim)
	usage := &auditlog.Usage{PromptTokens: 100, CompletionTokens: 10, TotalTokens: 110}
	answer := &row.Answer{Text: "a reply of some words, as short ones are", Usage: &llm.Usage{PromptTokens: 100, CompletionTokens: 10, TotalTokens: 110}, Model: "small"}
	of := func(i int) ([]byte, *row.Row) {
		body := fmt.Appendf(nil, `{"id":%d,"text":"%0180d"}`, i, i)
		in, err := row.Parse(body)
		if err != nil {
			s.b.Fatal(err)
		}
		answer.VariablesHash = in.VariablesHash()
		if before == "" {
			return body, in
		}
		if in, err = row.Parse(format.AppendSuccess(nil, in, answer)); err != nil { // as the stage before has made it
			s.b.Fatal(err)
		}
		in.KeepAs(before)
		answer.VariablesHash = in.VariablesHash()
		return body, in
	}
	seq := uint64(1)
	if first != nil {
		seq = *first
	}
	for i := range n {
		body, in := of(i)
		if before == "" {
			s.publish(subject, nil, body)
		}
		id := auditlog.StateID(name, stream, 0, seq)
		call := &auditlog.Call{
			Header: head(0), StateID: id, Owner: owner, Sequence: seq, CallID: id, Provider: "mock", Model: "small", Status: auditlog.CallSuccess, Usage: usage,
		}
		s.publish("audit."+name+".0.call", nil, call.AppendJSON(nil, auditlog.PayloadsFull, 0))
		event := &auditlog.Row{
			Header: head(0), StateID: id, Owner: owner, Sequence: seq, Status: auditlog.RowSuccess, Attempts: 1, Source: auditlog.SourceCall,
			QueuedAt: now, StartedAt: now, FinishedAt: now, Usage: usage, VariablesHash: answer.VariablesHash,
		}
		s.publish("audit."+name+".0.row", nil, event.AppendJSON(nil, auditlog.PayloadsFull, 0))
		header := nats.Header{
			streams.HeaderSourceStream: {stream}, streams.HeaderSourceSeq: {strconv.FormatUint(seq, 10)}, streams.HeaderSourceSubject: {subject},
			streams.HeaderStatus: {auditlog.RowSuccess}, streams.HeaderStateID: {id}, streams.HeaderOwner: {owner},
		}
		if before != "" {
			header[streams.HeaderOriginStream], header[streams.HeaderOriginSeq] = []string{"ROWS"}, []string{strconv.Itoa(i + 1)}
		}
		s.publish("results."+name+".0.rows", header, format.AppendSuccess(nil, in, answer))
		seq++
	}
	s.flush()
	m := stagetest.Value(info.GetLastMsgForSubject(s.b.Context(), subject))(s.b)
	if before != "" || m.Sequence != uint64(n) { //nolint:gosec // a count
		return nil
	}
	result := uint64(2) // after the claim
	return &result
}
