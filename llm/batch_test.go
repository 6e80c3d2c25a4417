package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/stagetest/must"
)

// script is a caller that takes a second for each call and answers by a script.
type script struct {
	// answer judges the n-th call of a prompt, from 1. Nil error: it is answered.
	answer func(prompt string, n int) error

	mu       sync.Mutex
	requests []Request
	at       []time.Duration // of each call, from begin
	begin    time.Time
	calls    map[string]int
	inFlight int
	most     int
}

func scripted(answer func(prompt string, n int) error) *script {
	return &script{answer: answer, begin: time.Now(), calls: make(map[string]int)}
}

func (s *script) Provider() string { return OpenAI }

func (s *script) Call(ctx context.Context, r *Request) (*Reply, error) {
	s.mu.Lock()
	s.requests = append(s.requests, *r)
	s.at = append(s.at, time.Since(s.begin))
	s.calls[r.Prompt]++
	n := s.calls[r.Prompt]
	s.inFlight++
	s.most = max(s.most, s.inFlight)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.inFlight--
		s.mu.Unlock()
	}()
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, &Error{Provider: OpenAI, Err: context.Cause(ctx)}
	}
	usage := &Usage{PromptTokens: 10, CompletionTokens: 5, TotalTokens: 15}
	if s.answer != nil {
		if err := s.answer(r.Prompt, n); err != nil {
			return &Reply{Usage: usage}, err
		}
	}
	return &Reply{Text: "re " + r.Prompt, Usage: usage}, nil
}

var (
	errNoRoom = &Error{Provider: OpenAI, Status: 429, Class: Capacity, Reason: ReasonAPICallFailed, Err: errors.New("slow down")}
	errCut    = &Error{Provider: OpenAI, Class: Transient, Reason: ReasonAPICallFailed, Err: errors.New("connection reset")}
	errFilter = &Error{Provider: OpenAI, Class: Permanent, Reason: ReasonContentFiltered, Err: errors.New("filtered")}
	errNoKey  = &Error{Provider: OpenAI, Status: 401, Class: Fatal, Reason: ReasonAPICallFailed, Err: errors.New("bad key")}
)

// unhurried is the default but without its limit a minute, and with the longest waits.
func unhurried() BatchConfig {
	cfg := DefaultBatch()
	cfg.RPM, cfg.Rand = nil, func() float64 { return 1 }
	return cfg
}

func newBatch(t *testing.T, cfg BatchConfig) *Batch {
	t.Helper()
	b := must.Value(NewBatch(cfg))(t)
	return b
}

func prompts(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint("p", i)
	}
	return list
}

func TestBatchHasTheDocumentedDefaults(t *testing.T) {
	cfg := DefaultBatch()
	if cfg.MaxParallel != 5 || cfg.ParallelLimit != 20 || cfg.MaxPrompts != 1000 ||
		fmt.Sprint(cfg.RPM) != "map[anthropic:60 openai:60 openrouter:100]" {
		t.Errorf("%+v", cfg)
	}
	newBatch(t, cfg)
}

func TestBatchConfigProblemsAreReportedTogether(t *testing.T) {
	_, err := NewBatch(BatchConfig{RPM: map[string]int{"openai": -1}, Retry: BatchRetry{BaseDelay: -1}})
	for _, want := range []string{"MaxParallel is 0", "ParallelLimit is 0", "MaxPrompts is 0", "MaxAttempts is 0", "BaseDelay is -1ns", "BackoffFactor is 0", "RPM of openai is -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestBatchRequestReadsTheWireForm(t *testing.T) {
	var r BatchRequest
	must.Do(t, json.Unmarshal([]byte(`{"prompts":["a","b"],"contexts":["c",null],"max_parallel":5,"model":null}`), &r))
	if !slices.Equal(r.Prompts, []string{"a", "b"}) || *r.Contexts[0] != "c" || r.Contexts[1] != nil || r.MaxParallel != 5 || r.Model != "" {
		t.Errorf("%+v", r)
	}
}

func TestBatchSendsEachContextBeforeItsPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, c, empty := unhurried(), "the context", ""
		tokens := 7
		cfg.Request = Request{MaxTokens: &tokens, Prompt: "replaced", Context: "replaced", Model: "replaced"}
		s := scripted(nil)
		reply, err := newBatch(t, cfg).Do(t.Context(), s, &BatchRequest{
			Prompts: []string{"a", "b", "c"}, Contexts: []*string{&c, nil, &empty}, MaxParallel: 1, Model: "big",
		})
		if err != nil || !reply.AllSucceeded() {
			t.Fatalf("%+v, %v", reply, err)
		}
		for i, want := range []Request{{Prompt: "a", Context: c}, {Prompt: "b"}, {Prompt: "c"}} {
			got := s.requests[i]
			if got.Prompt != want.Prompt || got.Context != want.Context || got.Model != "big" || got.MaxTokens != &tokens {
				t.Errorf("request %d: %+v, want %+v", i, got, want)
			}
		}
	})
}

func TestBatchRequestsThatAreNone(t *testing.T) {
	b := newBatch(t, unhurried())
	for name, r := range map[string]*BatchRequest{
		"no prompts":        {},
		"too few contexts":  {Prompts: prompts(2), Contexts: []*string{nil}},
		"too many contexts": {Prompts: prompts(1), Contexts: []*string{nil, nil}},
	} {
		reply, err := b.Do(t.Context(), scripted(nil), r)
		if reply != nil || !errors.Is(err, ErrBatchRequest) {
			t.Errorf("%s: %v, %v", name, reply, err)
		}
	}
	_, err := b.Do(t.Context(), scripted(nil), &BatchRequest{Prompts: prompts(1001)})
	if e, ok := errors.AsType[*BatchTooLargeError](err); !ok || e.Size != 1001 || e.Max != 1000 {
		t.Errorf("1001 prompts: %v", err)
	}
}

func TestBatchResultsAreInTheOrderOfThePrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scripted(func(prompt string, _ int) error {
			time.Sleep(time.Duration(len(prompt)*7%5) * time.Second) // they end in another order
			return nil
		})
		var list, want []string
		for i := range 40 {
			list = append(list, strings.Repeat("x", i+1))
			want = append(want, "re "+strings.Repeat("x", i+1))
		}
		reply, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: list, MaxParallel: 20})
		if err != nil || !slices.Equal(reply.Successes(), want) {
			t.Errorf("%+v, %v", reply, err)
		}
		for i, r := range s.requests {
			if s.at[i] == 0 && !slices.Contains(list[:20], r.Prompt) {
				t.Errorf("prompt %d started among the first 20", len(r.Prompt))
			}
		}
	})
}

func TestBatchKeepsTheSuccessesBesideTheFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scripted(func(prompt string, _ int) error {
			if prompt == "p1" || prompt == "p3" {
				return errFilter
			}
			return nil
		})
		reply, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: prompts(5)})
		if err != nil || reply.AllSucceeded() || reply.ErrorCount() != 2 || !slices.Equal(reply.Successes(), []string{"re p0", "re p2", "re p4"}) {
			t.Errorf("%+v, %v", reply, err)
		}
		want := []BatchFault{{1, "openai: filtered", ReasonContentFiltered}, {3, "openai: filtered", ReasonContentFiltered}}
		if got := reply.ErrorReport(); !slices.Equal(got, want) {
			t.Errorf("report %+v, want %+v", got, want)
		}
		if *reply.TotalTokens != (BatchTokens{50, 25, 75}) || reply.TotalTimeMS != 1000 {
			t.Errorf("tokens %+v in %d ms: failed attempts count, too", *reply.TotalTokens, reply.TotalTimeMS)
		}
		text, err := json.Marshal(reply)
		wantText := `{"results":[{"status":"success","content":"re p0"},{"status":"error","error":"openai: filtered","reason":"content_filtered"},` +
			`{"status":"success","content":"re p2"},{"status":"error","error":"openai: filtered","reason":"content_filtered"},{"status":"success","content":"re p4"}],` +
			`"total_tokens":{"prompt_tokens":50,"completion_tokens":25,"total_tokens":75},"total_time_ms":1000}`
		if err != nil || string(text) != wantText {
			t.Errorf("%s, %v", text, err)
		}
	})
}

func TestBatchTokensThatAreNotReportedAreUnknown(t *testing.T) {
	reply, err := newBatch(t, unhurried()).Do(t.Context(), silent{}, &BatchRequest{Prompts: prompts(1)})
	if text, _ := json.Marshal(reply); err != nil || !strings.Contains(string(text), `"total_tokens":null`) {
		t.Errorf("%s, %v", text, err)
	}
}

type silent struct{}

func (silent) Provider() string { return "x" }
func (silent) Call(context.Context, *Request) (*Reply, error) {
	return &Reply{Text: "yes"}, nil
}

func TestBatchParallelIsBroughtWithinItsBounds(t *testing.T) {
	for asked, want := range map[int]int{0: 5, -3: 1, 1: 1, 7: 7, 20: 20, 21: 20, 1 << 40: 20} {
		synctest.Test(t, func(t *testing.T) {
			s := scripted(nil)
			_, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: prompts(50), MaxParallel: asked})
			if err != nil || s.most != want {
				t.Errorf("max_parallel %d: %d at a time, want %d (%v)", asked, s.most, want, err)
			}
		})
	}
}

func TestBatchKeepsToTheProvidersLimitAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := unhurried()
		cfg.RPM = map[string]int{OpenAI: 10, Anthropic: 1}
		b, s := newBatch(t, cfg), scripted(nil)
		var all sync.WaitGroup
		for range 3 { // batches share the limit
			all.Go(func() {
				if _, err := b.Do(t.Context(), s, &BatchRequest{Prompts: prompts(15), MaxParallel: 20}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for i := range s.at[1:] { // whichever batch each belongs to
			if since := s.at[i+1] - s.at[i]; since < 6*time.Second || since > 8*time.Second {
				t.Errorf("call %d came %v after the one before it, and ten a minute are 6 s apart", i+1, since)
			}
		}
		for i := range s.at[10:] {
			if since := s.at[i+10] - s.at[i]; since < time.Minute || since > 62*time.Second {
				t.Errorf("call %d came %v after the tenth before it", i+10, since)
			}
		}
	})
}

func TestBatchTryTurnDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := unhurried()
		cfg.RPM = map[string]int{OpenAI: 1, Anthropic: 0}
		b := newBatch(t, cfg)
		ended, ok := b.TryTurn(OpenAI)
		if !ok {
			t.Fatal("the first call may go")
		}
		ended()
		if _, ok := b.TryTurn(OpenAI); ok {
			t.Error("so may the second")
		}
		if _, ok := b.TryTurn(Anthropic); !ok {
			t.Error("0 is no limit")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, ok := b.TryTurn(OpenAI); !ok {
			t.Error("nor may one a minute later")
		}
	})
}

// TestBatchTryTurnKeepsCallsApart: a call that may not start yet takes no place within the minute either.
func TestBatchTryTurnKeepsCallsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := unhurried()
		cfg.RPM = map[string]int{OpenAI: 3}
		b := newBatch(t, cfg)
		for i, want := range []bool{true, true, false, false} { // one may be early
			if _, ok := b.TryTurn(OpenAI); ok != want {
				t.Errorf("call %d at once: %t", i, ok)
			}
		}
		time.Sleep(20 * time.Second)
		if _, ok := b.TryTurn(OpenAI); !ok {
			t.Error("the third of three a minute may not start after 20 s")
		}
	})
}

func TestBatchRetriesWithExponentialBackoff(t *testing.T) {
	for _, fault := range []*Error{errNoRoom, errCut} {
		synctest.Test(t, func(t *testing.T) {
			cfg := unhurried()
			cfg.Retry.MaxAttempts = 6
			s := scripted(func(_ string, n int) error {
				if n < 6 {
					return fault
				}
				return nil
			})
			cfg.Retry.MaxDelay = 10 * time.Second
			reply, err := newBatch(t, cfg).Do(t.Context(), s, &BatchRequest{Prompts: prompts(1)})
			if err != nil || !reply.AllSucceeded() {
				t.Fatal(err)
			}
			// Each call takes a second; the waits are 2, 4, 8, and then the longest, 10.
			want := []time.Duration{0, 3 * time.Second, 8 * time.Second, 17 * time.Second, 28 * time.Second, 39 * time.Second}
			if !slices.Equal(s.at, want) {
				t.Errorf("%v: calls at %v, want %v", fault.Class, s.at, want)
			}
		})
	}
}

func TestBatchWaitsAsLongAsTheServerAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		patient := *errNoRoom
		patient.RetryAfter = 30 * time.Second
		s := scripted(func(_ string, n int) error {
			if n == 1 {
				return &patient
			}
			return nil
		})
		if _, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: prompts(1)}); err != nil || s.at[1] != 31*time.Second {
			t.Errorf("calls at %v, %v", s.at, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		tomorrow := *errNoRoom
		tomorrow.RetryAfter = 24 * time.Hour
		s := scripted(func(string, int) error { return &tomorrow })
		_, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: prompts(3), MaxParallel: 1})
		if e, ok := errors.AsType[*RateLimitedError](err); !ok || e.Provider != OpenAI || e.RetryAfter != 24*time.Hour || len(s.at) != 1 {
			t.Errorf("%v after calls at %v", err, s.at)
		}
	})
}

func TestBatchAttemptsHaveACeiling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scripted(func(prompt string, _ int) error {
			switch prompt {
			case "p0":
				return errCut
			case "p1":
				return errNoRoom
			}
			return nil
		})
		reply, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: prompts(30), MaxParallel: 3})
		if err != nil || s.calls["p0"] != 3 || s.calls["p1"] != 3 || reply.ErrorCount() != 2 {
			t.Errorf("%d and %d calls, %d errors, %v", s.calls["p0"], s.calls["p1"], reply.ErrorCount(), err)
		}
		if r := reply.Results[1]; r.Reason != ReasonRateLimited || r.Error != "openai: 429: slow down" {
			t.Errorf("%+v", r)
		}
		if r := reply.Results[0]; r.Reason != ReasonAPICallFailed {
			t.Errorf("%+v", r)
		}
	})
}

func TestBatchWithoutCapacityEndsBeforeAllPromptsAreTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scripted(func(string, int) error { return errNoRoom })
		reply, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: prompts(1000)})
		if e, ok := errors.AsType[*RateLimitedError](err); !ok || e.Provider != OpenAI || e.RetryAfter != 0 || e.Reply != reply {
			t.Errorf("%v", err)
		}
		if len(s.at) != 15 {
			t.Errorf("%d calls, want 3 for each of 5", len(s.at))
		}
		if r := reply.Results[999]; r.Reason != ReasonRateLimited || r.Error != "not sent: openai: 429: slow down" {
			t.Errorf("%+v", r)
		}
	})
}

func TestBatchThatFailsAsAWholeIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scripted(func(prompt string, _ int) error {
			if prompt == "p0" {
				return errNoRoom
			}
			return errFilter
		})
		reply, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: prompts(3)})
		e, ok := errors.AsType[*AllFailedError](err)
		if !ok || e.Total() != 3 || e.Reply != reply || len(reply.ErrorReport()) != 3 || !errors.Is(err, errFilter) {
			t.Fatalf("%v", err)
		}
		if want := "all 3 prompts failed, the first with: openai: 429: slow down"; err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	})
}

func TestBatchEndsAtAFatalError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scripted(func(string, int) error { return errNoKey })
		reply, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: prompts(100), MaxParallel: 2})
		if _, ok := errors.AsType[*AllFailedError](err); !ok || len(s.at) != 2 {
			t.Errorf("%v after %d calls", err, len(s.at))
		}
		if r := reply.Results[99]; r.Reason != ReasonAPICallFailed || r.Error != "not sent: openai: 401: bad key" {
			t.Errorf("%+v", r)
		}
	})
}

func TestBatchKeepsWhatItHasWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2500*time.Millisecond, errors.New("going home"))
		defer cancel()
		reply, err := newBatch(t, unhurried()).Do(ctx, scripted(nil), &BatchRequest{Prompts: prompts(30), MaxParallel: 5})
		if err != nil || len(reply.Successes()) != 10 || reply.TotalTimeMS != 2500 {
			t.Fatalf("%+v, %v", reply, err)
		}
		if r := reply.Results[12]; r.Reason != ReasonCancelled || r.Error != "openai: going home" {
			t.Errorf("in flight: %+v", r)
		}
		if r := reply.Results[29]; r.Reason != ReasonCancelled || !strings.Contains(r.Error, "not sent: ") || !strings.Contains(r.Error, "going home") {
			t.Errorf("not sent: %+v", r)
		}
	})
}

func TestBatchDoesNotWaitForALimitOnceItHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := unhurried()
		cfg.RPM = map[string]int{OpenAI: 1}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		reply, err := newBatch(t, cfg).Do(ctx, scripted(nil), &BatchRequest{Prompts: prompts(3)})
		if err != nil || reply.ErrorCount() != 2 || reply.TotalTimeMS != 5000 {
			t.Errorf("%+v, %v", reply, err)
		}
	})
}

func TestBatchAnswersThatAreTooLargeTogetherEndIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := unhurried()
		cfg.MaxContentBytes = 30
		s := scripted(nil)
		_, err := newBatch(t, cfg).Do(t.Context(), s, &BatchRequest{Prompts: prompts(100), MaxParallel: 1})
		if e, ok := errors.AsType[*BatchReplyTooLargeError](err); !ok || e.Max != 30 || e.Size != 35 || len(s.at) != 7 {
			t.Errorf("%v after %d calls", err, len(s.at))
		}
	})
}

func TestBatchTakesAnErrorOfAnotherTypeForPermanent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scripted(func(string, int) error { return errors.New("odd") })
		reply, err := newBatch(t, unhurried()).Do(t.Context(), s, &BatchRequest{Prompts: prompts(2)})
		if err == nil || len(s.at) != 2 || reply.Results[0].Reason != ReasonInternalError {
			t.Errorf("%v after %d calls: %+v", err, len(s.at), reply)
		}
	})
}
