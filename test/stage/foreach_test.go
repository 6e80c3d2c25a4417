package stage_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/chain"
)

// fanOut is one stage that fans out rows of the input: the prompt of an element is the element.
func fanOut(t *testing.T, pool int, step func(item string) *llmtest.Step) *chainSite {
	t.Helper()
	s := newChainSite(t, chain.Pipeline{}, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step { return step(c.Prompt) }})
	maps.Copy(s.vars, map[string]string{
		"STAGE_INPUT_STREAM": "ROWS", "STAGE_INPUT_SUBJECT": "rows.>", "STAGE_TEMPLATE": "{{ item }}", "STAGE_POOL_SIZE": strconv.Itoa(pool),
	})
	return s
}

// elements publishes a row with so many elements: row 7 has "7.0", "7.1" and so on.
func (s *chainSite) elements(n, count int) {
	s.t.Helper()
	items := make([]string, count)
	for i := range items {
		items[i] = fmt.Sprintf(`"%d.%d"`, n, i)
	}
	if _, err := s.js.Publish(s.t.Context(), "rows.a", fmt.Appendf(nil, `{"items":[%s]}`, strings.Join(items, ","))); err != nil {
		s.t.Fatal(err)
	}
}

func TestAKillRepaysOnlyTheElementsInFlight(t *testing.T) {
	for _, after := range []string{"0s", "50ms"} {
		t.Run("STAGE_JOURNAL_AFTER="+after, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				var mu sync.Mutex
				calls := make(map[string]int)
				s := fanOut(t, 4, func(item string) *llmtest.Step {
					mu.Lock()
					defer mu.Unlock()
					calls[item]++
					if item == "1.2" {
						return &llmtest.Step{Delay: 25 * time.Second}
					}
					return &llmtest.Step{Delay: time.Second}
				})
				s.vars["STAGE_JOURNAL_AFTER"] = after
				p := s.start(chain.B)
				s.elements(1, 8)
				s.elements(2, 5)
				time.Sleep(15 * time.Second) // all but 1.2 are answered
				p.Die()
				s.start(chain.B)
				s.until("both results", func() bool { return s.stored(chain.B) == 2 })
				s.stop()
				s.verify(chain.B)
				if len(calls) != 13 {
					t.Errorf("%d elements were called, want 13", len(calls))
				}
				for item, n := range calls {
					if want := map[bool]int{true: 2, false: 1}[item == "1.2"]; n != want {
						t.Errorf("element %s was called %d times, want %d", item, n, want)
					}
				}
				bodies := stagetest.Read(t, s.js, "RESULTS", "results.b.0.rows")
				for i, count := range []int{8, 5} {
					for k := range count {
						if want := llmtest.Answer(fmt.Sprintf("%d.%d", i+1, k)); !strings.Contains(string(bodies[i].Body), want) {
							t.Errorf("row %d has no %q: %s", i+1, want, bodies[i].Body)
						}
					}
				}
			})
		})
	}
}

func TestTheElementsOfTheFirstRowAreCalledFirst(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		const rows, pool = 30, 8
		s := fanOut(t, pool, func(string) *llmtest.Step { return &llmtest.Step{Delay: time.Second} })
		for n := range rows {
			s.elements(n+1, pool)
		}
		began := time.Now()
		s.start(chain.B)
		s.until("all results", func() bool { return s.stored(chain.B) == rows })
		s.stop()
		for i, m := range stagetest.Read(t, s.js, "RESULTS", "results.b.0.rows") {
			// Its calls fill the pool for a second, as do those of each row before it.
			if took, most := m.Time.Sub(began), time.Duration(i+2)*time.Second; took > most {
				t.Errorf("row %d has its result after %v, want %v at most", i+1, took, most)
			}
		}
	})
}
