//go:build long

package stage_test

import (
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

// TestAReplicaThatJoinsHasItsShareAtOnceThoughTheLLMIsBusy has rows wait for capacity in all partitions, at two calls a
// second: those of the partitions that move are handed back without waiting for their turn.
func TestAReplicaThatJoinsHasItsShareAtOnceThoughTheLLMIsBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 400
		s := newSite(t, llmtest.Config{Rate: 2, Burst: 5, Latency: time.Second})
		partitions := vars{"STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": "4"}
		first := s.start(partitions)
		s.until("partitions", func() bool {
			_, err := s.js.Stream(t.Context(), "ROWS")
			return err == nil
		})
		s.publishKeyed(1, rows)
		s.until("all partitions", func() bool { return active(first) == 4 })
		time.Sleep(10 * time.Second)
		second := s.start(partitions)
		began := time.Now()
		s.until("shares", func() bool { return active(first) == 2 && active(second) == 2 })
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the partitions moved within %v, want the time of a few calls", took)
		}
		total := func() (n int) {
			for p := range 4 {
				n += len(s.results(p))
			}
			return n
		}
		s.until("all results", func() bool { return total() >= rows })
		first.stop()
		second.stop()
		s.keyed(rows, "results.stage.*.rows")
		answered := 0
		for _, e := range s.tap.seen() {
			if e.Status == 200 {
				answered++
			}
		}
		if answered != rows {
			t.Errorf("%d answers were paid for, want %d: the move repeated some", answered, rows)
		}
	})
}

// TestAPausedStageReleasesItsPartitions has rows wait for a key, most of one partition: one of them got the error,
// others fill the pool's queue. Whichever partitions move, the replica that joins has them soon.
func TestAPausedStageReleasesItsPartitions(t *testing.T) {
	for most := range 4 {
		t.Run(fmt.Sprint("most of ", most), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { aPausedStageReleases(t, most) })
		})
	}
}

func aPausedStageReleases(t *testing.T, most int) {
	t.Helper()
	var open atomic.Bool
	s := newSite(t, locked(&open, 401))
	partitions := vars{"STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": "4", "STAGE_FATAL_PROBE_INTERVAL": "5m"}
	first := s.start(partitions)
	s.until("partitions", func() bool {
		_, err := s.js.Stream(t.Context(), "ROWS")
		return err == nil
	})
	s.fill(most, 4, 100)
	time.Sleep(5 * time.Second)
	for p := range 4 {
		s.fill(p, 4, 5)
	}
	time.Sleep(10 * time.Second)
	second := s.start(partitions)
	time.Sleep(20 * time.Second)
	if a, b := active(first), active(second); a != 2 || b != 2 {
		t.Errorf("20s after a replica joined, %d partitions are at the first and %d at the second, want 2 and 2", a, b)
	}
	open.Store(true)
	time.Sleep(10 * time.Minute)
	first.stop()
	second.stop()
	if n := len(s.read("RESULTS", "results.stage.*.rows")); n != 120 {
		t.Errorf("%d results, want 120", n)
	}
}

// TestPartitionsShareThePoolByTurns has one partition fill its window and the pool's queue, at two calls a second, before
// the seven others get rows.
func TestPartitionsShareThePoolByTurns(t *testing.T) {
	for _, dedupe := range []string{"off", "stored"} { // stored: rows go to the pool by batches
		t.Run("dedupe "+dedupe, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { partitionsShareThePool(t, dedupe) })
		})
	}
}

func partitionsShareThePool(t *testing.T, dedupe string) {
	t.Helper()
	const partitions, rows = 8, 40
	var mu sync.Mutex
	seen := make(map[int]bool)
	var started []int  // rows, in the order of their first calls
	var at []time.Time // of these
	s := newSite(t, llmtest.Config{Rate: 2, Burst: 5, Latency: time.Second, Script: func(c llmtest.Call) *llmtest.Step {
		mu.Lock()
		defer mu.Unlock()
		if row := promptRow(c.Prompt); !seen[row] {
			seen[row] = true
			started, at = append(started, row), append(at, time.Now())
		}
		return nil
	}})
	r := s.start(vars{"STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": strconv.Itoa(partitions), "STAGE_DEDUPE": dedupe})
	s.until("partitions", func() bool {
		_, err := s.js.Stream(t.Context(), "ROWS")
		return err == nil
	})
	s.fill(0, partitions, 400)
	time.Sleep(30 * time.Second)
	mu.Lock()
	before := len(started)
	mu.Unlock()
	for p := 1; p < partitions; p++ {
		s.fill(p, partitions, rows)
	}
	began := time.Now()
	time.Sleep(3 * time.Minute)
	r.stop()

	var counts [partitions]int
	var latest, worst int
	var waited time.Duration
	for i, row := range started[before:] {
		p := row/1000 - 1
		if counts[p]++; counts[p] == 1 {
			latest, waited = i, at[before+i].Sub(began)
		}
		if slices.Max(counts[:]) <= rows { // none has run out of rows
			worst = max(worst, slices.Max(counts[:])-slices.Min(counts[:]))
		}
	}
	t.Logf("the last partition had its first call after %v and %d of other rows; rows started differ by up to %d", waited, latest, worst)
	if latest >= 2*partitions {
		t.Errorf("a partition had its first call after %d of other rows, want it within two turns", latest)
	}
	if worst > 2 {
		t.Errorf("the rows that partitions started differ by up to %d, want 2: %v", worst, counts)
	}
	if waited > 20*time.Second || slices.Min(counts[:]) < rows {
		t.Errorf("a partition had no call for %v: %v", waited, counts)
	}
}

// partitionOf returns the partition to which the server's transform maps a key.
func partitionOf(key, partitions int) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, strconv.Itoa(key))
	return int(h.Sum32() % uint32(partitions))
}

// fill publishes rows of a partition: those of partition 0 are numbered from 1000, those of partition 1 from 2000, and
// so on.
func (s *site) fill(partition, partitions, rows int) {
	s.t.Helper()
	key := 0
	for partitionOf(key, partitions) != partition {
		key++
	}
	for i := range rows {
		body := fmt.Appendf(nil, `{"n":%d}`, 1000*(partition+1)+i)
		stagetest.Value(s.js.Publish(s.t.Context(), "rows."+strconv.Itoa(key), body))(s.t)
	}
}
