package tail

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// plantCall stores the event of a call as a stage does, with its id.
func plantCall(b *stagetest.Bench, row uint64, index int, change func(*auditlog.Call)) {
	b.T.Helper()
	c := &auditlog.Call{
		Header: auditlog.Header{Time: time.Now(), Stage: "stage"}, StateID: auditlog.StateID("stage", "ROWS", 0, row), Owner: "run.a", Sequence: row,
		CallIndex: index, Provider: "openai", Model: "large", Status: auditlog.CallSuccess, StatusCode: 200, Latency: 812 * time.Millisecond,
		Request:  fmt.Appendf(nil, `{"messages":[{"role":"user","content":"Review of kettle %d"}]}`, row),
		Response: []byte(`{"choices":[{"message":{"content":"Good."}}]}`), Usage: &auditlog.Usage{PromptTokens: 31, CompletionTokens: 2, CostUSD: new(.25)},
	}
	if change != nil {
		change(c)
	}
	b.Publish(&nats.Msg{Subject: "audit.stage.0.call", Header: nats.Header{jetstream.MsgIDHeader: {c.MsgID()}}, Data: c.AppendJSON(nil, auditlog.PayloadsFull, 0)})
}

// plantStory stores three rows, of which the second was refused once and fails; the first
// one ends after it.
func plantStory(t *testing.T) *stagetest.Bench {
	t.Helper()
	b, began := stagetest.NewBench(t, nil), time.Now()
	for i := range 3 {
		b.Publish(&nats.Msg{Subject: "rows.a", Data: fmt.Appendf(nil, `{"text":"Review of kettle %d","key":"hunter2hunter2"}`, i+1)})
	}
	failed := func(c *auditlog.Call) {
		c.Status, c.StatusCode, c.ErrorClass, c.Error = auditlog.CallFailure, 400, "permanent", `400 invalid: "Review of kettle 2" is too long`
		c.Response, c.Usage = []byte(`{"error":"no"}`), nil
	}
	plantCall(b, 2, 0, func(c *auditlog.Call) {
		c.Status, c.StatusCode, c.ErrorClass, c.RetryAfter, c.Usage = auditlog.CallCapacityRetry, 429, "capacity", 2*time.Second, nil
	})
	plantCall(b, 1, 0, nil)
	// A batched request has calls, too, and its id ends in their number.
	b.Publish(&nats.Msg{Subject: "audit.stage.all.call", Header: nats.Header{jetstream.MsgIDHeader: {"b7/run/call/2"}}, Data: []byte(`{}`)})
	plantCall(b, 2, 1, failed)
	end := func(row uint64, status, reason, why string) {
		e := &auditlog.Row{
			Header: auditlog.Header{Time: time.Now(), Stage: "stage"}, StateID: auditlog.StateID("stage", "ROWS", 0, row), Owner: "run.a", Sequence: row,
			Status: status, Reason: reason, Source: auditlog.SourceCall, Attempts: 1, CapacityRetries: int(row) - 1, QueuedAt: began, FinishedAt: time.Now(), //nolint:gosec // few
		}
		if why != "" {
			e.Errors = []auditlog.AttemptError{{Attempt: 1, Error: why}}
		}
		b.Publish(&nats.Msg{Subject: "audit.stage.0.row", Header: nats.Header{jetstream.MsgIDHeader: {e.MsgID()}}, Data: e.AppendJSON(nil, auditlog.PayloadsFull, 0)})
	}
	end(2, auditlog.RowError, "api_call_failed", `400 invalid: "Review of kettle 2" is too long`)
	time.Sleep(time.Second) // of virtual time
	end(1, auditlog.RowSuccess, "", "")
	for row := range uint64(2) {
		m := resultOf(streams.OrderStream, plantedRow{seq: row + 1})
		m.Data = []byte(`{"reply":"Good."}`)
		b.Publish(m)
	}
	return b
}

// squeeze makes of several blanks one.
func squeeze(text string) string { return regexp.MustCompile(` +`).ReplaceAllString(text, " ") }

// tell returns a story as JSON, and the texts of its steps.
func tell(t *testing.T, b *stagetest.Bench, o StoryOptions) (*Story, string, string) {
	t.Helper()
	story := stagetest.Value(Tell(t.Context(), b.JS, b.Cfg, o))(t)
	body := stagetest.Value(json.Marshal(story))(t)
	var steps strings.Builder
	for _, s := range story.Steps {
		fmt.Fprintf(&steps, "%s %s: %s\n", s.Kind, s.Level, s.Text)
	}
	return story, string(body), steps.String()
}

func TestTheStoryOfARowIsItsHistory(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := plantStory(t)
		story, body, steps := tell(t, b, StoryOptions{Row: 2})
		want := "queued info: queued\n" +
			"call warn: call 1: openai large, no capacity 429 in 812 ms, delay 0 asked to wait 2.00 s\n" +
			"call error: call 2: openai large, failed 400 in 812 ms, delay 0 400 invalid: \"[…]\" is too long\n" +
			"finished error: finished: error, answered, 2 calls, 1 without capacity: api_call_failed: 400 invalid: \"[…]\" is too long\n" +
			"waited info: waited 1.00 s for row 1\n" +
			"emitted info: emitted: result 2 of stream RESULTS, owner run.a\n"
		if got := squeeze(steps); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		for _, hidden := range []string{"kettle", "Good.", "hunter2"} {
			if strings.Contains(body, hidden) {
				t.Errorf("%q is shown without payloads: %s", hidden, body)
			}
		}
		if story.Status != auditlog.RowError || story.Reason != "api_call_failed" || story.Steps[4].Row != 1 || story.Steps[1].Call.RetryAfterMS != 2000 || story.LeftOut != 0 {
			t.Errorf("got %s", body)
		}
		first, body, _ := tell(t, b, StoryOptions{Row: 1, Partition: new(0)})
		if c := first.Steps[1].Call; c == nil || *c.PromptTokens != 31 || *c.CompletionTokens != 2 || *c.CostUSD != .25 || c.LatencyMS != 812 || c.Outcome != "ok 200" || first.Steps[3].Row != 0 {
			t.Errorf("got %s", body)
		}
		for _, o := range []StoryOptions{{Row: 3}, {Row: 99}, {Row: 2, Partition: new(1)}, {Row: 2, Item: new(0)}} {
			if _, err := Tell(t.Context(), b.JS, b.Cfg, o); !IsNoEvent(err) {
				t.Errorf("%+v: got %v, want that there is no event", o, err)
			}
		}
		// Where the row is gone, nobody knows what its errors quote.
		b.Purge("ROWS", 0)
		if _, body, steps := tell(t, b, StoryOptions{Row: 2}); strings.Contains(body, "kettle") || strings.Count(steps, hiddenError) != 2 {
			t.Errorf("a row that is gone: got\n%s", steps)
		}
	})
}

func TestAStoryShowsContentsWhereTheyMayBe(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := plantStory(t)
		b.Cfg = stagetest.Config(t, "STAGE_LLM_API_KEY", "hunter2hunter2", "STAGE_LLM_PROVIDER", "openai", "STAGE_LLM_MODEL", "large")
		story, body, steps := tell(t, b, StoryOptions{Row: 2, Payloads: true})
		call := story.Steps[2].Call
		if call.Prompt != "Review of kettle 2" || call.Reply != "{\n  \"error\": \"no\"\n}" || !strings.Contains(story.Body, "\"text\": \"Review of kettle 2\"") || story.Result != "{\n  \"reply\": \"Good.\"\n}" {
			t.Errorf("got %s", body)
		}
		if !strings.Contains(steps, `400 invalid: "Review of kettle 2" is too long`) || strings.Contains(body, "hunter2") {
			t.Errorf("got %s\n%s", body, steps)
		}
	})
}

// A row may have thousands of calls with contents of megabytes.
func TestAStoryIsBounded(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	for i := range CallsMax + 5 {
		plantCall(b, 7, i, func(c *auditlog.Call) {
			c.Item = new(i)
			c.StateID = auditlog.ItemStateID(c.StateID, i)
			c.Response = []byte(`{"choices":[{"message":{"content":"` + strings.Repeat("é", contentMax) + `"}}]}`)
		})
	}
	story, body, _ := tell(t, b, StoryOptions{Row: 7, Payloads: true})
	if story.LeftOut != 5 || len(body) > contentsMax+CallsMax*1000 || len(story.Steps[0].Call.Reply) > contentMax+len("…") || story.Status != "" {
		t.Errorf("%d calls left out, %d bytes, status %q", story.LeftOut, len(body), story.Status)
	}
	story, body, _ = tell(t, b, StoryOptions{Row: 7, Item: new(3)})
	if len(story.Steps) != 2 || *story.Steps[0].Call.Item != 3 || story.Steps[1].Kind != StepOpen {
		t.Errorf("element 3: got %s", body)
	}
}

// The stream goes on long after the row: what comes later is not read.
func TestAStoryReadsNoFurtherThanItMust(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := plantStory(t)
		time.Sleep(time.Hour)
		plantCall(b, 2, 5, nil) // of an owner that lost the row, and stores it late
		plantCall(b, 3, 0, nil)
		if _, _, steps := tell(t, b, StoryOptions{Row: 2}); strings.Contains(steps, "call 6") {
			t.Errorf("got\n%s", steps)
		}
		if got := historyText(b, 2); !strings.Contains(got, "call 6") {
			t.Errorf("the history of tail has all: got\n%s", got)
		}
		if _, _, steps := tell(t, b, StoryOptions{Row: 3}); !strings.Contains(steps, "call 1") {
			t.Errorf("row 3: got\n%s", steps)
		}
	})
}
