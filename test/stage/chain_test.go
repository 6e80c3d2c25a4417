package stage_test

import (
	"fmt"
	"io"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/redrive"
	"github.com/llm-stage/stage/internal/stagetest"
)

// link starts a stage whose rows are the results of another; before is their subject.
func (s *site) link(name, before string, changes vars) *replica {
	s.t.Helper()
	settings := vars{"STAGE_NAME": name}
	if before != "" {
		settings["STAGE_INPUT_STREAM"], settings["STAGE_INPUT_SUBJECT"] = "RESULTS", before
	}
	maps.Copy(settings, changes)
	return s.start(settings)
}

// awaitOf waits until a stage has so many results.
func (s *site) awaitOf(name string, n int) {
	s.t.Helper()
	s.until(fmt.Sprintf("%d results of %s", n, name), func() bool {
		return stagetest.Stored(s.t, s.js, "RESULTS", "results."+name+".*.rows") >= n
	})
}

// finish stops a stage once it has so many results.
func (r *replica) finish(name string, n int) {
	r.t.Helper()
	r.site.awaitOf(name, n)
	r.stop()
}

// errorOf answers the call for one row of one stage, by the first word of its template, with an error.
func errorOf(stage string, row int) func(llmtest.Call) *llmtest.Step {
	return func(c llmtest.Call) *llmtest.Step {
		if strings.HasPrefix(c.Prompt, stage+" ") && promptRow(c.Prompt) == row {
			return &llmtest.Step{Status: 400}
		}
		return nil
	}
}

// Three stages on one stream of results. Row 2 fails at the first, row 3 at the second.
func TestAChainCarriesErrorsFieldsAndOrigins(t *testing.T) {
	for _, c := range []struct {
		mode     string
		statuses string // of the results of b and c
		want     []string
	}{
		{"pass", "success error error success, success error error success", []string{
			`{"n":1,"a_llm_response":…,"b_llm_response":…,"llm_response":…}`, `{"n":2,"llm_response_error":…}`,
			`{"n":3,"a_llm_response":…,"llm_response_error":…}`, `{"n":4,"a_llm_response":…,"b_llm_response":…,"llm_response":…}`,
		}},
		{"process", "success success error success, success success success success", []string{
			`{"n":1,"a_llm_response":…,"b_llm_response":…,"llm_response":…}`, `{"n":2,"a_llm_response_error":…,"b_llm_response":…,"llm_response":…}`,
			`{"n":3,"a_llm_response":…,"b_llm_response_error":…,"llm_response":…}`, `{"n":4,"a_llm_response":…,"b_llm_response":…,"llm_response":…}`,
		}},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				atA, atB := errorOf("a", 2), errorOf("b", 3)
				s := newSite(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
					if step := atA(c); step != nil {
						return step
					}
					return atB(c)
				}})
				s.newStream("ROWS", "rows.>")
				for i := range 4 {
					s.publish(fmt.Sprintf(`{"n":%d}`, i+1), map[string][]string{"Customer": {"c17"}})
				}
				var stages []*replica
				before := ""
				for _, name := range []string{"a", "b", "c"} {
					stages = append(stages, s.link(name, before, vars{"STAGE_TEMPLATE": name + " {{ row.n }}", "STAGE_ON_UPSTREAM_ERROR": c.mode}))
					s.awaitOf(name, 1)
					before = "results." + name + ".*.rows"
				}
				s.awaitOf("c", 4)
				for _, r := range stages {
					r.stop()
				}
				var statuses [2]string
				for i, name := range []string{"b", "c"} {
					for n, m := range s.read("RESULTS", "results."+name+".0.rows") {
						statuses[i] = strings.TrimSpace(statuses[i] + " " + m.Header.Get(streams.HeaderStatus))
						if got := m.Header.Get(streams.HeaderOriginStream) + " " + m.Header.Get(streams.HeaderOriginSeq); got != fmt.Sprint("ROWS ", n+1) {
							t.Errorf("result %d of %s is of row %s", n+1, name, got)
						}
						if m.Header.Get("Customer") != "c17" || m.Header.Get(streams.HeaderSourceStream) != "RESULTS" {
							t.Errorf("result %d of %s has headers %v", n+1, name, m.Header)
						}
					}
				}
				if got := statuses[0] + ", " + statuses[1]; got != c.statuses {
					t.Errorf("got statuses %s, want %s", got, c.statuses)
				}
				s.provenChain("a", "b", "c")
				results := s.read("RESULTS", "results.c.0.rows")
				for i, want := range c.want {
					if got := outline(t, results[i].Body); got != want {
						t.Errorf("got result %s, want %s", got, want)
					}
				}
				if log := s.logs.String(); strings.Contains(log, "is replaced in their results") {
					t.Errorf("a member was replaced:\n%s", log)
				}
			})
		})
	}
}

// outline writes a result without the values of its replies and errors, and without what comes with a reply.
func outline(t *testing.T, body []byte) string {
	t.Helper()
	var parts []string
	for _, name := range fieldNames(t, body) {
		switch {
		case name == "n":
			parts = append(parts, string(body[1:strings.IndexByte(string(body), ',')]))
		case strings.HasSuffix(name, "llm_response"), strings.HasSuffix(name, "_error"):
			parts = append(parts, fmt.Sprintf("%q:…", name))
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// The keys of the first stage go through partitions of equal number, and then into one partition that is in order by key.
func TestAChainOverPartitionsKeepsTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 60
		s := newSite(t, llmtest.Config{Latency: time.Second, LatencySigma: 1})
		s.link("a", "", vars{"STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": "3", "STAGE_ORDER": "key", "STAGE_ORDER_KEY": "subject.3"})
		s.until("the input", func() bool {
			_, err := s.js.Stream(t.Context(), "ROWS")
			return err == nil
		})
		s.publishKeyed(1, rows)
		s.awaitOf("a", 1)
		key := vars{"STAGE_ORDER": "key", "STAGE_ORDER_KEY": "header.Stage-Key"}
		s.link("b", "results.a.{partition}.rows", vars{"STAGE_PARTITIONS": "3", "STAGE_ORDER": "key", "STAGE_ORDER_KEY": "header.Stage-Key"})
		s.link("c", "results.b.*.rows", key)
		s.awaitOf("c", rows)
		s.keyed(rows, "results.b.*.rows")
		s.keyed(rows, "results.c.0.rows")
		s.provenChain("a", "b", "c")
		for p := range 3 {
			for _, m := range s.read("RESULTS", fmt.Sprintf("results.b.%d.rows", p)) {
				if want := fmt.Sprintf("results.a.%d.rows", p); m.Header.Get(streams.HeaderSourceSubject) != want {
					t.Errorf("partition %d has a row of %s", p, m.Header.Get(streams.HeaderSourceSubject))
				}
			}
		}
		for _, m := range s.read("RESULTS", "results.c.0.rows") {
			var n int
			stagetest.Value(fmt.Sscanf(string(m.Body), `{"n":%d,`, &n))(t)
			if want := fmt.Sprintf("c%d", n%customers); m.Header.Get(streams.HeaderKey) != want {
				t.Errorf("row %d has key %q, want %s", n, m.Header.Get(streams.HeaderKey), want)
			}
		}
	})
}

// A redrive in the middle of a chain while all its stages run: the stage before goes on appending to its log.
func TestARedriveInAChainDoesNotDisturbTheStageBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		refuse := errorOf("b", 3)
		s := newSite(t, llmtest.Config{Latency: 100 * time.Millisecond, Script: func(c llmtest.Call) *llmtest.Step {
			if fixed.Load() {
				return nil
			}
			return refuse(c)
		}})
		s.newInput()
		s.load(20)
		settings := vars{"STAGE_TEMPLATE": "b {{ row.n }}"}
		a := s.link("a", "", nil)
		s.awaitOf("a", 1)
		// Without the wildcard a redrive is refused; the stage goes on where it was with another subject and a new consumer.
		s.link("b", "results.a.0.rows", settings).finish("b", 10)
		stagetest.Must(t, s.js.DeleteConsumer(t.Context(), "RESULTS", "b-0"))
		b := s.link("b", "results.a.*.rows", settings)
		c := s.link("c", "results.b.*.rows", nil)
		s.awaitOf("c", 20)
		fixed.Store(true)
		maps.Copy(settings, vars{"STAGE_NAME": "b", "STAGE_INPUT_STREAM": "RESULTS", "STAGE_INPUT_SUBJECT": "results.a.*.rows"})
		report, err := redrive.Run(t.Context(), s.js, s.config(settings), redrive.Options{}, io.Discard)
		if err != nil || report.Published != 1 {
			t.Fatalf("published %+v, %v", report, err)
		}
		s.load(5)
		s.awaitOf("c", 26)
		for _, r := range []*replica{a, b, c} {
			r.stop()
		}
		s.provenChain("a", "b", "c")
		if n := len(s.read("RESULTS", "results.a.0.claim")); n != 1 {
			t.Errorf("stage a has claimed its log %d times, want once", n)
		}
		again := s.read("RESULTS", "results.b.0.rows")[20]
		failed := s.read("RESULTS", "results.b.0.rows")[2]
		if got := again.Header.Get(streams.HeaderReplaces); got != failed.Header.Get(streams.HeaderSourceSeq) || again.Header.Get(streams.HeaderStatus) != "success" {
			t.Errorf("the row that was published again: %v", again.Header)
		}
		for _, name := range []string{"b", "c"} {
			m := s.read("RESULTS", "results."+name+".0.rows")[20]
			if m.Header.Get(streams.HeaderOriginSeq) != "3" || m.Header.Get(streams.HeaderOriginStream) != "ROWS" {
				t.Errorf("stage %s: the row that was published again has lost its origin: %v", name, m.Header)
			}
		}
	})
}

// Over partitions a redrive of a later stage has no subject for its copies. The way that docs/chains.md names instead: the
// stage has a dead letter subject, and another stage of the same settings answers the letters.
func TestDeadLettersOfAChainOverPartitionsAreAnsweredByAnotherStage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 30
		var fixed atomic.Bool
		refuse := errorOf("b", 7)
		s := newSite(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if fixed.Load() {
				return nil
			}
			return refuse(c)
		}})
		s.newStream("DEAD", "dead.>")
		s.link("a", "", vars{"STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": "3"})
		s.until("the input", func() bool {
			_, err := s.js.Stream(t.Context(), "ROWS")
			return err == nil
		})
		s.publishKeyed(1, rows)
		s.awaitOf("a", 1)
		settings := vars{"STAGE_TEMPLATE": "b {{ row.n }}"}
		over := maps.Clone(settings)
		maps.Copy(over, vars{"STAGE_PARTITIONS": "3", "STAGE_DEAD_LETTER_SUBJECT": "dead.b"})
		s.link("b", "results.a.{partition}.rows", over)
		s.awaitOf("b", rows)
		maps.Copy(over, vars{"STAGE_NAME": "b", "STAGE_INPUT_STREAM": "RESULTS", "STAGE_INPUT_SUBJECT": "results.a.{partition}.rows"})
		if _, err := redrive.Run(t.Context(), s.js, s.config(over), redrive.Options{}, io.Discard); err == nil {
			t.Error("a redrive without a subject for its copies is not refused")
		}
		fixed.Store(true)
		maps.Copy(settings, vars{"STAGE_INPUT_STREAM": "DEAD", "STAGE_INPUT_SUBJECT": "dead.b"})
		s.link("b-again", "", settings)
		s.awaitOf("b-again", 1)
		letters, again := s.read("DEAD", "dead.b"), s.read("RESULTS", "results.b-again.0.rows")
		if len(letters) != 1 || len(again) != 1 || letters[0].Header.Get(streams.HeaderReason) != "api_call_failed" {
			t.Fatalf("letters %v, results %v", letters, again)
		}
		if got, want := outline(t, again[0].Body), `{"n":7,"a_llm_response":…,"llm_response":…}`; got != want {
			t.Errorf("got result %s, want %s", got, want)
		}
		for _, failed := range s.read("RESULTS", "results.b.*.rows") {
			if failed.Header.Get(streams.HeaderStatus) == "success" {
				continue
			}
			for _, name := range []string{streams.HeaderOriginStream, streams.HeaderOriginSeq} {
				if got, want := again[0].Header.Get(name), failed.Header.Get(name); got != want || got == "" {
					t.Errorf("%s of the answered letter is %q, that of the failed result %q", name, got, want)
				}
			}
		}
		if again[0].Header.Get(streams.HeaderStatus) != "success" {
			t.Errorf("the answered letter: %v", again[0].Header)
		}
	})
}
