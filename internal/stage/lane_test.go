package stage

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
	"github.com/nats-io/nats.go"
)

// laneLab is a stage whose batch lane is scripted: each row is answered on its own after a minute.
type laneLab struct {
	*lab
	mu     sync.Mutex
	added  []lane.Request
	failed []string // tokens of the batches, by Again
	live   []string // bodies of live calls
	answer func(prompt string, tries int) laneAnswer
}

// laneAnswer is what a batch has for a row: an answer's text, another status, or the answer to another request.
type laneAnswer struct {
	text   string
	status int
	other  bool
}

func newLaneLab(t *testing.T, vars map[string]string) *laneLab {
	t.Helper()
	l := &laneLab{answer: func(prompt string, _ int) laneAnswer { return laneAnswer{text: "batch " + prompt} }}
	prices := filepath.Join(t.TempDir(), "prices.yaml")
	text := "large: {input: 2, output: 8, batch_input: 1, batch_output: 4}\nunpriced: {input: 2, output: 8}\n"
	stagetest.Must(t, os.WriteFile(prices, []byte(text), 0o600))
	all := map[string]string{"STAGE_LANE": "batch", "STAGE_PRICES_FILE": prices, "STAGE_LANE_WAIT": "1s"}
	maps.Copy(all, vars)
	l.lab = newLab(t, llmtest.Config{Latency: time.Second, Script: func(c llmtest.Call) *llmtest.Step {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.live = append(l.live, string(c.Body))
		return &llmtest.Step{Delay: time.Second, Body: laneReply(l.liveReply(c.Body))}
	}}, all)
	return l
}

// liveReply answers a live call, with a JSON string where a schema asks for one.
func (l *laneLab) liveReply(body []byte) string {
	if l.vars["STAGE_RESPONSE_SCHEMA_FILE"] != "" {
		return `"live"`
	}
	return "live " + lastMessage(body)
}

// lastMessage is what a request asks.
func lastMessage(body []byte) string {
	const before = `"content":"`
	text := string(body[strings.LastIndex(string(body), before)+len(before):])
	return text[:strings.IndexByte(text, '"')]
}

func laneReply(text string) string {
	return fmt.Sprintf(`{"id":"c","model":"large-1","choices":[{"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500}}`, text)
}

// run works until there are n results.
func (l *laneLab) run(n int) {
	l.t.Helper()
	r := l.startLane()
	l.await(n)
	r.stop()
}

func (l *laneLab) startLane() *running {
	l.t.Helper()
	return l.start(nil, Options{lane: func(*batchLanes, int) (batchLane, error) {
		return &scriptedLane{lab: l, rows: map[uint64]lane.Request{}}, nil
	}})
}

// calls lists the calls of the audit by lane: "live success", "batch failure", and so on.
func (l *laneLab) calls() (list []string) {
	l.t.Helper()
	for _, e := range l.events(auditlog.KindCall) {
		by := e.Call.Lane
		if by == "" {
			by = "live"
		}
		list = append(list, fmt.Sprintf("%d %s %s", e.Call.Sequence, by, e.Call.Status))
	}
	slices.Sort(list)
	return list
}

// scriptedLane implements [batchLane].
type scriptedLane struct {
	lab  *laneLab
	mu   sync.Mutex
	term consumer.LaneTerm
	rows map[uint64]lane.Request
	stop context.CancelFunc
	ends context.Context //nolint:containedctx // of the term
}

func (s *scriptedLane) Open(_ context.Context, term consumer.LaneTerm) error {
	s.term = term
	s.ends, s.stop = context.WithCancel(context.Background())
	return nil
}

func (s *scriptedLane) Use(*nats.Conn) {}

func (s *scriptedLane) Holds(*consumer.Row) bool { return false }

func (s *scriptedLane) Kept(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows, seq)
}

func (s *scriptedLane) Stop() {}

func (s *scriptedLane) Status() lane.Status { return lane.Status{} }

func (s *scriptedLane) Close() { s.stop() }

func (s *scriptedLane) Add(r lane.Request) {
	s.lab.mu.Lock()
	s.lab.added = append(s.lab.added, r)
	s.lab.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[r.Seq] = r
	s.reply(r, 0)
}

func (s *scriptedLane) Again(seq uint64, e *lane.Errand) {
	s.lab.mu.Lock()
	s.lab.failed = append(s.lab.failed, e.Token)
	s.lab.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply(s.rows[seq], e.Tries+1)
}

// reply recalls a row with its answer in a minute.
func (s *scriptedLane) reply(r lane.Request, tries int) {
	a := s.lab.answer(lastMessage(r.Prepared.Body), tries)
	errand := &lane.Errand{
		Key: r.Key, BatchID: fmt.Sprintf("batch_%d", tries), Token: fmt.Sprintf("tok%d", tries), Tries: tries,
		Line: &batchapi.Line{ID: fmt.Sprintf("tok%d-%d", tries, r.Seq), Kind: batchapi.Answered, Status: 200, Body: []byte(laneReply(a.text))},
	}
	if a.status != 0 {
		errand.Line.Status, errand.Line.Body = a.status, fmt.Appendf(nil, `{"error":{"message":"refused with %d","type":"some_error"}}`, a.status)
	}
	if a.other {
		errand.Key = "of another request"
	}
	ctx := s.ends
	time.AfterFunc(time.Minute, func() {
		if ctx.Err() == nil {
			s.term.Recall(r.Seq, errand)
		}
	})
}

func TestRowsOfTheLaneComeOutInOrderAtItsPrice(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLaneLab(t, nil)
		l.load("a", "b", "c")
		l.run(3)
		for i, r := range l.results() {
			if want := "batch " + string(rune('a'+i)); r.Text != want || r.Model != "large-1" || r.Error != nil {
				t.Errorf("row %d: %+v, want %s", i, r, want)
			}
		}
		for _, e := range l.events(auditlog.KindCall) {
			c := e.Call
			if c.Lane != auditlog.LaneBatch || c.BatchID != "batch_0" || c.CallID != fmt.Sprintf("tok0-%d", c.Sequence) || c.CallIndex != 0 {
				t.Errorf("call %+v", c)
			}
			if c.Usage == nil || c.Usage.CostUSD == nil || *c.Usage.CostUSD != .003 {
				t.Errorf("row %d: usage %+v, want 0.001 + 0.002 USD", c.Sequence, c.Usage)
			}
			if len(c.Request) == 0 || c.RequestHash == "" || len(c.Response) == 0 {
				t.Errorf("row %d: request %q, response %q", c.Sequence, c.Request, c.Response)
			}
		}
		for _, e := range l.events(auditlog.KindRow) {
			if e.Row.Source != auditlog.SourceCall || e.Row.Attempts != 1 || *e.Row.Usage.CostUSD != .003 {
				t.Errorf("row event %+v", e.Row)
			}
		}
		if len(l.live) != 0 {
			t.Errorf("live calls: %q", l.live)
		}
		for _, r := range l.added {
			if r.Tokens <= 0 || r.Cost < 1024*4e-6 || r.Cost > .01 || !r.Deadline.IsZero() {
				t.Errorf("row %d was added with %d tokens, %v USD, until %v", r.Seq, r.Tokens, r.Cost, r.Deadline)
			}
		}
	})
}

// lineCase is what the batches have for a row, and what becomes of it.
type lineCase struct {
	q       string
	answers []laneAnswer // by tries; the last one holds
	text    string       // of the result; empty: it failed
	reason  string
	calls   string // by status
	retries int    // of the row event
	again   int
}

func TestWhatALineSaysDecidesItsRow(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		checkLines(t, newLaneLab(t, nil),
			lineCase{q: "success", answers: []laneAnswer{{text: "batch"}}, text: "batch", calls: "batch success"},
			lineCase{q: "429", answers: []laneAnswer{{status: 429}, {text: "batch"}}, text: "batch", calls: "batch capacity_retry, batch success", retries: 1, again: 1},
			lineCase{
				q: "500", answers: []laneAnswer{{status: 500}, {status: 503}, {text: "batch"}},
				text: "batch", calls: "batch capacity_retry, batch failure, batch success", retries: 1, again: 2,
			},
			lineCase{q: "401", answers: []laneAnswer{{status: 401}, {text: "batch"}}, text: "batch", calls: "batch failure, batch success", again: 1},
			lineCase{q: "400", answers: []laneAnswer{{status: 400}}, reason: "api_call_failed", calls: "batch failure"},
			lineCase{
				q: "another request", answers: []laneAnswer{{text: "batch other", other: true}, {text: "batch"}},
				text: "batch", calls: "batch failure, batch success", again: 1,
			},
			lineCase{q: "too large", answers: []laneAnswer{{text: strings.Repeat("x", 2<<20)}}, reason: "result_too_large", calls: "batch success"},
		)
	})
	schema := stagetest.File(t, "schema.json", `{"type":"string","pattern":"^\"?(batch|live)"}`)
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLaneLab(t, map[string]string{"STAGE_RESPONSE_SCHEMA_FILE": schema})
		checkLines(t, l,
			lineCase{q: "wrong once", answers: []laneAnswer{{text: "42"}, {text: `"batch"`}}, text: "batch", calls: "batch failure, batch success", again: 1},
			lineCase{q: "wrong twice", answers: []laneAnswer{{text: "42"}}, text: "live", calls: "batch failure, batch failure, live success", again: 1},
		)
		if !strings.Contains(l.live[0], "Answer again") {
			t.Errorf("the live call has no complaint: %s", l.live[0])
		}
	})
}

// checkLines runs a stage with a row for each case. They wait in the journal behind a first one.
func checkLines(t *testing.T, l *laneLab, cases ...lineCase) {
	t.Helper()
	l.answer = func(prompt string, tries int) laneAnswer {
		for _, c := range cases {
			if c.q == prompt {
				return c.answers[min(tries, len(c.answers)-1)]
			}
		}
		return laneAnswer{text: `"batch first"`}
	}
	l.load("first")
	again := 0
	for _, c := range cases {
		l.load(c.q)
		again += c.again
	}
	l.run(1 + len(cases))
	calls := map[int][]string{} // by row
	for _, c := range l.calls() {
		n, call, _ := strings.Cut(c, " ")
		row := stagetest.Value(strconv.Atoi(n))(t)
		calls[row] = append(calls[row], call)
	}
	rows := map[int]*auditlog.Row{}
	for _, e := range l.events(auditlog.KindRow) {
		rows[int(e.Row.Sequence)] = e.Row
	}
	for i, c := range cases {
		seq := i + 2
		switch r := l.results()[seq-1]; {
		case c.text != "":
			if r.Error != nil || !strings.HasPrefix(strings.Trim(r.Text, `"`), c.text) {
				t.Errorf("%s: result %+v, want %s", c.q, r, c.text)
			}
		case r.Error == nil || r.Error.Reason != c.reason:
			t.Errorf("%s: result %.500v, want an error %s", c.q, fmt.Sprint(r), c.reason)
		}
		if got := strings.Join(calls[seq], ", "); got != c.calls {
			t.Errorf("%s: calls %s, want %s", c.q, got, c.calls)
		}
		row := rows[seq]
		if row.Attempts+row.CapacityRetries != len(calls[seq]) || row.CapacityRetries != c.retries || row.Source != auditlog.SourceCall {
			t.Errorf("%s: %d attempts and %d retries of source %s, want %d and %d", c.q,
				row.Attempts, row.CapacityRetries, row.Source, len(calls[seq])-c.retries, c.retries)
		}
	}
	if len(l.failed) != again {
		t.Errorf("%d answers went back to the lane, want %d: %v", len(l.failed), again, l.failed)
	}
}

func TestHeadersChooseTheLane(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		start := time.Now()
		rows := []struct{ name, lane, deadline, want string }{
			{name: "as configured", want: "batch"},
			{name: "batch", lane: "batch", want: "batch"},
			{name: "live", lane: "live", want: "live"},
			{name: "unknown", lane: "Batch", want: `the row's header Stage-Lane is "Batch": give live or batch`},
			{name: "late duration", deadline: "1s", want: "live"},
			{name: "duration", deadline: "2h", want: "batch"},
			{name: "instant", deadline: start.Add(26 * time.Hour).UTC().Format(time.RFC3339), want: "batch"},
			{name: "past", deadline: "1999-12-31T23:59:59Z", want: "live"},
			{name: "none", deadline: "0", want: "batch"},
			{name: "negative", deadline: "-1h", want: `the row's header Stage-Deadline is "-1h": give a duration such as 90m, or an instant such as`},
			{name: "words", deadline: "tomorrow", lane: "live", want: `the row's header Stage-Deadline is "tomorrow": give a duration`},
		}
		for _, mode := range []string{"batch", "off"} {
			l := newLaneLab(t, map[string]string{"STAGE_LANE_DEADLINE": "24h"})
			if mode == "off" {
				delete(l.vars, "STAGE_LANE")
				delete(l.vars, "STAGE_LANE_DEADLINE")
				delete(l.vars, "STAGE_LANE_WAIT")
			}
			for _, r := range rows {
				l.publish(&nats.Msg{Data: fmt.Appendf(nil, `{"q":%q}`, r.name), Header: nats.Header{"Stage-Lane": {r.lane}, "Stage-Deadline": {r.deadline}}})
			}
			arrived := time.Now()
			time.Sleep(10 * time.Second)
			if mode == "off" {
				l.work(len(rows), nil)
			} else {
				l.run(len(rows))
			}
			for i, got := range l.results() {
				want := rows[i].want
				if mode == "off" { // then they mean nothing
					want = "live"
				}
				text := got.Text
				if got.Error != nil {
					text = got.Error.Text
					if got.Error.Reason != string(llm.ReasonInvalidRow) {
						t.Errorf("%s: reason %s", rows[i].name, got.Error.Reason)
					}
				}
				if !strings.HasPrefix(text, want) {
					t.Errorf("%s, lane %s: %q, want %s", rows[i].name, mode, text, want)
				}
			}
			for _, r := range l.added {
				want := map[string]time.Duration{"duration": 2 * time.Hour, "instant": 26 * time.Hour, "none": 0}
				after, own := want[rows[r.Seq-1].name]
				if !own {
					after = 24 * time.Hour
				}
				if off := r.Deadline.Sub(arrived.Add(after)).Abs(); (after > 0 && off > time.Second) || r.Deadline.IsZero() != (after == 0) {
					t.Errorf("%s: deadline %v, want %v after %v", rows[r.Seq-1].name, r.Deadline, after, arrived)
				}
			}
		}
	})
}

// The pool has no room, as its only worker is busy: rows of the lane need none.
func TestRowsOfTheLaneDoNotWaitBehindLiveOnes(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLaneLab(t, map[string]string{"STAGE_POOL_SIZE": "1"})
		start := time.Now()
		for range 40 {
			l.publish(&nats.Msg{Data: []byte(`{"q":"live"}`), Header: nats.Header{"Stage-Lane": {"live"}}})
		}
		l.load("behind")
		r := l.startLane()
		time.Sleep(3 * time.Second)
		l.mu.Lock()
		added := len(l.added)
		l.mu.Unlock()
		if added != 1 {
			t.Errorf("%d rows joined the lane in %v, want 1", added, time.Since(start))
		}
		l.await(41)
		r.stop()
	})
}

func TestTheLaneUsesAndFeedsStoredReplies(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLaneLab(t, map[string]string{"STAGE_DEDUPE": "stored"})
		l.load("same", "same") // in flight together: each is its own
		r := l.startLane()
		l.await(2)
		l.load("same")
		l.publish(&nats.Msg{Data: []byte(`{"q":"same"}`), Header: nats.Header{"Stage-Lane": {"live"}}})
		l.await(4)
		r.stop()
		if got := strings.Join(l.calls(), ", "); got != "1 batch success, 2 batch success" {
			t.Errorf("calls: %s", got)
		}
		if got := l.sources(); got[auditlog.SourceCall] != 2 || got[auditlog.SourceDedupe] != 2 {
			t.Errorf("sources %v", got)
		}
	})
}

func TestBelowACeilingOnlyPricedModelsUseTheLane(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLaneLab(t, map[string]string{"STAGE_MAX_COST_USD": "1"})
		l.load("a")
		l.publish(&nats.Msg{Data: []byte(`{"q":"b"}`), Header: nats.Header{"Stage-Model": {"unpriced"}}})
		l.publish(&nats.Msg{Data: []byte(`{"q":"c"}`), Header: nats.Header{"Stage-Model": {"unknown"}}})
		r := l.startLane()
		l.await(3)
		r.stop()
		if got := strings.Join(l.calls(), ", "); got != "1 batch success, 2 live success" {
			t.Errorf("calls: %s", got)
		}
		if last := l.results()[2]; last.Error == nil || !strings.Contains(last.Error.Text, "STAGE_PRICES_FILE") {
			t.Errorf("a model without any price: %+v", last)
		}
		if got := r.ledger.Spent(); math.Abs(got-.009) > 1e-9 {
			t.Errorf("spent %v", got)
		}
	})
}

// Rows behind one that takes long wait in the journal: read back by the same process nothing was lost; by another one
// they are kept replies, as ever.
func TestRepliesReadBackFromBehindTheLane(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		const rows = 40
		l := newLaneLab(t, map[string]string{"STAGE_WINDOW": "16", "STAGE_POOL_SIZE": "2"})
		l.answer = func(prompt string, tries int) laneAnswer {
			if prompt == "slow" && tries < 3 {
				return laneAnswer{status: http.StatusInternalServerError}
			}
			return laneAnswer{text: "batch " + prompt}
		}
		questions := []string{"slow"}
		for n := range rows - 1 {
			questions = append(questions, fmt.Sprint("quick ", n))
		}
		l.load(questions...)
		l.run(rows)
		if got := l.sources(); got[auditlog.SourceCall] != rows || len(got) != 1 {
			t.Errorf("sources %v, want %d calls", got, rows)
		}
		l.load(questions...)
		first := l.startLane()
		time.Sleep(90 * time.Second)
		first.stop()
		l.run(2 * rows)
		if got := l.sources(); got[auditlog.SourceJournal] != rows-1 {
			t.Errorf("sources %v, want %d from the journal", got, rows-1)
		}
		if n := len(l.events(auditlog.KindCall)); n != 2*rows+3+1+3 {
			t.Errorf("%d calls, want one a row, and the failures: 3, 1 before the stop, 3 after", n)
		}
		for i, r := range l.results() {
			if r.Text != "batch "+questions[i%rows] {
				t.Errorf("row %d: %+v", i+1, r)
			}
		}
	})
}
