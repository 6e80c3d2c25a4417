package stage_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go/micro"
)

func TestAnInvalidBatchIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{})
		r := s.serving(vars{"STAGE_BATCH_MAX_PROMPTS": "10"})
		for body, want := range map[string]string{
			"":                         "ends too early",
			"{":                        "ends too early",
			"null":                     "no prompts",
			"[]":                       "the request is of type array",
			`"prompts"`:                "the request is of type string",
			"{}":                       "no prompts",
			`{"prompts": []}`:          "no prompts",
			`{"prompts": "one"}`:       "prompts is of type string",
			`{"prompts": [1]}`:         "prompts is of type number",
			`{"prompts": ["a", null]}`: "prompt 1 is null",
			`{"prompts": ["a"]} {}`:    "continues after",
			`{"prompt": ["a"]}`:        `unknown field "prompt"`,
			`{"prompts": ["a"], "contexts": ["b", "c"]}`: "1 prompts and 2 contexts",
			`{"prompts": ["a"], "max_parallel": "many"}`: "max_parallel is of type string",
			`{"prompts": ["a"], "max_parallel": 1e99}`:   "max_parallel is of type number",
			"{\"prompts\": [\"\xff\"]}":                  "UTF-8",
			strings.Repeat("[", 100_000):                 "max depth",
		} {
			reply := s.ask(body)
			if reply.Code != "bad_request" || !strings.Contains(reply.Error, want) || reply.Header.Get(micro.ErrorHeader) == "" {
				t.Errorf("%.60s: %+v, want %q", body, reply, want)
			}
		}
		if reply := s.ask(batchOf(11, 1)); reply.Code != "batch_too_large" || reply.Size != 11 || reply.Max != 10 {
			t.Errorf("%+v", reply)
		}
		stagetest.Must(t, s.nc.Publish("stage.llm_batch", []byte(`{"prompts": ["a"]}`))) // with no subject for the reply
		time.Sleep(time.Minute)
		if n := len(s.tap.seen()); n != 0 {
			t.Errorf("%d calls", n)
		}
		for parallel, want := range map[string]int{"0": 1, "-5": 1, "7": 7, "1000": 10, "null": 5} {
			if reply := s.ask(strings.Replace(batchOf(10, 99), "99", parallel, 1)); len(reply.Results) != 10 {
				t.Errorf("max_parallel %s (%d): %+v", parallel, want, reply)
			}
		}
		r.stop()
	})
}

func TestAReplyTooLargeForAMessageIsAnErrorAndEndsTheBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if c.Prompt == "lines" {
				return &llmtest.Step{Body: says(strings.Repeat("\n", 300<<10), "stop") + " "}
			}
			return &llmtest.Step{Body: says(strings.Repeat("b", 400<<10), "stop")}
		}})
		r := s.serving(nil)
		reply := s.ask(batchOf(100, 1))
		if reply.Code != "reply_too_large" || reply.Size < 3*400<<10 || reply.Max > 1<<20 || len(s.tap.seen()) != 3 {
			t.Errorf("%+v after %d calls", reply, len(s.tap.seen()))
		}
		// Only the encoding makes it too large.
		if reply := s.ask(`{"prompts": ["lines", "lines", "lines"]}`); reply.Code != "all_failed" && reply.Code != "reply_too_large" {
			t.Errorf("%+v", reply)
		}
		r.stop()
	})
}

func TestTooManyConcurrentBatchesAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: time.Minute})
		r := s.serving(nil)
		var busy, answered atomic.Int64
		var asking sync.WaitGroup
		for range 80 {
			asking.Go(func() {
				reply, err := s.tryAsk("stage.llm_batch", `{"prompts": ["a"]}`)
				switch {
				case err != nil:
					t.Error(err)
				case reply.Code == "rate_limited" && reply.Provider == "openai" && reply.RetryAfterMS != nil:
					busy.Add(1)
				default:
					answered.Add(1)
				}
			})
		}
		asking.Wait()
		if busy.Load() != 16 || answered.Load() != 64 {
			t.Errorf("%d refused, %d answered", busy.Load(), answered.Load())
		}
		r.stop()
	})
}

func TestABatchGoesToAFallbackWhileTheFirstProviderHasNoCapacity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: time.Second, Script: func(c llmtest.Call) *llmtest.Step {
			if c.Model == "small" {
				return &llmtest.Step{Status: 503}
			}
			return nil
		}})
		r := s.serving(vars{"STAGE_FALLBACKS": "openai:spare", "STAGE_FALLBACK_AFTER": "1s", "STAGE_RETRY_MAX_ATTEMPTS": "5", "STAGE_BATCH_RPM": "openai=0"})
		reply := s.ask(batchOf(10, 2))
		r.stop()
		answers := 0
		for _, content := range reply.contents() {
			if strings.HasPrefix(content, "Answer") {
				answers++
			}
		}
		if answers < 8 {
			t.Errorf("%v", reply.contents())
		}
		a := s.audit()
		s.verifyCalls(&a)
		for _, e := range a.calls {
			if e.E.RequestHash == "" || llm.Hash(e.E.Request) != e.E.RequestHash {
				t.Errorf("%+v", e.E)
			}
		}
	})
}
