package stage

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/batch"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// newEmbedLab has a stage that makes vectors of four numbers, and rows with the texts q1, q2 and so on.
func newEmbedLab(t *testing.T, rows int, llm llmtest.Config, vars map[string]string) *lab {
	t.Helper()
	l := newLab(t, llm, map[string]string{
		"STAGE_TASK": "embed", "STAGE_EMBED_DIMENSIONS": "4", "STAGE_LLM_MODEL": "small", "STAGE_POOL_SIZE": "2", "STAGE_RETRY_MAX_ATTEMPTS": "2",
	})
	maps.Copy(l.vars, vars)
	for i := range rows {
		l.load(fmt.Sprint("q", i+1))
	}
	return l
}

// checkVectors checks that each result has the vector of its own text.
func checkVectors(l *lab, rows int) {
	l.t.Helper()
	bodies := l.bodies()
	if len(bodies) != rows {
		l.t.Errorf("%d results, want %d", len(bodies), rows)
	}
	tokens := int64(0)
	for i, body := range bodies {
		var r struct {
			Q      string    `json:"q"`
			Vector []float32 `json:"llm_response"`
			Usage  *struct {
				Prompt int64 `json:"prompt_tokens"`
			} `json:"llm_response_usage"`
		}
		stagetest.Must(l.t, json.Unmarshal([]byte(body), &r))
		if r.Q != fmt.Sprint("q", i+1) || r.Usage == nil || !slices.Equal(r.Vector, llmtest.Vector(r.Q, 4)) {
			l.t.Errorf("result %d: %s", i+1, body)
			continue
		}
		tokens += r.Usage.Prompt
	}
	if used := l.usageOfCalls(); used.PromptTokens < tokens { // more, where a reply was not used
		l.t.Errorf("results have %d tokens, calls %d", tokens, used.PromptTokens)
	}
	l.proven()
}

// usageOfCalls adds up the calls.
func (l *lab) usageOfCalls() *auditlog.Usage {
	sum := &auditlog.Usage{}
	for _, e := range l.events(auditlog.KindCall) {
		if e.Call.Usage != nil {
			sum = sum.Plus(e.Call.Usage)
		}
	}
	return sum
}

// sizes are the rows of each call, by status.
func (l *lab) sizes() map[string][]int {
	sizes := make(map[string][]int)
	for _, e := range l.events(auditlog.KindCall) {
		sizes[string(e.Call.Status)] = append(sizes[string(e.Call.Status)], len(e.Call.Rows))
	}
	return sizes
}

// The first row of an idle stage goes at once. While its call is in flight others gather: full calls of ten go as
// soon as there is room, and the last, which is not full, when it has waited.
func TestRowsShareCalls(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newEmbedLab(t, 34, llmtest.Config{Latency: time.Second, TextLatency: time.Millisecond}, map[string]string{
			"STAGE_EMBED_ROWS": "10", "STAGE_EMBED_WAIT": "200ms",
		})
		l.work(34, nil)
		checkVectors(l, 34)
		sizes := l.sizes()["success"]
		slices.Sort(sizes)
		if total := sum(sizes); total != 34 || sizes[len(sizes)-1] != 10 || len(sizes) > 6 {
			t.Errorf("calls of %v rows", sizes)
		}
		if got, calls := l.llms["first.test"].Stats(), l.usageOfCalls(); got.Texts != 34 || calls.PromptTokens != 34 {
			t.Errorf("%d texts were embedded, for %d tokens", got.Texts, calls.PromptTokens)
		}
	})
}

// A call has no more tokens than a minute may have.
func TestCallsStayWithinTheTokensOfAMinute(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newEmbedLab(t, 34, llmtest.Config{Latency: time.Second}, map[string]string{"STAGE_LLM_TPM": "10"})
		l.work(34, nil)
		checkVectors(l, 34)
		if sizes := l.sizes()["success"]; slices.Max(sizes) > 10 || sum(sizes) != 34 {
			t.Errorf("calls of %v rows, one token each", sizes)
		}
	})
}

func sum(list []int) (total int) {
	for _, n := range list {
		total += n
	}
	return total
}

// A text that the provider refuses fails its row alone: the call is split until the text is found, and no other is
// embedded twice.
func TestARefusedTextFailsItsRowAlone(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		script := func(c llmtest.Call) *llmtest.Step {
			if slices.Contains(c.Inputs, "q13") || slices.Contains(c.Inputs, "q20") {
				return &llmtest.Step{Status: http.StatusBadRequest, Delay: time.Second}
			}
			return nil
		}
		l := newEmbedLab(t, 33, llmtest.Config{Latency: time.Second, Script: script}, nil)
		l.load("")
		l.work(34, nil)
		l.vars["STAGE_TEMPLATE"] = "{{ row.q }}"
		bodies := l.bodies()
		if last := bodies[33]; !strings.Contains(last, `"reason":"invalid_row","error":"openai: the text to embed is empty"`) {
			t.Errorf("an empty text: %s", last)
		}
		if bad := bodies[12]; !strings.Contains(bad, `"reason":"api_call_failed"`) || !strings.Contains(bad, `"attempt":1`) {
			t.Errorf("a refused text: %s", bad)
		}
		stats := l.llms["first.test"].Stats()
		if stats.Texts != 31 { // each but the two once
			t.Errorf("%d texts were embedded", stats.Texts)
		}
		// At most two for each size that is left: 16, 8, 4, 2, 1, for each of the two.
		if failed := l.sizes()["failure"]; len(failed) > 12 {
			t.Errorf("refused calls of %v rows", failed)
		}
		l.proven()
		if n := l.failedRows(); n != 3 {
			t.Errorf("%d rows failed", n)
		}
	})
}

// failedRows counts the results that are errors.
func (l *lab) failedRows() (n int) {
	for _, body := range l.bodies() {
		if strings.Contains(body, `"llm_response_error":`) {
			n++
		}
	}
	return n
}

// Whatever the vectors of a reply are like, a row has its own or an error, never another's, and what could not be
// used counts as well.
func TestRepliesWithWrongVectorsAreNotUsed(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		faults := map[llmtest.VectorFault]float64{
			llmtest.FewerVectors: .06, llmtest.MoreVectors: .06, llmtest.ShuffledVectors: .06, llmtest.TwiceVectors: .06,
			llmtest.NullVector: .06, llmtest.HugeVector: .06, llmtest.ShortVector: .06,
		}
		l := newEmbedLab(t, 100, llmtest.Config{Latency: time.Second, VectorFaults: faults, Errors: map[int]float64{429: .1, 503: .05, 500: .03}}, map[string]string{
			"STAGE_EMBED_ROWS": "8", "STAGE_RETRY_MAX_ATTEMPTS": "6",
		})
		l.work(100, nil)
		checkVectors(l, 100)
	})
}

// Elements of rows share calls as rows do, and equal texts one vector.
func TestElementsAndEqualTextsShareCalls(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newEmbedLab(t, 0, llmtest.Config{Latency: time.Second}, map[string]string{
			"STAGE_FOREACH": "parts", "STAGE_TEMPLATE": "{{ item }}", "STAGE_DEDUPE": "inflight",
		})
		for i := range 10 {
			l.publish(&nats.Msg{Data: fmt.Appendf(nil, `{"parts":["a","b%d","c%d","a"]}`, i, i%2)})
		}
		l.work(10, nil)
		for i, body := range l.bodies() {
			var r struct {
				Vectors [][]float32 `json:"llm_response"`
			}
			stagetest.Must(t, json.Unmarshal([]byte(body), &r))
			for k, text := range []string{"a", fmt.Sprint("b", i), fmt.Sprint("c", i%2), "a"} {
				if len(r.Vectors) != 4 || !slices.Equal(r.Vectors[k], llmtest.Vector(text, 4)) {
					t.Errorf("row %d, element %d: %s", i, k, body)
				}
			}
		}
		if n := l.llms["first.test"].Stats().Texts; n > 26 { // 13 different ones; those that come after a reply are embedded again
			t.Errorf("%d texts were embedded", n)
		}
		l.proven()
	})
}

// Rows that wait for others, and those whose call is in flight, are handed back when the stage stops, and are
// answered by the next one: with a wait of a minute it stops at once.
func TestRowsThatGatherAreHandedBack(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newEmbedLab(t, 30, llmtest.Config{Latency: 20 * time.Second}, map[string]string{
			"STAGE_EMBED_ROWS": "25", "STAGE_EMBED_WAIT": "1m", "STAGE_WINDOW": "100",
		})
		r := l.start(nil, Options{})
		time.Sleep(5 * time.Second)
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it took %v to stop", took)
		}
		l.work(30, nil)
		checkVectors(l, 30)
		if n := l.llms["first.test"].Stats().Texts; n != 30 {
			t.Errorf("%d texts were embedded", n)
		}
	})
}

// A reply that was kept is not paid for again, though its call served others that have none: the process is killed
// while the results of a call are stored.
func TestKilledStagesPayForNoKeptVectorAgain(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newEmbedLab(t, 200, llmtest.Config{Latency: time.Second}, map[string]string{"STAGE_EMBED_ROWS": "16"})
		for range 6 {
			r := l.start(nil, Options{})
			time.Sleep(2500 * time.Millisecond)
			r.kill()
		}
		l.work(200, nil)
		checkVectors(l, 200)
		// Two calls of 16 texts are in flight at each of six kills.
		if n := l.llms["first.test"].Stats().Texts; n > 200+6*32 {
			t.Errorf("%d texts were embedded", n)
		}
	})
}

// A row's model, its parameters and its partition choose its call; a server without capacity holds all rows, and
// fails none; a fallback embeds what the first provider can't.
func TestCallsServeWhatGoesTogether(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newEmbedLab(t, 0, llmtest.Config{Latency: time.Second, Rate: 1, Burst: 1}, map[string]string{"STAGE_PARAMS_FIELD": "params"})
		for i := range 40 {
			m := &nats.Msg{Data: fmt.Appendf(nil, `{"q":"q%d","params":{"user":"u%d"}}`, i+1, i%2)}
			if i%4 == 3 {
				m.Header = map[string][]string{"Stage-Model": {"large"}}
			}
			l.publish(m)
		}
		l.work(40, nil)
		checkVectors(l, 40)
		for _, e := range l.events(auditlog.KindCall) {
			for _, seq := range e.Call.Rows {
				model := map[bool]string{true: "large", false: "small"}[(seq-1)%4 == 3]
				if user := fmt.Sprintf(`"user":"u%d"`, (seq-1)%2); e.Call.Model != model || !strings.Contains(string(e.Call.Request), user) {
					t.Errorf("row %d in a call of %s, %s", seq, e.Call.Model, e.Call.Request)
				}
			}
		}
	})
}

// A text at which the server fails each time makes all attempts in the first call and where it is alone, and one in
// each call between: three with 32, one with each of 16, 8, 4 and 2, and three alone.
func TestATextAtWhichTheServerFailsIsFoundInFewCalls(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		script := func(c llmtest.Call) *llmtest.Step {
			if slices.Contains(c.Inputs, "q13") {
				return &llmtest.Step{Status: http.StatusInternalServerError, Delay: time.Second}
			}
			return nil
		}
		l := newEmbedLab(t, 200, llmtest.Config{Latency: time.Second, Script: script}, map[string]string{
			"STAGE_EMBED_ROWS": "32", "STAGE_RETRY_MAX_ATTEMPTS": "3",
		})
		l.work(200, nil)
		if bad := l.bodies()[12]; !strings.Contains(bad, `"reason":"api_call_failed"`) {
			t.Errorf("the text: %s", bad)
		}
		if n := l.failedRows(); n != 1 {
			t.Errorf("%d rows failed", n)
		}
		if n := l.llms["first.test"].Stats().Texts; n != 199 {
			t.Errorf("%d texts were embedded", n)
		}
		if failed := l.sizes()["failure"]; len(failed) > 10 {
			t.Errorf("failed calls of %v rows", failed)
		}
		l.proven()
	})
}

// A batched request wants texts, deferred or not: a stage that makes vectors says so, and calls nothing.
func TestAStageOfVectorsRefusesPrompts(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newEmbedLab(t, 0, llmtest.Config{}, nil)
		r := l.serveBatches()
		m := l.sendBatch(`{"prompts":["x"]}`)
		if code := m.Header.Get(micro.ErrorCodeHeader); code != batch.CodeBadRequest || !strings.Contains(string(m.Data), "STAGE_TASK=chat") {
			t.Errorf("%s: %s", code, m.Data)
		}
		if _, code := l.ask("submit", requestOf(1, nil)); code != batch.CodeBadRequest {
			t.Errorf("a deferred one is refused as %q", code)
		}
		r.stop()
		if n := l.llms["first.test"].Stats().Texts; n != 0 {
			t.Errorf("%d texts were embedded", n)
		}
	})
}
