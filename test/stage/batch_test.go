package stage_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// batchReply is a reply as a client decodes it, independent of the stage's own types.
type batchReply struct {
	Code    string // of a service error
	Header  nats.Header
	Took    time.Duration
	Results []struct{ Status, Content, Error, Reason string }
	Tokens  map[string]int64 `json:"total_tokens"`
	TimeMS  int64            `json:"total_time_ms"`

	Total        int
	Report       []struct{ Error, Reason string }
	Fatal        bool
	Size, Max    int
	Provider     string
	RetryAfterMS *int64 `json:"retry_after_ms"`
	Error        string
}

// asking sends a batched request in the background.
func (s *site) asking(body string) <-chan *batchReply {
	done := make(chan *batchReply, 1)
	go func() {
		reply, err := s.tryAsk("stage.llm_batch", body)
		if err != nil {
			s.t.Error(err)
		}
		done <- reply
	}()
	return done
}

// contents lists the answers, with the reason in place of each one that is missing.
func (r *batchReply) contents() []string {
	var list []string
	for _, v := range r.Results {
		list = append(list, v.Content+v.Reason)
	}
	return list
}

// ask sends a batched request and waits for the reply.
func (s *site) ask(body string) *batchReply { return s.askOn("stage.llm_batch", body) }

func (s *site) askOn(subject, body string) *batchReply {
	s.t.Helper()
	r, err := s.tryAsk(subject, body)
	if err != nil {
		s.t.Fatalf("%s %.100s: %v", subject, body, err)
	}
	return r
}

// tryAsk is askOn for other goroutines, which must not end the test.
func (s *site) tryAsk(subject, body string) (*batchReply, error) {
	began := time.Now()
	m, err := s.request(subject, []byte(body))
	if err != nil {
		return nil, err
	}
	r := &batchReply{Code: m.Header.Get(micro.ErrorCodeHeader), Header: m.Header, Took: time.Since(began)}
	if err := json.Unmarshal(m.Data, r); err != nil {
		return nil, fmt.Errorf("%w in %s", err, m.Data)
	}
	return r, nil
}

// request is nats.Conn.Request without the timers that the library shares between bubbles.
func (s *site) request(subject string, body []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	return s.nc.RequestWithContext(ctx, subject, body)
}

// batchOf makes a request of n prompts.
func batchOf(n, parallel int) string {
	prompts := make([]string, n)
	for i := range prompts {
		prompts[i] = fmt.Sprint("prompt ", i)
	}
	body, err := json.Marshal(map[string]any{"prompts": prompts, "max_parallel": parallel})
	if err != nil {
		panic(err)
	}
	return string(body)
}

// serving starts a replica and waits until it answers batched requests.
func (s *site) serving(changes vars) *replica {
	s.t.Helper()
	r := s.start(changes)
	s.until("the service", func() bool {
		m, err := s.request("$SRV.INFO.llm-stage", nil)
		return err == nil && bytes.Contains(m.Data, []byte("llm_query_batched"))
	})
	return r
}

func TestABatchComesBackInOrderWithItsAudit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 20, llmtest.Config{Latency: time.Second, LatencySigma: 1, Script: func(c llmtest.Call) *llmtest.Step {
			switch c.Prompt {
			case "bad":
				return &llmtest.Step{Status: 400}
			case "stumble":
				if c.N%2 == 0 {
					return &llmtest.Step{Status: 500}
				}
			}
			return nil
		}})
		r := s.serving(vars{"STAGE_SYSTEM_PROMPT": "for rows alone", "STAGE_LLM_MAX_TOKENS": "77"})
		reply := s.ask(`{"prompts": ["one", "bad", "three"], "contexts": ["before one", null, null], "max_parallel": 3, "model": "big"}`)
		s.await(20)
		r.stop()

		if reply.Code != "" || len(reply.Results) != 3 || !strings.HasSuffix(reply.Results[0].Content, "to: one") ||
			reply.Results[1].Reason != "api_call_failed" || reply.Results[1].Status != "error" || !strings.Contains(reply.Results[1].Error, "400") ||
			!strings.HasSuffix(reply.Results[2].Content, "to: three") || reply.Results[2].Status != "success" {
			t.Errorf("%+v", reply)
		}
		if took := time.Duration(reply.TimeMS) * time.Millisecond; took <= 0 || took > reply.Took {
			t.Errorf("total_time_ms is %v, the request took %v", took, reply.Took)
		}
		a := s.verify() // calls, tokens and the summary agree with what the LLM saw, batch and rows together
		tokens, seen := int64(0), 0
		for _, e := range a.calls {
			if e.E.BatchID == "" {
				continue
			}
			seen++
			if id := e.E.BatchID; id != reply.Header.Get("Stage-Batch-Id") || e.E.Sequence != 0 || e.E.StateID != "" || e.E.Partition != auditlog.All || e.E.Model != "big" {
				t.Errorf("event %+v", e.E)
			}
			if want := fmt.Sprintf("%s/%s/%s/call/%d", e.E.BatchID, e.E.CallID, e.E.RunID, e.E.CallIndex); e.Header.Get("Nats-Msg-Id") != want {
				t.Errorf("message id %q, want %q", e.Header.Get("Nats-Msg-Id"), want)
			}
			if bytes.Contains(e.E.Request, []byte("for rows alone")) || !bytes.Contains(e.E.Request, []byte("77")) {
				t.Errorf("request %s", e.E.Request)
			}
			if bytes.Contains(e.E.Request, []byte(`"one"`)) && !bytes.Contains(e.E.Request, []byte(`{"role":"user","content":"before one"},{"role":"user","content":"one"}`)) {
				t.Errorf("the context does not come before its prompt: %s", e.E.Request)
			}
			if e.E.Usage != nil {
				tokens += e.E.Usage.TotalTokens
			}
		}
		if seen != 3 || tokens == 0 || reply.Tokens["total_tokens"] != tokens || reply.Tokens["prompt_tokens"]+reply.Tokens["completion_tokens"] != tokens {
			t.Errorf("%d calls and %d tokens in the audit, the reply reports %v", seen, tokens, reply.Tokens)
		}
	})
}

func TestRowsAndBatchesShareThePool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 160
		s := loaded(t, rows, llmtest.Config{Latency: time.Second})
		r := s.serving(vars{"STAGE_BATCH_RPM": "openai=0", "STAGE_WINDOW": "64"})
		began := time.Now()
		var asked []<-chan *batchReply
		for range 6 { // up to 120 prompts at a time
			asked = append(asked, s.asking(batchOf(25, 20)))
		}
		s.await(rows)
		rowsTook := time.Since(began)
		for _, done := range asked {
			reply := <-done
			if reply == nil || len(reply.Results) != 25 {
				t.Fatalf("%+v", reply)
			}
			for i, content := range reply.contents() {
				if !strings.HasSuffix(content, fmt.Sprint("prompt ", i)) {
					t.Errorf("prompt %d: %s", i, content)
				}
			}
		}
		allTook := time.Since(began)
		r.stop()
		s.verify()
		t.Logf("rows took %v, all %v", rowsTook, allTook)
		// Ten calls a second, less the throttle's ramp-up: alone the rows need 16 s, and with two thirds of the
		// calls 24 s.
		if rowsTook > 34*time.Second {
			t.Errorf("rows took %v beside batches", rowsTook)
		}
		if allTook > 45*time.Second {
			t.Errorf("all took %v, 310 calls at ten a second", allTook)
		}
	})
}

func TestABatchKeepsToItsProvidersLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: time.Second})
		r := s.serving(vars{"STAGE_BATCH_RPM": "openai=10"})
		reply := s.ask(batchOf(25, 20))
		r.stop()
		if len(reply.Results) != 25 || reply.Code != "" {
			t.Fatalf("%+v", reply)
		}
		seen := s.tap.seen()
		for i := 10; i < len(seen); i++ {
			if since := seen[i].At.Sub(seen[i-10].At); since < time.Minute {
				t.Errorf("call %d came %v after the tenth before it", i, since)
			}
		}
	})
}

func TestABatchWithoutCapacityEndsAfterBoundedAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, always(llmtest.Step{Status: 429, Header: map[string]string{"Retry-After": "3"}}))
		r := s.serving(nil)
		reply := s.ask(batchOf(100, 2))
		r.stop()
		if reply.Code != "rate_limited" || reply.Provider != "openai" || reply.RetryAfterMS == nil || *reply.RetryAfterMS != 3000 {
			t.Errorf("%+v", reply)
		}
		if n := len(s.tap.seen()); n < 3 || n > 6 {
			t.Errorf("%d calls, want 3 for each of two prompts at most", n)
		}
		a := s.audit()
		s.verifyCalls(&a)
		s.verifySummary(&a)
	})
}

func TestABatchBehindRowsWithoutCapacityIsNotLeftWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		s := loaded(t, 60, locked(&open, 429))
		r := s.serving(nil)
		time.Sleep(time.Minute) // retries of rows take every dispatch
		reply := s.ask(batchOf(100, 5))
		if reply.Code != "rate_limited" || reply.Took > 15*time.Minute {
			t.Errorf("%s after %v: %s", reply.Code, reply.Took, reply.Error)
		}
		open.Store(true)
		s.await(60)
		r.stop()
		s.verify()
	})
}

func TestABatchSentToAPausedStageGetsTheReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		s := loaded(t, 5, locked(&open, 401))
		r := s.serving(nil)
		s.until("the pause", func() bool { _, body := r.get("/readyz"); return strings.Contains(body, "paused") })
		before := len(s.tap.seen())
		reply := s.ask(batchOf(30, 20))
		if reply.Code != "all_failed" || reply.Total != 30 || len(reply.Report) != 30 || !reply.Fatal || reply.Took > time.Second {
			t.Errorf("%+v", reply)
		}
		if v := reply.Report[29]; v.Reason != "api_call_failed" || !strings.Contains(v.Error, "paused") || !strings.Contains(v.Error, "401") {
			t.Errorf("%+v", v)
		}
		if n := len(s.tap.seen()); n != before {
			t.Errorf("%d calls during the pause", n-before)
		}
		open.Store(true)
		s.await(5)
		if reply := s.ask(batchOf(2, 1)); reply.Code != "" {
			t.Errorf("after the pause: %+v", reply)
		}
		r.stop()
		s.verify()
	})
}

func TestABatchCountsTowardsTheCostCeilingAndKeepsToIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		prices := stagetest.File(t, "prices.yaml", "small: {input: 1000000, output: 0}\n") // a dollar a token
		s := newSite(t, llmtest.Config{Latency: time.Second})
		r := s.serving(vars{"STAGE_PRICES_FILE": prices, "STAGE_MAX_COST_USD": "6"})
		first := s.ask(`{"prompts": ["a", "b", "c", "d", "e", "f", "g", "h"], "max_parallel": 1}`)
		if first.Code != "" || first.Results[0].Status != "success" || first.Results[7].Reason != "cost_ceiling" {
			t.Errorf("%+v", first)
		}
		calls := len(s.tap.seen())
		second := s.ask(`{"prompts": ["i"]}`)
		if second.Code != "all_failed" || second.Report[0].Reason != "cost_ceiling" || !strings.Contains(second.Report[0].Error, "STAGE_MAX_COST_USD") || len(s.tap.seen()) != calls {
			t.Errorf("%+v", second)
		}
		if other := s.ask(`{"prompts": ["i"], "model": "unpriced"}`); other.Code != "all_failed" || len(s.tap.seen()) != calls {
			t.Errorf("a model without a price: %+v", other)
		}
		r.stop()
	})
}

func TestAStopAnswersBatchesWithWhatTheyHave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: 10 * time.Second})
		r := s.serving(nil)
		done := s.asking(batchOf(10, 3))
		time.Sleep(5 * time.Second)
		r.soft()
		reply := <-done
		if reply == nil || reply.Code != "" || reply.Took < 10*time.Second || reply.Took > 20*time.Second {
			t.Fatalf("%+v", reply)
		}
		for i, v := range reply.Results {
			if in := i < 3; in != (v.Status == "success") || !in && (v.Reason != "cancelled" || !strings.Contains(v.Error, "stopping")) {
				t.Errorf("result %d: %+v", i, v)
			}
		}
		if err := r.wait(); err != nil {
			t.Error(err)
		}
		a := s.audit()
		s.verifyCalls(&a)
		s.verifySummary(&a)
	})
}

func TestAHardStopAnswersBatchesToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: time.Hour})
		r := s.serving(vars{"STAGE_LLM_TIMEOUT": "30s", "STAGE_RETRY_MAX_ATTEMPTS": "9", "STAGE_LLM_MAX_REPLY_BYTES": "1MiB"})
		done := s.asking(batchOf(10, 3))
		time.Sleep(5 * time.Second)
		r.soft()
		time.Sleep(time.Second)
		r.hard()
		if reply := <-done; reply == nil || reply.Code != "all_failed" || reply.Took > 7*time.Second || reply.Total != 10 {
			t.Errorf("%+v", reply)
		}
		<-r.done
	})
}

// Each replica has its own pool, idle while it stands by.
func TestEveryReplicaAnswersBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 1, llmtest.Config{})
		first, second := s.serving(nil), s.start(nil)
		s.await(1)
		s.until("the second replica", func() bool {
			return len(s.services()) == 2
		})
		for range 30 {
			if reply := s.ask(`{"prompts": ["x"]}`); reply.Code != "" {
				t.Fatalf("%+v", reply)
			}
		}
		second.stop()
		for range 5 { // the stopped one accepts no more
			if reply := s.ask(`{"prompts": ["x"]}`); reply.Code != "" {
				t.Fatalf("%+v", reply)
			}
		}
		first.stop()
		s.crashed = false
		runs := map[string]int{}
		a := s.verify()
		for _, e := range a.calls {
			if e.E.BatchID != "" {
				runs[e.E.RunID]++
			}
		}
		if len(runs) != 2 {
			t.Errorf("calls by process: %v, want both", runs)
		}
	})
}

// services lists the instances that answer $SRV.PING.
func (s *site) services() []string {
	s.t.Helper()
	inbox := s.nc.NewInbox()
	sub := stagetest.Value(s.nc.SubscribeSync(inbox))(s.t)
	defer func() { _ = sub.Unsubscribe() }()
	stagetest.Must(s.t, s.nc.PublishRequest("$SRV.PING.llm-stage", inbox, nil))
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	var ids []string
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			slices.Sort(ids)
			return ids
		}
		var ping micro.Ping
		stagetest.Must(s.t, json.Unmarshal(m.Data, &ping))
		ids = append(ids, ping.ID)
	}
}

func TestTheServiceIsDiscoveredAndCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: time.Second, Script: func(c llmtest.Call) *llmtest.Step {
			if c.Prompt == "bad" {
				return &llmtest.Step{Status: 400}
			}
			return nil
		}})
		r := s.serving(nil)
		s.ask(`{"prompts": ["a", "bad"]}`)
		s.ask(`{"prompts": ["bad"]}`)
		s.ask(`{}`)
		if warned := s.askOn("stage.llm_query_batched", `{"prompts": ["a"]}`); !strings.Contains(warned.Header.Get("Stage-Warning"), "stage.llm_batch") || warned.Results[0].Status != "success" {
			t.Errorf("the deprecated endpoint: %+v", warned)
		}
		if warned := s.askOn("stage.llm_query_batched", `{}`); warned.Code != "bad_request" || warned.Header.Get("Stage-Warning") == "" {
			t.Errorf("the deprecated endpoint: %+v", warned)
		}

		var info micro.Info
		s.service("$SRV.INFO.llm-stage", &info)
		if info.Name != "llm-stage" || info.Metadata["stage"] != "stage" || info.Metadata["model"] != "small" || len(info.Endpoints) != 5 ||
			info.Endpoints[0].Subject != "stage.llm_batch" || info.Endpoints[1].Subject != "stage.llm_query_batched" {
			t.Errorf("%+v", info)
		}
		var stats micro.Stats
		s.service("$SRV.STATS.llm-stage", &stats)
		v := stats.Endpoints[0]
		if v.NumRequests != 3 || v.NumErrors != 1 || !strings.HasPrefix(v.LastError, "bad_request:") {
			t.Errorf("%+v", v)
		}
		if want := `{"in_flight":0,"answered":1,"failed":2,"prompts":3,"prompt_errors":2,"processing_time":2000000000}`; string(v.Data) != want {
			t.Errorf("%s, want %s", v.Data, want)
		}
		if _, body := r.get("/metrics"); !hasLine(body, `llm_stage_calls_total{model="small",provider="openai",status="success"}`, " 2") ||
			!hasLine(body, `llm_stage_calls_total{model="small",provider="openai",status="failure"}`, " 2") {
			t.Errorf("metrics:\n%s", linesOf(body, "llm_stage_calls_total"))
		}
		r.stop()
		if left := s.services(); len(left) != 0 {
			t.Errorf("still there: %v", left)
		}
	})
}

// service calls one of the service's built-in endpoints.
func (s *site) service(subject string, into any) {
	s.t.Helper()
	m, err := s.request(subject, nil)
	if err == nil {
		err = json.Unmarshal(m.Data, into)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}
