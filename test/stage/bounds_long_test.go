//go:build long

package stage_test

import (
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// The size of a reply is known only once it arrives: no call begins without room, except the few that were already on
// their way to the pool. The row that all others wait for may always begin.
func TestRepliesLargerThanTheirRowsStayWithinTheWindowsBytes(t *testing.T) {
	t.Parallel()
	const rows, windowBytes, pool = 600, 1 << 20, 4
	replies := vars{"STAGE_WINDOW": "1000", "STAGE_WINDOW_BYTES": strconv.Itoa(windowBytes), "STAGE_POOL_SIZE": strconv.Itoa(pool)}
	t.Run("behind a slow call", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := loaded(t, rows, llmtest.Config{Script: lengthy})
			r := s.start(replies)
			time.Sleep(80 * time.Second)
			const onTheWay = 3*pool + 17 // in the pool, in its queue, and one that is being rendered
			const most = windowBytes>>14 + onTheWay
			if finished := r.metric(`llm_stage_reorder_buffer_rows{partition="0"}`); finished < windowBytes>>15 || finished > most {
				t.Errorf("%d replies of 16 KiB wait, want at most %d, and half of them at least", finished, most)
			}
			if held := r.metric(`llm_stage_window_rows{partition="0"}`); held != rows {
				t.Errorf("%d rows are in the window, want all %d: they are small", held, rows)
			}
			s.await(rows)
			r.stop()
			s.verify()
		})
	})
	t.Run("handed back by a stop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := loaded(t, rows, llmtest.Config{Script: lengthy})
			r := s.start(replies)
			time.Sleep(80 * time.Second)
			r.stop()
			r = s.start(replies)
			s.await(rows)
			r.stop()
			s.verify()
		})
	})
	t.Run("without blocking the other partition", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, llmtest.Config{Script: lengthy})
			partitions := vars{"STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": "2"}
			maps.Copy(partitions, replies)
			r := s.start(partitions)
			s.until("partitions", func() bool {
				_, err := s.js.Stream(t.Context(), "ROWS")
				return err == nil
			})
			s.publishKeyed(1, rows)
			time.Sleep(80 * time.Second)
			held := []int{r.metric(`llm_stage_window_rows{partition="0"}`), r.metric(`llm_stage_window_rows{partition="1"}`)}
			if min(held[0], held[1]) != 0 || max(held[0], held[1]) < rows/4 {
				t.Errorf("the partitions have %d rows in their windows, want many in the one with row 1 and none in the other", held)
			}
			s.until("all rows", func() bool {
				return r.metric(`llm_stage_window_rows{partition="0"}`)+r.metric(`llm_stage_window_rows{partition="1"}`) == 0
			})
			r.stop()
			s.keyed(rows, "results.stage.0.rows", "results.stage.1.rows")
		})
	})
}

// Goroutines belong to calls in flight; no row has one.
func TestGoroutinesGrowWithThePoolAlone(t *testing.T) {
	t.Parallel()
	at := func(rows, window, pool int) (goroutines int) {
		synctest.Test(t, func(t *testing.T) {
			s := loaded(t, rows, llmtest.Config{Script: blocked})
			r := s.start(vars{"STAGE_WINDOW": strconv.Itoa(window), "STAGE_POOL_SIZE": strconv.Itoa(pool)})
			time.Sleep(80 * time.Second)
			if held, want := r.metric(`llm_stage_window_rows{partition="0"}`), min(rows, window); held != want {
				t.Errorf("%d rows in the window, want %d", held, want)
			}
			synctest.Wait()
			goroutines = inBubble()
			s.await(rows)
			r.stop()
		})
		return goroutines
	}
	// Each slot of the pool has a worker and an idle connection, with two goroutines at each end.
	const perCall, slack = 5, 4
	few := at(100, 50, 4)
	for _, c := range []struct{ rows, window, pool int }{{1000, 50, 4}, {1000, 1000, 4}, {1000, 1000, 20}} {
		most := few + (c.pool-4)*perCall + slack
		if n := at(c.rows, c.window, c.pool); n > most {
			t.Errorf("%d rows, window %d, pool %d: %d goroutines, want at most %d; 100 rows, window 50, pool 4 have %d", c.rows, c.window, c.pool, n, most, few)
		} else {
			t.Logf("%d rows, window %d, pool %d: %d goroutines", c.rows, c.window, c.pool, n)
		}
	}
}

// lengthy answers as blocked does, but with replies of 16 KiB to rows of a few bytes.
func lengthy(c llmtest.Call) *llmtest.Step {
	step := blocked(c)
	step.Body = fmt.Sprintf(`{"id":"1","model":"m","choices":[{"message":{"content":%q},"finish_reason":"stop"}]}`, strings.Repeat("y", 16<<10))
	return step
}

// inBubble counts the goroutines of the caller's bubble: the process has others, of tests beside it.
func inBubble() int {
	own := make([]byte, 256)
	own = own[:runtime.Stack(own, false)]
	all := make([]byte, 64<<20)
	all = all[:runtime.Stack(all, true)]
	bubble := bubbleOf.FindSubmatch(own)[1]
	n := 0
	for stack := range strings.SplitSeq(string(all), "\n\n") {
		if m := bubbleOf.FindStringSubmatch(stack); m != nil && m[1] == string(bubble) {
			n++
		}
	}
	return n
}

var bubbleOf = regexp.MustCompile(`^goroutine \d+ \[[^\]]*(synctest bubble \d+)`)
