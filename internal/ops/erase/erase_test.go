package erase_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/ops/erase"
	"github.com/llm-stage/stage/internal/ops/redrive"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// secret is what must be found nowhere after an erasure.
const secret = "Mustermann"

// refusing answers prompts with the word bad by an error.
var refusing = llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
	if strings.Contains(c.Prompt, "bad") {
		return &llmtest.Step{Status: http.StatusBadRequest, Body: fmt.Sprintf(`{"error":{"message":"no answer to %s"}}`, c.Prompt)}
	}
	return nil
}}

// gone checks that a text is in no file of the server, that the sums of the audit are
// what they were, and that verify proves the rest.
func (s *site) gone(text, usageBefore string, results int) {
	s.t.Helper()
	if files := s.holds(text); len(files) > 0 {
		s.t.Errorf("the text is still in %q", files)
	}
	if after := s.usage(); after != usageBefore {
		s.t.Errorf("usage was %s, and is %s", usageBefore, after)
	}
	if r := s.proven(); r.Erased != results {
		s.t.Errorf("verify says erased: %d, want %d", r.Erased, results)
	}
}

func TestNothingOfARowIsLeft(t *testing.T) {
	for _, size := range []int{10, 2 << 10, 100 << 10} {
		stagetest.Virtual(t, func(t *testing.T) {
			s := newSite(t, llmtest.Config{}, map[string]string{"STAGE_DEDUPE": "stored"})
			s.rows("one", secret+strings.Repeat("x", size), "three", "four of "+secret)
			s.work(4)
			before := s.usage()
			s.erase(rowsOf(2, 4)) // the last result of the log, too
			s.gone(secret, before, 2)
			calls := s.llm.Stats().Received
			s.rows("five") // whoever starts now goes on behind row 4
			s.work(3)
			if n := s.llm.Stats().Received - calls; n != 1 {
				t.Errorf("%d calls after the erasure, want one, for the new row", n)
			}
			s.gone(secret, s.usage(), 2)
			if again := s.erase(rowsOf(2, 4)); again.Before != 2 || len(again.Places) > 0 {
				t.Errorf("a second erasure: %+v", again)
			}
		})
	}
}

// killsMost is more than an erasure of any kind has steps.
const killsMost = 20

// kinds are rows of which something lies in special places.
var kinds = []struct {
	name    string
	vars    map[string]string
	llm     llmtest.Config
	before  func(s *site)              // it may be nil
	publish func(s *site, text string) // it may be nil, for rows with a member q
	run     func(s *site)              // after the stage has run; it may be nil
	also    int                        // further results of each row
	last    bool                       // each row is the last of the log when it is erased, not one of many
}{
	{name: "plain"},
	{name: "the last", last: true},
	{name: "failed, with a dead letter", vars: map[string]string{"STAGE_DEAD_LETTER_SUBJECT": "dead.rows"}, llm: refusing, before: func(s *site) {
		stagetest.Value(s.js.CreateStream(s.t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead.>"}}))(s.t)
	}},
	{name: "redriven", llm: refusing, also: 1, run: func(s *site) {
		stagetest.Value(redrive.Run(s.t.Context(), s.js, s.config(), redrive.Options{}, io.Discard))(s.t)
		s.work(1 + 2*killsMost)
	}},
	{
		name: "an array", vars: map[string]string{"STAGE_FOREACH": "items", "STAGE_TEMPLATE": "{{ item }}"},
		publish: func(s *site, text string) {
			s.publish(&nats.Msg{Subject: "rows.in", Data: fmt.Appendf(nil, `{"items":["a",%q,"c"]}`, text)})
		},
	},
	{name: "vectors in one call", vars: map[string]string{
		"STAGE_TASK": "embed", "STAGE_EMBED_DIMENSIONS": "4", "STAGE_LLM_MODEL": "small",
	}},
	{
		name: "a large result", last: true, vars: map[string]string{"STAGE_RESULT_BUCKET": "LARGE", "STAGE_LLM_MAX_REPLY_BYTES": "8388608"},
		llm: llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			return &llmtest.Step{Body: fmt.Sprintf(
				`{"choices":[{"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}`,
				strings.Repeat(c.Prompt+" ", 1+1<<20/len(c.Prompt)))}
		}},
	},
	{name: "in order by key", vars: map[string]string{"STAGE_ORDER": "key", "STAGE_ORDER_KEY": "field.q"}},
	{name: "with a kept reply", vars: map[string]string{"STAGE_JOURNAL_AFTER": "0s"}},
}

// One row after the other is erased, each time killed a step later, until an erasure
// comes to its end.
func TestAnErasureThatIsKilledAtAnyStepIsFinished(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				s := newSite(t, kind.llm, kind.vars)
				publish := kind.publish
				if publish == nil {
					publish = func(s *site, text string) { s.rows(text) }
				}
				if kind.before != nil {
					kind.before(s)
				}
				publish(s, "one")
				secrets := make([]string, killsMost)
				for step := range secrets {
					secrets[step] = fmt.Sprintf("%s-%02d", secret, step)
					if !kind.last {
						publish(s, "a bad row of "+secrets[step])
					}
				}
				s.work(stagetest.Stored(t, s.js, "ROWS", "rows.>"))
				if kind.run != nil {
					kind.run(s)
				}
				calls := s.llm.Stats().Received
				for step, more := 0, true; more; step++ {
					if kind.last {
						publish(s, "a row of "+secrets[step])
						s.work(s.results() + 1)
						calls++
					}
					before := s.usage()
					more = s.eraseKilled(rowsOf(uint64(step+2)), step) //nolint:gosec // few
					s.gone(secrets[step], before, (step+1)*(1+kind.also))
				}
				n := s.results()
				s.rows("five")
				s.publish(&nats.Msg{Subject: "rows.in", Data: []byte(`{"items":["e"],"q":"six"}`)})
				s.work(n + 2)
				if n := s.llm.Stats().Received - calls; n > 2 {
					t.Errorf("%d calls after the erasures, want at most two, for the new rows", n)
				}
			})
		})
	}
}

// eraseKilled erases rows and is killed after so many steps. It reports whether that was
// before the end, and then finishes the erasure.
func (s *site) eraseKilled(o erase.Options, steps int) bool {
	s.t.Helper()
	killed, n := errors.New("killed"), 0
	o.Step = func(string) error {
		if n++; n > steps {
			return killed
		}
		return nil
	}
	plan := stagetest.Value(erase.New(s.t.Context(), s.js, s.config(), o))(s.t)
	err := plan.Execute(s.t.Context())
	if !errors.Is(err, killed) {
		stagetest.Must(s.t, err)
		return false
	}
	time.Sleep(time.Hour) // longer than the server knows the ids of events
	o.Step = nil
	if steps > 0 {
		r := s.verify()
		if r.Violations.ByKind["erasure_unfinished"] == 0 || len(r.Violations.ByKind) > 1 {
			var b bytes.Buffer
			r.WriteText(&b)
			s.t.Errorf("killed at step %d, verify says:\n%s", steps, b.String())
		}
		o = erase.Options{Resume: true, Partition: -1, By: "bob"}
	}
	s.erase(o)
	return true
}

// Two erasures of a row at once leave one tombstone, as each counts as an erased result,
// and one rest of each event. One comes to its end while the other is at some step, a
// later one for each row.
func TestTwoErasuresAtOnceStoreNothingTwice(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{}, nil)
		for row := range killsMost {
			s.rows(fmt.Sprintf("row %d of %s", row+1, secret))
		}
		s.rows("the last")
		s.work(killsMost + 1)
		before := s.usage()
		row, overtaken := 0, true
		for overtaken {
			row++
			overtaken = false
			first := stagetest.Value(erase.New(t.Context(), s.js, s.config(), rowsOf(uint64(row))))(t) //nolint:gosec // few
			o, steps := rowsOf(uint64(row)), 0                                                         //nolint:gosec // few
			o.Step = func(string) error {
				if steps++; steps != row {
					return nil
				}
				overtaken = true
				return first.Execute(t.Context())
			}
			s.erase(o)
			if n := stagetest.Stored(t, s.js, "RESULTS", "results.stage.erased.>"); n != row {
				t.Errorf("overtaken at step %d: %d tombstones, want %d", row, n, row)
			}
			for _, kind := range []string{"call", "row"} {
				if n := stagetest.Stored(t, s.js, "AUDIT", "audit.stage.0."+kind); n != killsMost+1 {
					t.Errorf("overtaken at step %d: %d events of kind %s, want %d", row, n, kind, killsMost+1)
				}
			}
		}
		s.gone(fmt.Sprintf("row %d of %s", row, secret), before, row)
	})
}

// In a log of more rows than verify holds at once, rows that stay need the calls that
// they have shared with an erased one.
func TestRowsThatSharedACallStayProven(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{}, map[string]string{
			"STAGE_TASK": "embed", "STAGE_EMBED_DIMENSIONS": "4", "STAGE_LLM_MODEL": "small", "STAGE_EMBED_ROWS": "5", "STAGE_WINDOW": "10",
		})
		for i := range 100 {
			s.rows(fmt.Sprintf("row %d of %s", i, secret[:4]))
		}
		s.rows("the last")
		s.work(101)
		before := s.usage()
		s.erase(rowsOf(2, 50))
		if r := s.proven(); r.Erased != 2 || s.usage() != before {
			t.Errorf("erased: %d, usage %s, before %s", r.Erased, s.usage(), before)
		}
	})
}

func TestAStageAndARivalGoOnWhileTheirRowsAreErased(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: 20 * time.Millisecond}, nil)
		const rows = 12
		stop := s.start()
		var rival func()
		for i := range rows {
			s.rows(fmt.Sprintf("row %d of %s", i+1, secret))
			s.await("AUDIT", "audit.stage.0.row", 1)
			if i == rows/2 { // the rival takes over while rows are erased
				rival = s.start()
				stop()
			}
			s.await("ROWS", "rows.in", 1)
			for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(20 * time.Millisecond) {
				plan := stagetest.Value(erase.New(t.Context(), s.js, s.config(), rowsOf(uint64(i+1))))(t) //nolint:gosec // few
				if plan.Report().Err() == nil {
					stagetest.Must(t, plan.Execute(t.Context()))
					break
				}
			}
		}
		rival()
		s.gone(secret, s.usage(), rows)
		if n := s.llm.Stats().Received; n > rows+1 { // the first stage may be fenced while it stops, with a row in hand
			t.Errorf("%d calls for %d rows", n, rows)
		}
	})
}

func TestRowsAreSelectedByMemberAndKey(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if c.Prompt == "slow" {
				return &llmtest.Step{Delay: 10 * time.Second}
			}
			return nil
		}}, map[string]string{"STAGE_ORDER": "key", "STAGE_ORDER_KEY": "field.customer"})
		for i, q := range []string{"one", "slow", "three", "four"} {
			s.publish(&nats.Msg{Subject: "rows.in", Data: fmt.Appendf(nil, `{"q":%q,"customer":"c%d","n":%d}`, q, i%2, i)})
		}
		stop := s.start()
		s.await("RESULTS", "results.stage.0.rows", 2)
		key := `"c0"`
		for name, o := range map[string]erase.Options{
			"key":    {Key: &key, Partition: -1},
			"member": {Field: "customer", Value: "c0", Partition: -1},
			"range":  {Rows: []erase.Range{{First: 1, Last: 1}, {First: 3, Last: 3}}, Partition: -1},
		} {
			r := stagetest.Value(erase.New(t.Context(), s.js, s.config(), o))(t).Report()
			if !slices.Equal(r.Rows, []uint64{1}) || len(r.Pending) != 1 || r.Pending[0].Row != 3 || !strings.Contains(r.Pending[0].Why, "above the low-water mark, row 1") {
				t.Errorf("%s: got %+v, want row 1, and row 3 to wait", name, r)
			}
		}
		o := erase.Options{Field: "n", Value: "3", Partition: -1}
		if r := stagetest.Value(erase.New(t.Context(), s.js, s.config(), o))(t).Report(); len(r.Rows) != 0 || len(r.Pending) != 1 || r.Pending[0].Why != "it has no result yet" {
			t.Errorf("a row without a result: %+v", r)
		}
		s.await("RESULTS", "results.stage.0.rows", 4)
		s.erase(erase.Options{Key: &key, Partition: -1, By: "alice"})
		stop()
		if r := s.proven(); r.Erased != 2 {
			t.Errorf("erased: %d, want 2", r.Erased)
		}
		for name, o := range map[string]erase.Options{"there is no such row": rowsOf(99)} {
			if _, err := erase.New(t.Context(), s.js, s.config(), o); !config.IsInvalid(err) || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v, want %s", err, name)
			}
		}
	})
}

// A batch that has answered no call is known by the lane's record alone. That must stay until
// the files of the batch are deleted.
func TestABatchIsKnownUntilItsFilesAreDeleted(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{}, nil)
		s.rows("one", "two")
		s.work(2)
		stagetest.Value(s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: s.config().Lane.Stream, Subjects: []string{"lane.>"}}))(t)
		for _, r := range []*lane.Record{
			{Kind: lane.RecordIntent, Token: "t1", Provider: "openai", Model: "large", Rows: &lane.Rows{Seqs: []uint64{1}, Hashes: []uint64{9}}},
			{Kind: lane.RecordSubmitted, Token: "t1", BatchID: "b1"},
			{Kind: lane.RecordDone, Token: "t1"},
		} {
			stagetest.Value(s.js.Publish(t.Context(), "lane.stage.0.t1", stagetest.Value(json.Marshal(r))(t)))(t)
		}
		want, down, deleted := erase.Batch{Provider: "openai", Model: "large", ID: "b1"}, true, []erase.Batch(nil)
		o := rowsOf(1)
		o.DeleteBatch = func(_ context.Context, b erase.Batch) error {
			if down {
				return errors.New("the provider is down")
			}
			deleted = append(deleted, b)
			return nil
		}
		o.Step = func(what string) error {
			if strings.HasPrefix(what, string(erase.PlaceLane)) && len(deleted) == 0 {
				t.Errorf("%s: the files of its batch are still there", what)
			}
			return nil
		}
		if r := s.erase(o); r.Err() == nil || len(r.Failed) != 1 {
			t.Errorf("the files were not deleted: %v, %q", r.Err(), r.Failed)
		}
		down = false
		if r := s.erase(o); r.Err() != nil || !slices.Equal(deleted, []erase.Batch{want}) {
			t.Errorf("deleted %v, want %v: %v", deleted, want, r.Err())
		}
		if plan := stagetest.Value(erase.New(t.Context(), s.js, s.config(), o))(t); !plan.Empty() {
			t.Errorf("left: %+v", plan.Report().Places)
		}
	})
}

// The row is still in the input: it is no longer said to be another's.
func TestARowWhoseResultWasDroppedIsNamed(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{}, map[string]string{"STAGE_RESULT_MAX_AGE": "1s"})
		s.rows("one", "two")
		stop := s.start()
		s.await("RESULTS", "results.stage.0.rows", 2)
		s.await("RESULTS", "results.stage.dropped.0", 1)
		stop()
		_, err := erase.New(t.Context(), s.js, s.config(), rowsOf(1))
		if want := "its result has gone (STAGE_RESULT_MAX_AGE)"; !config.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

func TestAStreamThatDeniesDeletesIsRefused(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{}, nil)
		s.rows("one")
		s.work(1)
		cfg := stagetest.Value(s.js.Stream(t.Context(), "RESULTS"))(t).CachedInfo().Config
		cfg.DenyDelete = true
		stagetest.Value(s.js.UpdateStream(t.Context(), cfg))(t)
		if _, err := erase.New(t.Context(), s.js, s.config(), rowsOf(1)); !config.IsInvalid(err) || !strings.Contains(err.Error(), "RESULTS: "+erase.WhyDenied) {
			t.Errorf("got %v", err)
		}
	})
}

// The procedure of docs/erase.md for a stream that denies deletes.
func TestAStreamThatDeniesDeletesIsMoved(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{}, nil)
		s.rows("one", "two of "+secret, "three")
		s.work(3)
		old := stagetest.Value(s.js.Stream(t.Context(), "RESULTS"))(t).CachedInfo().Config
		old.DenyDelete = true
		stagetest.Value(s.js.UpdateStream(t.Context(), old))(t)
		moved := old
		moved.Name, moved.Subjects, moved.DenyDelete = "RESULTS2", nil, false
		moved.AllowAtomicPublish, moved.AllowBatchPublish = false, false
		moved.Mirror = &jetstream.StreamSource{Name: "RESULTS"}
		stream := stagetest.Value(s.js.CreateStream(t.Context(), moved))(t)
		for stagetest.Value(stream.Info(t.Context()))(t).State.LastSeq < 4 {
			time.Sleep(time.Second)
		}
		stagetest.Must(t, s.js.DeleteStream(t.Context(), "RESULTS"))
		moved.Mirror, moved.Subjects, moved.AllowAtomicPublish = nil, old.Subjects, old.AllowAtomicPublish
		stagetest.Value(s.js.UpdateStream(t.Context(), moved))(t)
		s.vars["STAGE_RESULT_STREAM"] = "RESULTS2"
		before := s.usage()
		s.erase(rowsOf(2))
		s.gone(secret, before, 1)
		s.rows("four")
		stop := s.start()
		s.await("RESULTS2", "results.stage.0.rows", 3)
		stop()
		s.gone(secret, s.usage(), 1)
	})
}
