package stage_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/usage"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// result is one stored result.
type result struct {
	message
	Row   uint64 // sequence of its row in the input
	Fault *fault // nil: it succeeded
}

// fault is the F_error of a result; its facts are in Raw.
type fault struct {
	Reason string
	Error  string
	Errors []struct {
		Attempt    int
		Provider   string
		Class      string
		StatusCode int `json:"status_code"`
		Error      string
	}
	Raw map[string]any
}

// results returns the results of a partition in order.
func (s *site) results(partition int) []result {
	s.t.Helper()
	var list []result
	for _, m := range s.read("RESULTS", fmt.Sprintf("results.stage.%d.rows", partition)) {
		list = append(list, s.result(m))
	}
	return list
}

func (s *site) result(m message) result {
	s.t.Helper()
	r := result{message: m}
	var err error
	if r.Row, err = strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64); err != nil {
		s.t.Fatalf("result %d: %v", m.Seq, err)
	}
	var body struct {
		Fault json.RawMessage `json:"llm_response_error"`
	}
	if json.Unmarshal(m.Body, &body) != nil || body.Fault == nil {
		return r
	}
	r.Fault = &fault{}
	if err := json.Unmarshal(body.Fault, r.Fault); err != nil {
		s.t.Fatalf("result %d: %v", m.Seq, err)
	}
	if err := json.Unmarshal(body.Fault, &r.Fault.Raw); err != nil {
		s.t.Fatalf("result %d: %v", m.Seq, err)
	}
	return r
}

// failed returns the fault of the only result.
func (s *site) failed() *fault {
	s.t.Helper()
	r := one(s.t, "results", s.results(0))
	if r.Fault == nil {
		s.t.Fatalf("the row succeeded: %s", r.Body)
	}
	return r.Fault
}

// audit holds the events of the audit stream, each validated against its schema.
type audit struct {
	calls []event[auditlog.Call]
	rows  []event[auditlog.Row]
	runs  []event[auditlog.Run]
}

type event[E any] struct {
	message
	E *E
}

// audit reads and validates all events.
func (s *site) audit() audit {
	s.t.Helper()
	var a audit
	for _, m := range s.read("AUDIT", "audit.>") {
		s.validate("audit", m)
		e, err := auditlog.Decode(m.Body)
		if err != nil {
			s.t.Fatalf("event %d on %s: %v", m.Seq, m.Subject, err)
		}
		partition := e.Partition
		if e.Run != nil {
			partition = auditlog.All
		}
		if want := "audit.stage." + partition.String() + "." + string(e.Kind); m.Subject != want {
			s.t.Errorf("event %d is on %s, want %s", m.Seq, m.Subject, want)
		}
		switch {
		case e.Call != nil:
			a.calls = append(a.calls, event[auditlog.Call]{m, e.Call})
		case e.Row != nil:
			a.rows = append(a.rows, event[auditlog.Row]{m, e.Row})
		case e.Run != nil:
			a.runs = append(a.runs, event[auditlog.Run]{m, e.Run})
		}
	}
	return a
}

// phases lists the run events by phase.
func (a *audit) phases() []string {
	var list []string
	for _, e := range a.runs {
		list = append(list, string(e.E.Phase))
	}
	return list
}

// schemas are those of docs/schemas, by name.
var schemas = sync.OnceValue(func() map[string]*jsonschema.Schema {
	found := make(map[string]*jsonschema.Schema)
	for _, name := range []string{"audit", "result"} {
		data, err := os.ReadFile("../../docs/schemas/" + name + ".schema.json")
		if err != nil {
			panic(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			panic(err)
		}
		c := jsonschema.NewCompiler()
		c.AssertFormat()
		if err := c.AddResource(name, doc); err != nil {
			panic(err)
		}
		found[name] = c.MustCompile(name)
	}
	return found
})

func (s *site) validate(schema string, m message) {
	s.t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(m.Body))
	if err == nil {
		err = schemas()[schema].Validate(doc)
	}
	if err != nil {
		s.t.Errorf("message %d on %s does not satisfy the %s schema: %v\n%s", m.Seq, m.Subject, schema, err, m.Body)
	}
}

// verify checks, from the streams alone, what must hold after any completed run: each row has one result, in order; the
// audit of each result was stored before it; calls, retries and tokens add up; the key appears nowhere. It returns the
// audit for further checks.
func (s *site) verify() audit {
	s.t.Helper()
	s.verifyResults(len(s.read("ROWS", "rows.>")))
	a := s.audit()
	s.verifyRows(&a)
	s.verifyCalls(&a)
	s.verifySummary(&a)
	s.verifySecret()
	s.verifyChain()
	return a
}

// verifyChain has stage verify look for what breaks the chain through the results, and for events that were altered.
func (s *site) verifyChain() {
	s.t.Helper()
	report := stagetest.Value(verify.Run(s.t.Context(), s.js, s.config(nil), io.Discard))(s.t)
	for _, v := range report.Violations.First {
		if slices.Contains([]string{"chain_broken", "deleted", "event_altered"}, string(v.Kind)) {
			s.t.Errorf("%s: %s", v.Kind, v.Text)
		}
	}
	if len(report.Roots) != 1 && report.Partitions[0].Claims > 0 {
		s.t.Errorf("verify names %d roots", len(report.Roots))
	}
}

// verifyResults checks that the results are those of the first n rows, in their order.
func (s *site) verifyResults(n int) {
	s.t.Helper()
	rows, results := s.read("ROWS", "rows.>"), s.results(0)
	if len(results) != n {
		s.t.Errorf("%d results, want %d", len(results), n)
	}
	for i, r := range results {
		if i >= len(rows) || r.Row != rows[i].Seq {
			s.t.Fatalf("result %d is of row %d, which is out of order", i, r.Row)
		}
		passed := rows[i].Header.Get(streams.HeaderStatus) == "error" && bytes.Equal(rows[i].Body, r.Body)
		if !passed {
			s.validate("result", r.message)
		}
		status := "success"
		if passed || r.Fault != nil {
			status = "error"
		}
		for name, want := range map[string]string{
			streams.HeaderSourceStream: "ROWS", streams.HeaderSourceSubject: rows[i].Subject,
			streams.HeaderStatus: status, streams.HeaderStateID: fmt.Sprintf("stage/ROWS/0/%d", r.Row),
		} {
			if got := r.Header.Get(name); got != want {
				s.t.Errorf("result of row %d: %s is %q, want %q", r.Row, name, got, want)
			}
		}
		if r.Header.Get(streams.HeaderOwner) == "" {
			s.t.Errorf("result of row %d has no owner", r.Row)
		}
	}
}

type term struct{ state, owner string }

// verifyRows checks that each result has the row event of its owner, stored before it.
func (s *site) verifyRows(a *audit) {
	s.t.Helper()
	events := make(map[term]event[auditlog.Row])
	for _, e := range a.rows {
		key := term{e.E.StateID, e.E.Owner}
		if _, twice := events[key]; twice {
			s.t.Errorf("two row events for %v", key)
		}
		events[key] = e
	}
	for _, r := range s.results(0) {
		e, ok := events[term{r.Header.Get(streams.HeaderStateID), r.Header.Get(streams.HeaderOwner)}]
		switch {
		case !ok:
			s.t.Errorf("the result of row %d has no row event", r.Row)
		case e.Time.After(r.Time):
			s.t.Errorf("row %d: event stored at %v, after the result at %v", r.Row, e.Time, r.Time)
		case e.E.Status != r.Header.Get(streams.HeaderStatus) || e.E.Sequence != r.Row:
			s.t.Errorf("row %d: the event says %s of row %d", r.Row, e.E.Status, e.E.Sequence)
		case r.Fault != nil && e.E.Reason != r.Fault.Reason && e.E.Source != auditlog.SourceUpstream:
			s.t.Errorf("row %d: the event says %q, the result %q", r.Row, e.E.Reason, r.Fault.Reason)
		}
	}
}

// verifyCalls compares the calls of the audit with those that the LLM saw. A crash can lose the events of calls in
// flight, so the LLM may then have seen more.
func (s *site) verifyCalls(a *audit) {
	s.t.Helper()
	seen, tokens := s.tap.seen(), int64(0)
	hashes := make(map[string]int)
	for _, x := range seen {
		hashes[llm.Hash(x.Request)]++
		tokens += x.Tokens
		if x.Key != "Bearer "+apiKey {
			s.t.Errorf("a call was sent with the key %q", x.Key)
		}
	}
	var reported int64
	byTerm, byRow := make(map[term][]int), make(map[string]int)
	for _, e := range a.calls {
		key := term{e.E.StateID, e.E.Owner}
		if e.E.BatchID != "" {
			key.state = e.E.BatchID
		}
		byTerm[key] = append(byTerm[key], e.E.CallIndex)
		byRow[e.E.StateID]++
		if hashes[e.E.RequestHash]--; hashes[e.E.RequestHash] < 0 && e.E.RequestHash != "" {
			s.t.Errorf("call %s of row %d: the LLM saw no such request", e.E.CallID, e.E.Sequence)
		}
		if e.E.Usage != nil {
			reported += e.E.Usage.TotalTokens
		}
	}
	if !s.crashed && (len(a.calls) != len(seen) || reported != tokens) {
		s.t.Errorf("the audit has %d calls and %d tokens, the LLM %d and %d", len(a.calls), reported, len(seen), tokens)
	}
	for key, indexes := range byTerm {
		slices.Sort(indexes)
		for i, index := range indexes {
			if index != i {
				s.t.Errorf("%v: call indexes %v, want 0, 1, …", key, indexes)
				break
			}
		}
	}
	for _, e := range a.rows {
		made := e.E.Attempts + e.E.CapacityRetries
		if got := len(byTerm[term{e.E.StateID, e.E.Owner}]); s.runs == 1 && got != made || byRow[e.E.StateID] < made {
			s.t.Errorf("row %d: %d calls of %d are in the audit", e.E.Sequence, got, made)
		}
	}
}

// verifySummary adds up the summaries of all runs.
func (s *site) verifySummary(a *audit) {
	s.t.Helper()
	var results, failed, calls, retries uint64
	var used auditlog.UsageSum
	for _, e := range a.runs {
		if e.E.Phase != auditlog.PhaseEnd {
			continue
		}
		sum := e.E.Summary
		if sum == nil { // events were lost
			continue
		}
		results += sum.RowsSucceeded + sum.RowsFailed
		failed += sum.RowsFailed
		calls += sum.Total.Calls
		retries += sum.CapacityRetries
		used.Add(sum.Total.Usage, sum.Total.Usage != nil && sum.Total.Usage.CostUSD == nil)
	}
	total := s.verifyUsage(a)
	if s.crashed {
		return
	}
	if u := used.Reported; u != nil && (*total.PromptTokens != u.PromptTokens || *total.CompletionTokens != u.CompletionTokens || *total.TotalTokens != u.TotalTokens) {
		s.t.Errorf("stage usage has %d+%d tokens, the summaries %s", *total.PromptTokens, *total.CompletionTokens, u.Tokens())
	}
	var wantFailed, wantRetries int
	stored := s.results(0)
	for _, r := range stored {
		if r.Header.Get(streams.HeaderStatus) == "error" {
			wantFailed++
		}
	}
	for _, e := range a.calls {
		if e.E.Status == auditlog.CallCapacityRetry {
			wantRetries++
		}
	}
	if int(results) != len(stored) || int(failed) != wantFailed || int(calls) != len(a.calls) || int(retries) != wantRetries {
		s.t.Errorf("the summaries report %d results, %d failed, %d calls, %d capacity retries; want %d, %d, %d, %d",
			results, failed, calls, retries, len(stored), wantFailed, len(a.calls), wantRetries)
	}
}

// verifyUsage compares what stage usage adds up with the call events, and returns it.
func (s *site) verifyUsage(a *audit) usage.Numbers {
	s.t.Helper()
	book := usage.NewBook(nil)
	if err := usage.NewReader(s.config(nil), book, usage.Options{Stages: []string{"stage"}}).Read(s.t.Context(), s.js); err != nil {
		s.t.Fatal(err)
	}
	var tokens, got int64
	for _, e := range a.calls {
		if e.E.Usage != nil {
			tokens += e.E.Usage.TotalTokens
		}
	}
	total := book.Report(time.Now()).Total
	if total.TotalTokens != nil {
		got = *total.TotalTokens
	}
	if total.Calls != uint64(len(a.calls)) || got != tokens {
		s.t.Errorf("stage usage has %d calls and %d tokens, the audit %d and %d", total.Calls, got, len(a.calls), tokens)
	}
	return total
}

// verifySecret looks for the key in every message and in the logs.
func (s *site) verifySecret() {
	s.t.Helper()
	key := []byte(apiKey)
	for _, name := range s.streamNames() {
		for _, m := range s.read(name, ">") {
			if bytes.Contains(m.Body, key) || bytes.Contains(fmt.Append(nil, m.Header), key) {
				s.t.Errorf("the key is in message %d of stream %s", m.Seq, name)
			}
		}
	}
	if bytes.Contains([]byte(s.logs.String()), key) {
		s.t.Error("the key is in the log")
	}
}

func eventsOf(t *testing.T, a *audit, sequence uint64) (calls []*auditlog.Call, row *auditlog.Row) {
	t.Helper()
	for _, e := range a.calls {
		if e.E.Sequence == sequence {
			calls = append(calls, e.E)
		}
	}
	for _, e := range a.rows {
		if e.E.Sequence == sequence {
			return calls, e.E
		}
	}
	t.Fatalf("row %d has no row event", sequence)
	return nil, nil
}
