package stage_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"pgregory.net/rapid"
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
				const flaky, calm = 100, 300
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

func TestAPoolIsFasterThanOneAtATime(t *testing.T) {
	took := func(t *testing.T, pool string) (d time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s := loaded(t, 40, llmtest.Config{Script: func(llmtest.Call) *llmtest.Step { return &llmtest.Step{Delay: time.Second} }})
			r := s.start(vars{"STAGE_POOL_SIZE": pool})
			s.await(40)
			r.stop()
			a := s.verify()
			first, last := a.rows[0].E.StartedAt, a.rows[0].E.FinishedAt
			for _, e := range a.rows {
				first, last = minTime(first, e.E.StartedAt), maxTime(last, e.E.FinishedAt)
			}
			d = last.Sub(first)
			if pool == "1" && !inOrder(&a) {
				t.Error("one at a time, but the rows completed out of order")
			}
		})
		return d
	}
	sequential, parallel := took(t, "1"), took(t, "10")
	if sequential.Round(time.Second) != 40*time.Second {
		t.Errorf("40 calls of a second, one at a time, took %v", sequential)
	}
	// The adaptive throttle starts slowly, so this takes a little longer than the 4 s that ten at a time could.
	if parallel > 8*time.Second {
		t.Errorf("40 calls of a second, ten at a time, took %v", parallel)
	}
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// One site serves all drawn cases: a batch of rows each, whose calls end in the drawn order.
func TestAnyOrderOfCompletionGivesStreamOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 7
		var delays []time.Duration
		s := newSite(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			return &llmtest.Step{Delay: delays[promptRow(c.Prompt)-1]}
		}})
		s.newInput()
		r := s.start(vars{"STAGE_POOL_SIZE": "7", "STAGE_THROTTLE": "classic"})
		batches := 0
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) { // in a bubble, T.Deadline panics
			order := rapid.Permutation([]int{1, 2, 3, 4, 5, 6, 7}).Draw(rt, "order")
			delays = delays[:0]
			for _, place := range order {
				delays = append(delays, time.Duration(place)*100*time.Millisecond)
			}
			s.load(rows)
			batches++
			s.await(batches * rows)
		})
		r.stop()
		a := s.verify()
		if inOrder(&a) {
			t.Error("no batch completed in another order than its own")
		}
	})
}

func TestRowsThatTheFilterExcludesLeaveNoGap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: 300 * time.Millisecond, LatencySigma: 1})
		s.newInput()
		for i := range 60 {
			subject := "rows.other"
			if i%3 != 0 {
				subject = "rows.mine.x"
			}
			stagetest.Value(s.js.Publish(t.Context(), subject, []byte(`{"n":`+strconv.Itoa(i+1)+`}`)))(t)
		}
		r := s.start(vars{"STAGE_INPUT_SUBJECT": "rows.mine.>"})
		s.await(40)
		r.stop()
		var got, want []uint64
		for _, res := range s.results(0) {
			got = append(got, res.Row)
		}
		for _, m := range s.read("ROWS", "rows.mine.>") {
			want = append(want, m.Seq)
		}
		if !slices.Equal(got, want) {
			t.Errorf("results of rows %v, want %v", got, want)
		}
	})
}

func TestEachPartitionKeepsItsOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Latency: 300 * time.Millisecond, LatencySigma: 1})
		s.newInput()
		for i := range 60 {
			if _, err := s.js.Publish(t.Context(), fmt.Sprintf("rows.%d.x", i%2), []byte(`{"n":`+strconv.Itoa(i+1)+`}`)); err != nil {
				t.Fatal(err)
			}
		}
		r := s.start(vars{"STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": "2"})
		s.until("all results", func() bool { return s.stored() >= 30 && len(s.results(1)) >= 30 })
		r.stop()
		for p := range 2 {
			results := s.results(p)
			if len(results) != 30 {
				t.Errorf("partition %d: %d results, want 30", p, len(results))
			}
			for i, res := range results {
				if want := uint64(2*i + p + 1); res.Row != want {
					t.Errorf("partition %d: result %d is of row %d, want %d", p, i, res.Row, want)
				}
			}
		}
		for _, e := range s.audit().rows {
			if int(e.E.Partition) != int(e.E.Sequence+1)%2 {
				t.Errorf("the event of row %d is of partition %d", e.E.Sequence, e.E.Partition)
			}
		}
	})
}
