package stage

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// fanLab has rows of chunks, each of which is a call of its own.
type fanLab struct {
	*lab
	mu    sync.Mutex
	asked map[string]int // answered calls, by prompt
}

// newFanLab answers each prompt as step says; nil: with its echo.
func newFanLab(t *testing.T, step func(prompt string) *llmtest.Step, vars map[string]string) *fanLab {
	t.Helper()
	l := &fanLab{asked: map[string]int{}}
	all := map[string]string{"STAGE_FOREACH": "chunks", "STAGE_TEMPLATE": "{{ row.title }} {{ loop.index }}/{{ loop.length }}: {{ item }}"}
	maps.Copy(all, vars)
	l.lab = newLab(t, llmtest.Config{Latency: time.Second, Script: func(c llmtest.Call) *llmtest.Step {
		prompt := promptOf(t, c.Body)
		if step != nil {
			if s := step(prompt); s != nil {
				return s
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked[prompt]++
		return nil
	}}, all)
	return l
}

func promptOf(t *testing.T, body []byte) string {
	t.Helper()
	var asked struct{ Messages []struct{ Content string } }
	if err := json.Unmarshal(body, &asked); err != nil || len(asked.Messages) == 0 {
		t.Errorf("request %s: %v", body, err)
		return ""
	}
	return asked.Messages[len(asked.Messages)-1].Content
}

// loadFan publishes a row with so many chunks.
func (l *fanLab) loadFan(title string, chunks int) {
	l.t.Helper()
	list := make([]string, chunks)
	for i := range list {
		list[i] = fmt.Sprintf("chunk %d", i)
	}
	text, _ := json.Marshal(map[string]any{"title": title, "chunks": list})
	l.publish(&nats.Msg{Data: text})
}

func fanPrompt(title string, i, n int) string {
	return fmt.Sprintf("%s %d/%d: chunk %d", title, i+1, n, i)
}

type fanResult struct {
	Title  string            `json:"title"`
	Texts  []json.RawMessage `json:"llm_response"`
	Hashes []string          `json:"llm_response_variables_hash"`
	Usage  *struct {
		Total int64 `json:"total_tokens"`
	} `json:"llm_response_usage"`
	Model *string `json:"llm_response_model"`
	Error *struct {
		Reason string `json:"reason"`
		Text   string `json:"error"`
		Failed int    `json:"failed"`
		Total  int    `json:"total"`
		Items  []struct {
			Index  int    `json:"index"`
			Reason string `json:"reason"`
			Error  string `json:"error"`
		} `json:"items"`
	} `json:"llm_response_error"`
}

func (l *fanLab) fans() (all []fanResult) {
	l.t.Helper()
	for _, body := range l.bodies() {
		var r fanResult
		stagetest.Must(l.t, json.Unmarshal([]byte(body), &r))
		all = append(all, r)
	}
	return all
}

// checkFan checks the result of a row whose elements have all succeeded.
func (l *fanLab) checkFan(r *fanResult, title string, n int) {
	l.t.Helper()
	if r.Title != title || len(r.Texts) != n || len(r.Hashes) != n || r.Error != nil {
		l.t.Errorf("row %s: %+v", title, r)
		return
	}
	for i, text := range r.Texts {
		if want, _ := json.Marshal(llmtest.Answer(fanPrompt(title, i, n))); string(text) != string(want) {
			l.t.Errorf("row %s, element %d: %s, want %s", title, i, text, want)
		}
	}
}

// checkPaidOnce checks that no prompt was answered twice.
func (l *fanLab) checkPaidOnce() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for prompt, n := range l.asked {
		if n != 1 {
			l.t.Errorf("%s was answered %d times", prompt, n)
		}
	}
}

func TestEachElementOfARowIsACall(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newFanLab(t, nil, nil)
		l.loadFan("a", 5)
		l.loadFan("none", 0)
		l.loadFan("b", 20)
		l.work(3, nil)
		got := l.fans()
		l.checkFan(&got[0], "a", 5)
		l.checkFan(&got[1], "none", 0)
		l.checkFan(&got[2], "b", 20)
		if got[0].Usage == nil || got[1].Usage != nil || got[1].Texts == nil || got[1].Model != nil || got[0].Model == nil {
			t.Errorf("usage or model: %+v", got)
		}
		if l.received() != 25 {
			t.Errorf("%d calls, want 25", l.received())
		}
		var used int64
		for _, e := range l.events(auditlog.KindCall) {
			if e.Call.Item == nil || e.Call.StateID != fmt.Sprintf("stage/ROWS/0/%d#%d", e.Call.Sequence, *e.Call.Item) {
				t.Errorf("call %+v", e.Call)
			}
			used += e.Call.Usage.TotalTokens
		}
		for _, e := range l.events(auditlog.KindRow) {
			n := map[uint64]int{1: 5, 2: 0, 3: 20}[e.Row.Sequence]
			source := auditlog.SourceCall
			if n == 0 {
				source = ""
			}
			if e.Row.Attempts != n || e.Row.Source != source || e.Row.Status != auditlog.RowSuccess {
				t.Errorf("row event %+v", e.Row)
			}
			if e.Row.Usage != nil {
				used -= e.Row.Usage.TotalTokens
			}
		}
		if used != 0 {
			t.Errorf("calls used %d tokens more than the rows report", used)
		}
	})
}

// TestTheHeadsElementsGoFirst: with room for four calls, no element of a row begins before all of the row before it have.
func TestTheHeadsElementsGoFirst(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newFanLab(t, nil, map[string]string{"STAGE_POOL_SIZE": "4"})
		for i := range 6 {
			l.loadFan(fmt.Sprint(i), 10)
		}
		l.work(6, nil)
		var titles []string
		for _, e := range l.events(auditlog.KindCall) {
			titles = append(titles, fmt.Sprint(e.Call.Sequence))
		}
		if !slices.IsSorted(titles) {
			t.Errorf("calls in the order of rows %v", titles)
		}
	})
}

func TestElementsThatFail(t *testing.T) {
	refuse := func(prompt string) *llmtest.Step {
		if strings.Contains(prompt, "chunk 2") || strings.Contains(prompt, "chunk 4") {
			return &llmtest.Step{Status: 400}
		}
		return nil
	}
	for _, mode := range []string{"row", "keep"} {
		stagetest.Virtual(t, func(t *testing.T) {
			l := newFanLab(t, refuse, map[string]string{"STAGE_FOREACH_ERRORS": mode})
			l.loadFan("a", 6)
			l.loadFan("b", 2)
			l.work(2, nil)
			got := l.fans()
			l.checkFan(&got[1], "b", 2)
			if mode == "keep" {
				var kept struct {
					Error struct{ Reason, Error string }
				}
				if len(got[0].Texts) != 6 || json.Unmarshal(got[0].Texts[2], &kept) != nil || kept.Error.Reason != "api_call_failed" || kept.Error.Error == "" {
					t.Errorf("kept: %s", l.bodies()[0])
				}
				return
			}
			e := got[0].Error
			if e == nil || e.Reason != "foreach_failed" || e.Failed != 2 || e.Total != 6 || len(e.Items) != 2 || e.Items[0].Index != 2 || e.Items[1].Index != 4 ||
				e.Items[0].Reason != "api_call_failed" || got[0].Title != "a" {
				t.Errorf("error %s", l.bodies()[0])
			}
			for _, ev := range l.events(auditlog.KindRow) {
				if ev.Row.Sequence == 1 && (len(ev.Row.Errors) != 3 || *ev.Row.Errors[0].Item != 2 || ev.Row.Errors[2].Item != nil || ev.Row.Attempts != 6) {
					t.Errorf("row event %+v", ev.Row)
				}
			}
		})
	}
}

func TestRowsThatCannotFanOut(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newFanLab(t, nil, map[string]string{"STAGE_FOREACH_MAX": "3", "STAGE_TEMPLATE": "{{ item.text }}"})
		for _, body := range []string{
			`{"title":"x"}`, `{"title":"x","chunks":"no"}`, `{"title":"x","chunks":[1,2,3,4]}`, `[]`,
			`{"chunks":[{"text":"x"},{},{"text":"y"}]}`, `{"chunks":[{"text":"x"},{"text":"y"},{"text":"z"}]}`,
		} {
			l.publish(&nats.Msg{Data: []byte(body)})
		}
		l.work(6, nil)
		got := l.fans()
		for i, r := range got[:4] {
			if r.Error == nil || r.Error.Reason != "invalid_row" {
				t.Errorf("row %d: %+v", i, r)
			}
		}
		if e := got[4].Error; e == nil || e.Reason != "foreach_failed" || e.Failed != 1 || e.Total != 3 ||
			e.Items[0].Index != 1 || e.Items[0].Reason != "template_rendering_failed" {
			t.Errorf("an element that cannot be rendered: %s", l.bodies()[4])
		}
		if last := got[5]; last.Error != nil || len(last.Texts) != 3 || l.received() != 3 {
			t.Errorf("%d calls, want those of the last row alone: %s", l.received(), l.bodies()[5])
		}
	})
}

// TestAKillPaysForNoElementTwice: an element whose reply has waited for the others is in the journal.
func TestAKillPaysForNoElementTwice(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		var quick atomic.Bool
		l := newFanLab(t, func(prompt string) *llmtest.Step {
			if !quick.Load() && strings.HasSuffix(prompt, "chunk 3") {
				return &llmtest.Step{Delay: time.Hour, Status: 500}
			}
			return nil
		}, map[string]string{"STAGE_LLM_TIMEOUT": "2h", "STAGE_POOL_SIZE": "40"})
		l.loadFan("a", 10)
		l.loadFan("b", 10)
		r := l.start(nil, Options{})
		time.Sleep(10 * time.Second)
		r.hard()
		if err := <-r.done; err == nil {
			t.Error("a stage that was killed has ended without an error")
		}
		quick.Store(true)
		l.work(2, nil)
		got := l.fans()
		l.checkFan(&got[0], "a", 10)
		l.checkFan(&got[1], "b", 10)
		l.checkPaidOnce()
		for _, e := range l.events(auditlog.KindRow) {
			if e.Row.Attempts != 10 || e.Row.Source != auditlog.SourceCall {
				t.Errorf("row event %+v", e.Row)
			}
		}
	})
}

// TestAStopKeepsTheElementsThatAreAnswered: calls in flight end, the others are handed back, and nothing is paid twice.
func TestAStopKeepsTheElementsThatAreAnswered(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newFanLab(t, nil, map[string]string{"STAGE_POOL_SIZE": "3"})
		l.loadFan("a", 10)
		l.loadFan("b", 10)
		r := l.start(nil, Options{})
		time.Sleep(5500 * time.Millisecond)
		r.stop()
		if n := len(l.bodies()); n != 1 {
			t.Fatalf("%d results at the stop", n)
		}
		l.work(2, nil)
		got := l.fans()
		l.checkFan(&got[0], "a", 10)
		l.checkFan(&got[1], "b", 10)
		l.checkPaidOnce()
	})
}

func TestEqualElementsShareOneCall(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newFanLab(t, nil, map[string]string{"STAGE_DEDUPE": "inflight", "STAGE_TEMPLATE": "{{ item }}"})
		l.publish(&nats.Msg{Data: []byte(`{"title":"a","chunks":["x","y","x","x"]}`)})
		l.work(1, nil)
		if got := l.fans(); l.received() != 2 || len(got[0].Texts) != 4 || string(got[0].Texts[0]) != string(got[0].Texts[3]) {
			t.Errorf("%d calls: %+v", l.received(), got)
		}
	})
}

// TestRepliesThatNoResultHoldsArePaidForNoFurther: the server takes 1 MiB, and each reply has 50 KiB; what the pool has
// taken by then is called.
func TestRepliesThatNoResultHoldsArePaidForNoFurther(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		body := fmt.Sprintf(`{"model":"m","choices":[{"message":{"content":%q},"finish_reason":"stop"}]}`, strings.Repeat("long ", 10<<10))
		l := newFanLab(t, func(string) *llmtest.Step { return &llmtest.Step{Body: body, Delay: time.Second} }, map[string]string{"STAGE_POOL_SIZE": "5"})
		l.loadFan("a", 100)
		l.work(1, nil)
		e := l.fans()[0].Error
		if l.received() > 60 || e == nil || e.Reason != "result_too_large" || !strings.HasPrefix(e.Text, fmt.Sprintf("with the replies to %d of 100 elements", l.received())) {
			t.Errorf("%d calls: %.300s", l.received(), l.bodies()[0])
		}
	})
}

// TestAnElementThatIsNotCalledAnyMoreFailsNoOtherRow: row b waits for the calls of equal elements of row a, whose result
// is too large before they are made.
func TestAnElementThatIsNotCalledAnyMoreFailsNoOtherRow(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		body := fmt.Sprintf(`{"model":"m","choices":[{"message":{"content":%q},"finish_reason":"stop"}]}`, strings.Repeat("long ", 20<<10))
		l := newFanLab(t, func(string) *llmtest.Step { return &llmtest.Step{Body: body, Delay: time.Second} },
			map[string]string{"STAGE_POOL_SIZE": "4", "STAGE_DEDUPE": "inflight", "STAGE_TEMPLATE": "{{ item }}"})
		l.loadFan("a", 18)
		l.publish(&nats.Msg{Data: []byte(`{"title":"b","chunks":["chunk 15","chunk 16","chunk 17"]}`)})
		l.work(2, nil)
		if got := l.fans(); got[0].Error == nil || got[0].Error.Reason != "result_too_large" || got[1].Error != nil || len(got[1].Texts) != 3 {
			t.Errorf("%d calls, row b: %.500s", l.received(), l.bodies()[1])
		}
	})
}

// TestARowWhoseElementsAllFailStopsNoOther: they would fill the pool's line, and only others show that the server works.
func TestARowWhoseElementsAllFailStopsNoOther(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newFanLab(t, func(prompt string) *llmtest.Step {
			if strings.HasPrefix(prompt, "bad") {
				return &llmtest.Step{Status: 500}
			}
			return nil
		}, map[string]string{"STAGE_POOL_SIZE": "4", "STAGE_ORDER": "none"})
		l.loadFan("bad", 100)
		for i := range 5 {
			l.loadFan(fmt.Sprint(i), 3)
		}
		r := l.start(nil, Options{})
		time.Sleep(5 * time.Minute)
		r.stop()
		if got := l.fans(); len(got) != 6 || strings.Contains(l.logs.String(), "paused") {
			t.Errorf("%d results of 6, %d calls", len(got), l.received())
		}
	})
}

// TestARowThatNoResultHoldsCostsNothing: the hashes of its elements alone are too many bytes.
func TestARowThatNoResultHoldsCostsNothing(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newFanLab(t, nil, map[string]string{"STAGE_FOREACH_MAX": "10000", "STAGE_TEMPLATE": "{{ item }}"})
		l.publish(&nats.Msg{Data: fmt.Appendf(nil, `{"title":%q,"chunks":[%s1]}`, strings.Repeat("x", 500_000), strings.Repeat("1,", 9_000))})
		l.work(1, nil)
		if e := l.fans()[0].Error; l.received() != 0 || e == nil || e.Reason != "result_too_large" {
			t.Errorf("%d calls: %.300s", l.received(), l.bodies()[0])
		}
	})
}
