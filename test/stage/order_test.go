package stage_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// throttles are the throttle algorithms. What holds for any stage is tested with each, in a short run with the default.
func throttles() []string {
	if testing.Short() {
		return []string{"adaptive"}
	}
	return []string{"adaptive", "classic"}
}

// between is a latency drawn from the number of a call, uniform and repeatable.
func between(low, high time.Duration, n int) time.Duration {
	x := uint64(n)*0x9e3779b97f4a7c15 + 0x1234567
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 32
	return low + time.Duration(x%uint64(high-low+1))
}

func TestResultsComeInStreamOrderWhateverTheLatency(t *testing.T) {
	for _, throttle := range throttles() {
		t.Run(throttle, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := loaded(t, 100, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
					return &llmtest.Step{Delay: between(50*time.Millisecond, 500*time.Millisecond, c.N)}
				}})
				r := s.start(vars{"STAGE_THROTTLE": throttle})
				s.await(100)
				r.stop()
				a := s.verify()
				for i, res := range s.results(0) {
					if want := fmt.Sprintf(`{"n":%d,"llm_response":"%s"`, i+1, llmtest.Answer("Row "+strconv.Itoa(i+1))); !strings.HasPrefix(string(res.Body), want) {
						t.Errorf("result %d is %s, want %s…", i, res.Body, want)
					}
				}
				if inOrder(&a) {
					t.Error("the calls ended in the order of the rows: nothing was reordered")
				}
			})
		})
	}
}

// inOrder reports whether the rows completed in the order of their submission.
func inOrder(a *audit) bool {
	for _, e := range a.rows {
		if e.E.SubmitIndex != e.E.CompleteIndex {
			return false
		}
	}
	return true
}

func TestEveryRowSucceedsWhenOneCallInFiveMeetsNoCapacity(t *testing.T) {
	for _, throttle := range throttles() {
		t.Run(throttle, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const flaky, calm = 60, 140
				calls := 0 // the script serves one call at a time
				s := loaded(t, flaky, llmtest.Config{Latency: 200 * time.Millisecond, Script: oneAtATime(func(c llmtest.Call) *llmtest.Step {
					if n := promptRow(c.Prompt); n <= flaky {
						if calls++; calls%5 == 0 {
							return &llmtest.Step{Status: 429}
						}
					}
					return nil
				})})
				r := s.start(vars{"STAGE_THROTTLE": throttle})
				s.await(flaky)
				for i := range calm {
					s.publish(`{"n":`+strconv.Itoa(flaky+i+1)+`}`, nil)
				}
				s.await(flaky + calm)
				r.stop()
				a := s.verify()
				for _, res := range s.results(0) {
					if res.Fault != nil {
						t.Errorf("row %d failed: %s", res.Row, res.Fault.Error)
					}
				}
				last := a.rows[len(a.rows)-1].E
				if st := last.PoolStats; st.CapacityRetries == 0 || st.PeakDelay < 50*time.Millisecond {
					t.Errorf("%d capacity retries, peak delay %v: the throttle saw nothing", st.CapacityRetries, st.PeakDelay)
				} else if st.CurrentDelay > st.PeakDelay/2 {
					t.Errorf("after %d calm rows the delay is %v, its peak was %v: it did not recover", calm, st.CurrentDelay, st.PeakDelay)
				}
			})
		})
	}
}

// promptRow returns the number of the row that a prompt was rendered from.
func promptRow(prompt string) int {
	n, _ := strconv.Atoi(prompt[strings.LastIndexByte(prompt, ' ')+1:])
	return n
}
